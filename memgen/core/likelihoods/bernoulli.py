"""Binary columns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import linear
from memgen.core.likelihoods.base import Head, IndependentColumns, set_linear
from memgen.errors import MemgenError

RAREST = 1e-4
"""Initial probability of the value that a constant column never has."""


@dataclass(frozen=True)
class BernoulliColumns(IndependentColumns):
    """p(x_d = 1) = sigmoid(l_d)."""

    logits: Float[Tensor, "*rows columns"]

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """x*l - log(1 + e^l)"""
        return x * self.logits - F.softplus(self.logits)

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        return torch.sigmoid(self.logits)

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return (self.logits > 0).to(self.logits)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return (u >= torch.sigmoid(-self.logits)).to(self.logits)

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        return torch.sigmoid(-self.logits).where(x < 1, 1).where(x >= 0, 0)


class Bernoulli(Head):
    """A linear map to one logit per column.

    >>> head = Bernoulli(features=4, columns=3)
    >>> p = head(torch.zeros(2, 4))
    >>> p.mean[0]
    tensor([0.5000, 0.5000, 0.5000], grad_fn=<SelectBackward0>)
    """

    binary = True

    def __init__(self, features: int, columns: int) -> None:
        super().__init__(columns)
        self.logits = linear(features, columns)

    def forward(self, h: Float[Tensor, "*rows features"]) -> BernoulliColumns:
        return BernoulliColumns(self.logits(h))

    def start(self, weight: Float[Tensor, "columns features"], mean: Float[Tensor, " columns"], sigma: float) -> None:
        """The logit whose sigmoid has this value and slope at h = 0."""
        p = mean.clamp(0.01, 0.99)
        set_linear(self.logits, weight / (p * (1 - p)).unsqueeze(1), torch.logit(p))

    @torch.no_grad()
    def centre(self, mean: Float[Tensor, " columns"]) -> None:
        self.logits.bias.copy_(torch.logit(mean, eps=RAREST))

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        if bool(((x < 0) | (x > 1)).any()):
            low, high = x[~x.isnan()].aminmax()
            raise MemgenError(
                f"a Bernoulli likelihood needs values in [0, 1], these go from {low:g} to {high:g}; "
                "rescale them or choose another likelihood"
            )
        if bool(((x > 0) & (x < 1)).any()):
            raise MemgenError(
                "a Bernoulli likelihood gives probabilities to 0 and 1 only, and these values lie between; say how "
                "they are binarised (memgen.binarise, or a Dataset with stochastic=True for training)"
            )
