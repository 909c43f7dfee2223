"""The steps that are written down, found again by what they are for."""

from __future__ import annotations

from typing import Any

import torch

from memgen.accelerate.single import Single
from memgen.accelerate.step import Step, fits
from memgen.core.model import DGM, Batch, Levels
from memgen.recipes.settings import Objective


def step_of(model: DGM, objective: Objective, samples: int, B: int) -> Step | Single:
    """The step with noise of so many samples of each of B rows."""
    return (Single if objective.estimator == "single" else Step)(model, objective, samples, B)


class Written:
    """The steps of a model that are written down so far, by objective, samples, B and number of threads."""

    def __init__(self) -> None:
        self.steps: dict[tuple[Objective, int, int, int], Step | Single | None] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Written:
        return Written()  # a step knows its model by addresses

    def find(self, model: DGM, objective: Objective, batch: Batch, noise: Levels) -> Step | Single | None:
        """The step for this batch; None if it is autograd's."""
        if batch.observed is not None:
            return None
        key = objective, len(noise[0]), len(batch.x), torch.get_num_threads()
        step = self.steps.get(key)
        if key not in self.steps or (step is not None and step.moved):
            step = self.steps[key] = step_of(model, *key[:3]) if fits(model, objective) else None
        return step if step is not None and step.alone else None
