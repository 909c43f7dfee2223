"""Taking time: blocks that alternate, medians, ratios of neighbours. The only place of the bench that reads a clock."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

Action = Callable[[], object]


class Spread(NamedTuple):
    """Of several measurements of the same thing, in seconds."""

    median: float
    low: float
    high: float


def spread(values: Sequence[float]) -> Spread:
    """
    >>> spread([3.0, 1.0, 2.0])
    Spread(median=2.0, low=1.0, high=3.0)
    """
    return Spread(statistics.median(values), min(values), max(values))


def seconds(action: Action, times: int = 1) -> float:
    """Wall seconds per call, over a number of calls in a row."""
    started = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - started) / times


def repeated(timed: Callable[[int], float], size: int, repeats: int, budget: float) -> list[float]:
    """The seconds per call of each of `repeats` blocks of calls; fewer blocks where the budget of seconds does not
    allow for all, and one at least.

    >>> def block(size: int) -> float:
    ...     return seconds(lambda: None, size)
    >>> len(repeated(block, 2, repeats=3, budget=60.0)), len(repeated(block, 2, repeats=3, budget=0.0))
    (3, 1)
    """
    started, taken = time.perf_counter(), [timed(size)]
    while len(taken) < repeats and time.perf_counter() - started < budget:
        taken.append(timed(size))
    return taken


def alternate(
    timed: Mapping[str, Callable[[], float]], rounds: int, between: Action = lambda: None
) -> dict[str, list[float]]:
    """Per name, the seconds that it says it has taken in every round.

    All have a turn in every round, so that a machine that slows down slows them all; every other round goes backwards,
    so that none is always the first after `between`, which is called once a round.
    """
    taken: dict[str, list[float]] = {name: [] for name in timed}
    for i in range(rounds):
        between()
        for name in list(timed)[:: -1 if i % 2 else 1]:
            taken[name].append(timed[name]())
    return taken


def part_of(least: Sequence[float], taken: Sequence[float]) -> float:
    """What the least seconds of every round are of those that were taken in it: the median of the ratios.

    >>> part_of([1.0, 2.0, 1.0], [2.0, 4.0, 1.0])
    0.5
    """
    return statistics.median(low / seconds for low, seconds in zip(least, taken, strict=True))


def times_faster(ours: Sequence[float], others: Sequence[float]) -> float:
    """How many times faster `own` is than `others`: the median of the ratios of neighbouring blocks.

    >>> times_faster([1.0, 2.0, 1.0], [3.0, 4.0, 3.0])
    3.0
    """
    return statistics.median(other / mine for mine, other in zip(ours, others, strict=True))
