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
    """Wall seconds per call, over so many calls in a row."""
    started = time.perf_counter()
    for _ in range(times):
        action()
    return (time.perf_counter() - started) / times


def repeated(action: Action, repeats: int, budget: float) -> list[float]:
    """Seconds of so many calls, or of fewer where the budget of seconds does not allow for all; of one at least.

    >>> len(repeated(lambda: None, repeats=3, budget=60.0)), len(repeated(lambda: None, repeats=3, budget=0.0))
    (3, 1)
    """
    taken: list[float] = []
    while not taken or (len(taken) < repeats and sum(taken) < budget):
        taken.append(seconds(action))
    return taken


def alternate(
    actions: Mapping[str, Action], rounds: int, times: int, between: Action = lambda: None
) -> dict[str, list[float]]:
    """Per action, the seconds per call of one block of `times` calls in every round.

    All actions have a block in every round, so that a machine that slows down slows them all; every other round goes
    backwards, so that none is always the first after `between`, which is called once a round.
    """
    blocks: dict[str, list[float]] = {name: [] for name in actions}
    for i in range(rounds):
        between()
        for name in list(actions)[:: -1 if i % 2 else 1]:
            blocks[name].append(seconds(actions[name], times))
    return blocks


def part_of(least: Sequence[float], taken: Sequence[float]) -> float:
    """What the least seconds of every round are of those that were taken in it: the median of the ratios.

    >>> part_of([1.0, 2.0, 1.0], [2.0, 4.0, 1.0])
    0.5
    """
    return statistics.median(low / seconds for low, seconds in zip(least, taken, strict=True))


def times_faster(own: Sequence[float], others: Sequence[float]) -> float:
    """How many times faster `own` is than `others`: the median of the ratios of neighbouring blocks.

    >>> times_faster([1.0, 2.0, 1.0], [3.0, 4.0, 3.0])
    3.0
    """
    return statistics.median(other / mine for mine, other in zip(own, others, strict=True))
