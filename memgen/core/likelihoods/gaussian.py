"""Real columns, and the Gaussians of all latent levels."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import linear
from memgen.core.likelihoods.base import Head, IndependentColumns

LOG_2PI = math.log(2 * math.pi)


@dataclass(frozen=True)
class GaussianColumns(IndependentColumns):
    """x_d ~ N(mean_d, exp(log_variance_d)); also every q(z|.) and p(z|.), the only kind of latent variable."""

    mean: Float[Tensor, "*rows columns"]
    log_variance: Float[Tensor, "*rows columns"]

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """-(log 2 pi + log s^2 + (x - m)^2 / s^2) / 2"""
        return -0.5 * (LOG_2PI + self.log_variance + (x - self.mean) ** 2 * torch.exp(-self.log_variance))

    def reparameterise(
        self, noise: Float[Tensor, "*noise columns"]
    ) -> tuple[Float[Tensor, "*noise columns"], Float[Tensor, "*noise"]]:
        """z = m + s*eps and log q(z) = -sum_d (log 2 pi + log s_d^2 + eps_d^2) / 2, which needs no division by s."""
        z = torch.addcmul(self.mean, torch.exp(0.5 * self.log_variance), noise)
        return z, -0.5 * (LOG_2PI + self.log_variance + noise**2).sum(-1)

    def detach(self) -> GaussianColumns:
        return GaussianColumns(self.mean.detach(), self.log_variance.detach())

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return self.mean

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        # A float can round to 0 or 1, whose quantiles are infinite.
        edge = torch.finfo(u.dtype).eps / 2
        return self.reparameterise(torch.special.ndtri(u.clamp(edge, 1 - edge)))[0]

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        result: Tensor = torch.special.ndtr((x - self.mean) * torch.exp(-0.5 * self.log_variance))
        return result


class Gaussian(Head):
    """Two linear maps: to the mean and to the log-variance; sigma^2 = exp(raw) + floor^2.

    The floor prevents an infinite density of columns with nearly constant or integer values. It is added to the
    variance instead of a clamp, so that the gradient does not vanish abruptly.
    """

    def __init__(self, features: int, columns: int, floor: float = 0.0) -> None:
        super().__init__(columns)
        self.floor = floor
        self.mean = linear(features, columns)
        self.log_variance = linear(features, columns)

    @torch.no_grad()
    def centre(self, mean: Float[Tensor, " columns"]) -> None:
        self.mean.bias.copy_(mean)

    def forward(self, h: Float[Tensor, "*rows features"]) -> GaussianColumns:
        raw = self.log_variance(h)
        if self.floor:
            raw = torch.logaddexp(raw, raw.new_tensor(2 * math.log(self.floor)))
        return GaussianColumns(self.mean(h), raw)
