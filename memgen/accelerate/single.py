"""The step of the estimator `single`: all samples forward, one of them backward."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.accelerate.step import PlannedStep
from memgen.core.model import DGM, Batch, Levels
from memgen.core.objective import choose
from memgen.recipes.settings import Objective


class SingleStep:
    """A step whose noise has K + 1 samples (`objective.single`).

    The first K are weighed without a backward pass, and the last one is used for the choice. The chosen sample is the
    input of a separate step with K = 1. Q runs twice, which costs little compared with K times P.
    """

    def __init__(self, model: DGM, objective: Objective, K: int, B: int) -> None:
        plain = replace(objective, estimator="plain")
        weighing = replace(plain, local_reconstruction=())  # it uses the chosen sample alone
        self.weighing = PlannedStep(model, weighing, K, B, backward=False)
        self.chosen = PlannedStep(model, plain, 1, B)

    def compile(self, workers: int) -> None:
        self.weighing.compile(workers)
        self.chosen.compile(workers)

    @property
    def moved(self) -> bool:
        return self.chosen.moved

    @property
    def alone(self) -> bool:
        return self.chosen.alone

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Levels) -> Float[Tensor, "2"]:
        candidates = (noise[0][:-1],)
        v, bound = self.weighing.weigh(batch, candidates)
        loss_of_one, bound_of_one = self.chosen(batch, choose(v, candidates, noise[0][-1])).unbind()
        return torch.stack([loss_of_one + bound_of_one - bound, bound])
