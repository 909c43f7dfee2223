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
    """A step whose noise has K + 1 samples: K are weighed, the last one makes the choice (`objective.single`), and what
    is chosen goes through a step of its own, as at K = 1. Q is gone through twice, which is little beside K times P.
    """

    def __init__(self, model: DGM, objective: Objective, K: int, B: int) -> None:
        plain = replace(objective, estimator="plain")
        weighing = replace(plain, local_reconstruction=())  # it sees the chosen sample alone
        self.every = PlannedStep(model, weighing, K, B, backward=False)
        self.chosen = PlannedStep(model, plain, 1, B)

    def compile(self, workers: int) -> None:
        self.every.compile(workers)
        self.chosen.compile(workers)

    @property
    def moved(self) -> bool:
        return self.chosen.moved

    @property
    def alone(self) -> bool:
        return self.chosen.alone

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Levels) -> Float[Tensor, "2"]:
        every = (noise[0][:-1],)
        v, bound = self.every.weigh(batch, every)
        loss_of_one, bound_of_one = self.chosen(batch, choose(v, every, noise[0][-1])).unbind()
        return torch.stack([loss_of_one + bound_of_one - bound, bound])
