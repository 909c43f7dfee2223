"""Columns of counts."""

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
from memgen.errors import MemgenError

LARGEST = 1e4
"""Upper limit of r, the number of failures. The distribution is then close to a Poisson distribution."""


@dataclass(frozen=True)
class NegativeBinomialColumns(IndependentColumns):
    """x_d = 0, 1, 2, ... with mean m and variance m + m^2 / r: a Poisson whose rate varies."""

    mean: Float[Tensor, "*rows columns"]
    r: Float[Tensor, "*rows columns"]

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """log G(x+r) - log G(r) - log x! + r log(r/(r+m)) + x log(m/(r+m))"""
        # In float64: for large x, m or r these are large numbers that nearly cancel.
        r, m, x = self.r.double(), self.mean.double(), x.double()
        log_coefficient = torch.lgamma(x + r) - torch.lgamma(r) - torch.lgamma(x + 1)
        return (log_coefficient - r * torch.log1p(m / r) - x * torch.log1p(r / m)).to(self.mean)

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return torch.floor((self.mean * (1 - 1 / self.r)).clamp_min(0))

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        from scipy.stats import nbinom  # takes a third of a second to import

        edge = torch.finfo(u.dtype).eps / 2
        r, m, u = (v.detach().double().cpu() for v in (self.r, self.mean, u.clamp(edge, 1 - edge)))
        return torch.from_numpy(nbinom.ppf(u.numpy(), r.numpy(), (r / (r + m)).numpy())).to(self.mean)

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        from scipy.stats import nbinom

        r, m, x = (v.detach().double().cpu() for v in (self.r, self.mean, x))
        return torch.from_numpy(nbinom.cdf(x.numpy(), r.numpy(), (r / (r + m)).numpy())).to(self.mean)


class Count(Head):
    """Two linear maps: to log m, relative to the column's mean, and to log r. Q reads log(1 + x), standardised."""

    shift: Tensor
    scale: Tensor
    unit: Tensor

    def __init__(self, features: int, columns: int) -> None:
        super().__init__(columns)
        self.log_mean = linear(features, columns)
        self.log_r = linear(features, columns)
        self.register_buffer("shift", torch.zeros(columns))
        self.register_buffer("scale", torch.ones(columns))
        self.register_buffer("unit", torch.ones(columns))

    def forward(self, h: Float[Tensor, "*rows features"]) -> NegativeBinomialColumns:
        # Without a limit the mean could overflow in training. No count of a column is e^20 times its mean.
        mean = self.unit * torch.exp(self.log_mean(h).clamp(-20, 20))
        r = LARGEST * torch.sigmoid(self.log_r(h) - math.log(LARGEST))
        return NegativeBinomialColumns(mean, r.clamp_min(1e-4))

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return (torch.log1p(x) - self.shift) / self.scale

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        if bool(((x < 0) | (x > x.floor())).any()):
            raise MemgenError("a count column needs whole numbers from 0 on")

    def start(self, weight: Float[Tensor, "columns features"], mean: Float[Tensor, " columns"], sigma: float) -> None:
        """log m is linear in h like log(1 + x), around the column's mean; r corresponds to a deviation sigma of it."""
        scale = self.scale.to(weight)
        set_linear(self.log_mean, scale.unsqueeze(1) * weight, scale * mean)
        log_r = -2 * torch.log((sigma * scale).clamp(0.05, 3.0))
        set_linear(self.log_r, torch.zeros_like(weight), log_r)

    def measured(self, x: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, "rows columns"], ...]:
        return torch.log1p(x.double()), x

    def set_units(self, units: Sequence[Unit]) -> None:
        logarithms, counts = units
        self.shift.copy_(logarithms.mean)
        self.scale.copy_(logarithms.deviation)
        self.unit.copy_(counts.mean.where(counts.known > 0, 1.0).clamp_min(1e-3))
