"""Columns of whole numbers, or of other numbers on a grid."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import linear
from memgen.core.likelihoods.base import IndependentColumns, Standardised, set_linear

LOGISTIC = math.sqrt(3) / math.pi
"""The scale of a logistic distribution of unit variance."""
NARROWEST = 0.02
"""The least scale, in steps of the grid; nearly all probability then lies on one or two of its points."""


@dataclass(frozen=True)
class IntegerColumns(IndependentColumns):
    """A logistic distribution rounded to the grid ..., -step, 0, step, 2 step, ...:

    P(x) = S((x + step/2 - m)/s) - S((x - step/2 - m)/s), S = sigmoid. It is a probability, not a density.
    """

    location: Float[Tensor, "*rows columns"]
    scale: Float[Tensor, "*rows columns"]
    step: Float[Tensor, " columns"]

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """log S(a) + log S(-b) + log(1 - e^(b-a)), which is log(S(a) - S(b)) without cancellation."""
        above, below = ((x + side * self.step / 2 - self.location) / self.scale for side in (1, -1))
        return F.logsigmoid(above) + F.logsigmoid(-below) + torch.log(-torch.expm1(-self.step / self.scale))

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        """That of the distribution before rounding; the error is at most half a step, and far less if s is larger."""
        return self.location

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return self._rounded(self.location)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        edge = torch.finfo(u.dtype).eps / 2
        return self._rounded(self.location + self.scale * torch.logit(u.clamp(edge, 1 - edge)))

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        last = torch.floor(x / self.step + 1e-3) * self.step  # a point of the grid may lie a rounding error below it
        return torch.sigmoid((last + self.step / 2 - self.location) / self.scale)

    def _rounded(self, x: Tensor) -> Tensor:
        return torch.round(x / self.step) * self.step


class Integer(Standardised):
    """Two linear maps: to the location and to log s, in units of the standard deviation of training rows."""

    step: Tensor

    def __init__(self, features: int, steps: Sequence[float], floor: float = 0.0) -> None:
        super().__init__(len(steps))
        self.floor = floor
        self.location = linear(features, len(steps))
        self.log_scale = linear(features, len(steps))
        self.register_buffer("step", torch.tensor(steps, dtype=torch.float32), persistent=False)

    def forward(self, h: Float[Tensor, "*rows features"]) -> IntegerColumns:
        scale = LOGISTIC * self.scale * (torch.exp(self.log_scale(h)) + self.floor) + NARROWEST * self.step
        return IntegerColumns(self.shift + self.scale * self.location(h), scale, self.step)

    def start(self, weight: Float[Tensor, "columns features"], mean: Float[Tensor, " columns"], sigma: float) -> None:
        set_linear(self.location, weight, mean)
        log_scale = math.log(max(sigma - self.floor, 0.1 * sigma))
        set_linear(self.log_scale, torch.zeros_like(weight), torch.full_like(mean, log_scale))
