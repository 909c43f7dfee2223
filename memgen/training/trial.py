"""A trial before a training on several ranks: does it pay?

A step is measured on all ranks, and on rank 0 alone while the others wait. Neither changes the model or the random
numbers of the training.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch

from memgen.core.layers import divided
from memgen.core.noise import Purpose, generator
from memgen.core.objective import CHOOSING
from memgen.training.batches import read
from memgen.training.distributed import Ranks
from memgen.training.execution import PlannedSteps, flushed_denormals
from memgen.training.gradients import gradients
from memgen.training.prepare import Prepared
from memgen.training.state import State

REPEATS = 3
"""Steps of each kind that are measured; the least time counts."""


class Trial(NamedTuple):
    """Seconds of a step, without the update of the weights."""

    together: float
    """On all ranks."""
    exchange: float
    """Of the exchanges of a step alone: their number times the latency of one, and the time of all their bytes."""
    alone: float
    """On one rank, with the threads of all ranks of its machine."""
    sums: int
    """The number of exchanges of a step."""
    size: int
    """Bytes of all of them."""

    @property
    def pays(self) -> bool:
        return self.together < self.alone

    def __str__(self) -> str:
        together, exchange, alone = (f"{1e3 * seconds:.2g} ms" for seconds in self[:3])
        return (
            f"a step takes {together}, of which {self.sums} exchanges of {self.size / 1e6:.2g} MB in all need about "
            f"{exchange}; in one process it takes {alone}"
        )


def try_out(ready: Prepared, state: State, neighbours: int) -> Trial:
    """Measure a step, which all ranks do together. `neighbours`: the number of ranks on this machine."""
    ranks = state.ranks
    assert ranks is not None
    before = replace(ranks.traffic)
    together = least(ranks, step_of(ready, state))
    sums = (ranks.traffic.sums - before.sums) // (REPEATS + 1)
    size = (ranks.traffic.bytes - before.bytes) // (REPEATS + 1)
    small, large = (torch.zeros(n, device=ranks.device) for n in (1, max(1, size // 4)))
    latency, transfer = (least(ranks, lambda x=x: ranks.total(x)) for x in (small, large))  # type: ignore[misc]
    with _threads(neighbours * torch.get_num_threads()):
        alone = least(ranks, step_of(ready, replace(state, ranks=None)) if ranks.writes else lambda: None)
    state.optimizer.clear()
    state.planned = PlannedSteps()
    exchange = min(together, (sums - 1) * latency + transfer)
    together, exchange, alone = ranks.first(torch.tensor([together, exchange, alone])).tolist()
    return Trial(together, exchange, alone, sums, size)


def step_of(ready: Prepared, state: State) -> Callable[[], object]:
    """The gradients of a step of the state's stage, on rows and with noise of its own."""
    recipe, model = ready.recipe.stage(state.stage), state.model
    rows, random = ready.sizes[state.stage][0], generator(0, Purpose.TRAINING, state.order.device)
    batch = read(ready.rows, ready.levels, torch.arange(rows, device=state.order.device), ready.data.stochastic, random)
    batch = batch.to(next(model.parameters()))
    noise = model.noise(recipe.objective.samples + (recipe.objective.estimator in CHOOSING), rows, random)
    total = None if state.ranks is None else state.ranks.total

    def step() -> None:
        model.train()
        with flushed_denormals(), divided(model, total):
            gradients(state, recipe, batch, noise, 1.0)

    return step


def least(ranks: Ranks, work: Callable[[], object], repeats: int = REPEATS) -> float:
    """The least time of some repetitions, after one that does not count. They begin together."""
    times = []
    for _ in range(repeats + 1):
        ranks.any(False)
        clock = time.perf_counter()
        work()
        if ranks.device.type == "cuda":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - clock)
    return min(times[1:])


@contextmanager
def _threads(number: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number)
    try:
        yield
    finally:
        torch.set_num_threads(before)
