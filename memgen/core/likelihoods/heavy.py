"""Columns of numbers with heavy tails."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import linear
from memgen.core.likelihoods.base import Head, IndependentColumns, set_linear
from memgen.core.likelihoods.units import Unit

LOG_PEAK = math.log(3 / 8)
"""log of the density of Student's t with 4 degrees of freedom at 0."""


@dataclass(frozen=True)
class StudentColumns(IndependentColumns):
    """x = m + s t, where t has Student's distribution with 4 degrees of freedom:

    p(t) = 3/8 (1 + t^2/4)^(-5/2). With r = t / sqrt(4 + t^2), P(t' <= t) = 1/2 + (3 r - r^3)/4, which has an inverse in
    closed form: r = 2 sin(arcsin(2u - 1)/3).
    """

    location: Float[Tensor, "*rows columns"]
    log_scale: Float[Tensor, "*rows columns"]

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """log 3/8 - 5/2 log(1 + t^2/4) - log s"""
        t = (x - self.location) * torch.exp(-self.log_scale)
        return LOG_PEAK - 2.5 * torch.log1p(0.25 * t * t) - self.log_scale

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        return self.location

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return self.location

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        edge = torch.finfo(u.dtype).eps
        angle = torch.asin(2 * torch.sin(torch.asin(2 * u.clamp(edge, 1 - edge) - 1) / 3))  # r = sin(angle)
        return self.location + torch.exp(self.log_scale) * 2 * torch.tan(angle)

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        r = torch.sin(torch.atan((x - self.location) * torch.exp(-self.log_scale) / 2))  # of an infinity it is 1
        return 0.5 + r * (3 - r * r) / 4


class HeavyTailed(Head):
    """Two linear maps: to the location and to log s. Q reads arcsinh(x), standardised, in which no value is far out.

    x should lie around 0 with a spread of about 1, by its quartiles: its moments are those of a few values far out.
    """

    shift: Tensor
    scale: Tensor

    def __init__(self, features: int, columns: int, floor: float = 0.0) -> None:
        super().__init__(columns)
        self.floor = floor
        self.location = linear(features, columns)
        self.log_scale = linear(features, columns)
        self.register_buffer("shift", torch.zeros(columns))
        self.register_buffer("scale", torch.ones(columns))

    def forward(self, h: Float[Tensor, "*rows features"]) -> StudentColumns:
        raw = self.log_scale(h)
        return StudentColumns(
            self.location(h), torch.logaddexp(raw, raw.new_tensor(math.log(self.floor))) if self.floor else raw
        )

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return (torch.asinh(x) - self.shift) / self.scale

    def measured(self, x: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, "rows columns"]]:
        return (torch.asinh(x.double()),)

    def set_units(self, units: Sequence[Unit]) -> None:
        self.shift.copy_(units[0].mean)
        self.scale.copy_(units[0].deviation)

    def start(self, weight: Float[Tensor, "columns features"], mean: Float[Tensor, " columns"], sigma: float) -> None:
        """sinh of the standardised encoding, to first order around h = 0."""
        centre = self.shift + self.scale * mean
        slope = self.scale * torch.cosh(centre)
        set_linear(self.location, slope.unsqueeze(1) * weight, torch.sinh(centre))
        # The variance of t is 2.
        set_linear(self.log_scale, torch.zeros_like(weight), torch.log(slope * sigma / math.sqrt(2)))
