"""Columns of real and of positive numbers, which are standardised inside the model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.likelihoods.base import Head, IndependentColumns, Standardised, set_linear
from memgen.core.likelihoods.gaussian import Gaussian, GaussianColumns
from memgen.core.likelihoods.units import Unit
from memgen.errors import MemgenError


@dataclass(frozen=True)
class ScaledColumns(IndependentColumns):
    """x = shift + scale * y. Everything is computed in units of y, whose squares cannot overflow."""

    y: GaussianColumns
    shift: Float[Tensor, " columns"]
    scale: Float[Tensor, " columns"]

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """log p(y) - log scale"""
        return self.y.log_probs((x - self.shift) / self.scale) - torch.log(self.scale)

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        return self.shift + self.scale * self.y.mean

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return self.mean

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return self.shift + self.scale * self.y.icdf(u)

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        return self.y.cdf((x - self.shift) / self.scale)


class Real(Standardised):
    """x = shift + scale * y with y Gaussian: shift and scale are the mean and the standard deviation of training rows.

    The input of Q is y; the density is that of x. sigma >= floor * scale, which prevents an infinite density of columns
    with whole or repeated numbers.
    """

    def __init__(self, features: int, columns: int, floor: float = 0.0) -> None:
        super().__init__(columns)
        self.inner = Gaussian(features, columns, floor)

    def forward(self, h: Float[Tensor, "*rows features"]) -> ScaledColumns:
        return ScaledColumns(self.inner(h), self.shift, self.scale)

    def start(self, weight: Float[Tensor, "columns features"], mean: Float[Tensor, " columns"], sigma: float) -> None:
        set_linear(self.inner.mean, weight, mean)
        # `Gaussian.forward` adds the squared floor to the variance.
        variance = max(sigma**2 - self.inner.floor**2, 0.1 * sigma**2)
        set_linear(self.inner.log_variance, torch.zeros_like(weight), torch.full_like(mean, math.log(variance)))


@dataclass(frozen=True)
class LogNormalColumns(IndependentColumns):
    """log x_d has the distribution `log`."""

    log: ScaledColumns

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """log N(log x) - log x"""
        y = _log(x)
        return self.log.log_probs(y) - y

    @property
    def variance(self) -> Float[Tensor, "*rows columns"]:
        """The variance of log x."""
        return self.log.scale.square() * torch.exp(self.log.y.log_variance)

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        return torch.exp(self.log.mean + 0.5 * self.variance)

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return torch.exp(self.log.mean - self.variance)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return torch.exp(self.log.icdf(u))

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        return self.log.cdf(_log(x)).where(x > 0, 0)


def _log(x: Tensor) -> Tensor:
    """log x, finite also for the entries of missing values, whose x may be zero and whose results are masked."""
    return torch.log(x.clamp_min(torch.finfo(x.dtype).tiny))


class Positive(Head):
    """log x is Real: x has a log-normal distribution."""

    def __init__(self, features: int, columns: int, floor: float = 0.0) -> None:
        super().__init__(columns)
        self.log = Real(features, columns, floor)

    def forward(self, h: Float[Tensor, "*rows features"]) -> LogNormalColumns:
        return LogNormalColumns(self.log(h))

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return self.log.encode(_log(x))

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        if bool((x <= 0).any()):
            raise MemgenError(f"a positive column needs values above 0, the least is {x[~x.isnan()].min():g}")

    def measured(self, x: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, "rows columns"]]:
        return (torch.log(x.double()),)

    def set_units(self, units: Sequence[Unit]) -> None:
        self.log.set_units(units)

    def start(self, weight: Float[Tensor, "columns features"], mean: Float[Tensor, " columns"], sigma: float) -> None:
        self.log.start(weight, mean, sigma)
