"""The execution path of a training: plain torch, or `memgen.accelerate` where it supports the model."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import torch

from memgen import accelerate
from memgen.core.model import DGM, Batch, GenerativeModel
from memgen.recipes.settings import Objective

if TYPE_CHECKING:
    from memgen.accelerate.single import SingleStep
    from memgen.accelerate.step import PlannedStep


def execution_path() -> str:
    """The path for the record of a run, whose result depends on it in the last bits."""
    return "accelerated" if accelerate.available() else "plain"


@contextmanager
def flushed_denormals() -> Iterator[None]:
    """Inside, numbers below 1e-38 count as zero: on all threads where there is the C library, else on this one.

    The normalised weights of most of K samples are of the order e^-100, so that the gradients which they scale are
    denormal, and a processor multiplies those many times more slowly.
    """
    before = bool((torch.tensor([1e-30]) * 1e-10 == 0).all())
    _flush(True)
    try:
        yield
    finally:
        _flush(before)


def _flush(on: bool) -> None:
    torch.set_flush_denormal(on)
    accelerate.flush_denormals(on)


class PlannedSteps:
    """The planned steps of a model so far, by objective, rows of a batch and number of threads."""

    def __init__(self) -> None:
        self.steps: dict[tuple[Objective, int, int], PlannedStep | SingleStep | None] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> PlannedSteps:
        return PlannedSteps()  # a step holds addresses of its model's tensors

    def find(self, model: GenerativeModel, objective: Objective, batch: Batch) -> PlannedStep | SingleStep | None:
        """The planned step for this batch; None where autograd is used."""
        if batch.observed is not None or not isinstance(model, DGM):
            return None
        key = objective, len(batch.x), torch.get_num_threads()
        step = self.steps.get(key)
        if key not in self.steps or (step is not None and step.moved):
            step = self.steps[key] = accelerate.training_step(model, objective, len(batch.x))
        return step if step is not None and step.alone else None
