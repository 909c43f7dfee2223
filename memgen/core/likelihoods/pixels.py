"""Pixels with a few levels, such as the 256 of a byte."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import linear
from memgen.core.likelihoods.base import Head, IndependentColumns
from memgen.core.likelihoods.units import Unit
from memgen.errors import MemgenError

TOP = 255
"""The largest level v of a byte; x = v/255."""
FLOOR = 0.05
"""The smallest scale in units of a level, at which nearly all of the probability is on one level."""


@dataclass(frozen=True)
class DiscretisedLogisticColumns(IndependentColumns):
    """A logistic distribution rounded to levels (Salimans and others, 2017):

    p(v) = S((v + 1/2 - m)/s) - S((v - 1/2 - m)/s), S = sigmoid. The lowest level also has all probability below it, the
    highest all above it.
    """

    location: Float[Tensor, "*rows columns"]
    scale: Float[Tensor, "*rows columns"]
    top: int = TOP
    """The largest level v; x = v/top."""

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """log S(a) + log S(-b) + log(1 - e^(b-a)), which is log(S(a) - S(b)) without cancellation."""
        above = (x + 0.5 / self.top - self.location) / self.scale
        below = (x - 0.5 / self.top - self.location) / self.scale
        lowest, highest = x < 0.5 / self.top, x > 1 - 0.5 / self.top
        inner = torch.log(-torch.expm1(-1 / (self.top * self.scale)))
        return (
            F.logsigmoid(above).masked_fill(highest, 0)
            + F.logsigmoid(-below).masked_fill(lowest, 0)
            + inner.masked_fill(lowest | highest, 0)
        )

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        """sum_v P(V > v) / top, as an integral; the error is a fraction of a level."""
        return self.scale * (F.softplus(self.location / self.scale) - F.softplus((self.location - 1) / self.scale))

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        """The level of the location, or the lowest or highest level if that is more probable."""
        levels = torch.stack([self._level(self.location), *(torch.full_like(self.location, v) for v in (0, 1))])
        best = torch.stack([self.log_probs(level) for level in levels]).argmax(0, keepdim=True)
        return levels.gather(0, best)[0]

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        edge = torch.finfo(u.dtype).eps / 2
        return self._level(self.location + self.scale * torch.logit(u.clamp(edge, 1 - edge)))

    def _level(self, x: Tensor) -> Tensor:
        return torch.round(self.top * x).clamp(0, self.top) / self.top


class DiscretisedLogistic(Head):
    """Two linear maps: to the location and to the logarithm of the scale, in units of the training rows' pixels."""

    shift: Tensor
    unit: Tensor

    def __init__(self, features: int, columns: int, top: int = TOP) -> None:
        super().__init__(columns)
        self.top = top
        self.location = linear(features, columns)
        self.log_scale = linear(features, columns)
        self.register_buffer("shift", torch.full((columns,), 0.5))
        self.register_buffer("unit", torch.full((columns,), 0.25))

    def forward(self, h: Float[Tensor, "*rows features"]) -> DiscretisedLogisticColumns:
        location = self.shift + self.unit * self.location(h)
        # sqrt(3)/pi is the scale of a logistic distribution of unit variance.
        scale = 0.5513 * self.unit * torch.exp(self.log_scale(h)) + FLOOR / self.top
        return DiscretisedLogisticColumns(location, scale, self.top)

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return (x - self.shift) / self.unit

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        between_levels = (self.top * x - torch.round(self.top * x)).abs() > 1e-3
        if bool(((x < 0) | (x > 1) | between_levels).any()):
            raise MemgenError(f"pixels are v/{self.top} with v = 0 ... {self.top}; these are others")

    def measured(self, x: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, "rows columns"]]:
        return (x,)

    def set_units(self, units: Sequence[Unit]) -> None:
        self.shift.copy_(units[0].mean)
        # The unit of an almost constant pixel is limited, because Q's input is divided by it.
        self.unit.copy_(units[0].deviation.where(units[0].deviation < 1, 0).clamp_min(0.02))
