"""Columns of categories."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import linear
from memgen.core.likelihoods.base import Head, IndependentColumns, set_linear
from memgen.errors import MemgenError


@dataclass(frozen=True)
class CategoricalColumns(IndependentColumns):
    """x_d in {0, ..., C-1}, p(x_d = c) = softmax(l_d)_c. Values are codes, stored as floats like every other column."""

    logits: Float[Tensor, "*rows columns categories"]

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        log_p = torch.log_softmax(self.logits, -1)
        code = x.long().expand(log_p.shape[:-1]).unsqueeze(-1)
        return log_p.gather(-1, code).squeeze(-1)

    @property
    def probabilities(self) -> Float[Tensor, "*rows columns categories"]:
        return torch.softmax(self.logits, -1)

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        """The expected code, which is meaningful for ordered categories, such as grey levels; otherwise use mode."""
        codes = torch.arange(self.logits.shape[-1]).to(self.logits)
        return self.probabilities @ codes

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return self.logits.argmax(-1).to(self.logits)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """The number of codes whose cumulative probability is at most u."""
        below = self.probabilities.cumsum(-1)[..., :-1]
        return (below <= u.unsqueeze(-1)).sum(-1).to(self.logits)

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        cumulative = self.probabilities.cumsum(-1)
        last = self.logits.shape[-1] - 1
        code = x.floor().clamp(0, last).long().expand(cumulative.shape[:-1]).unsqueeze(-1)
        return cumulative.gather(-1, code).squeeze(-1).where(x < last, 1).where(x >= 0, 0)


class Categorical(Head):
    """A linear map to one logit per column and category; the input of Q is one-hot."""

    def __init__(self, features: int, columns: int, categories: int) -> None:
        super().__init__(columns, columns * categories)
        self.categories = categories
        self.logits = linear(features, columns * categories)

    def forward(self, h: Float[Tensor, "*rows features"]) -> CategoricalColumns:
        return CategoricalColumns(self.logits(h).unflatten(-1, (self.columns, self.categories)))

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]:
        return F.one_hot(x.long(), self.categories).flatten(-2).to(x)

    def start(self, weight: Float[Tensor, "encoded features"], mean: Float[Tensor, " encoded"], sigma: float) -> None:
        """The logits whose softmax has these values and slopes at h = 0."""
        p = mean.clamp(0.01, 0.99)
        set_linear(self.logits, weight / p.unsqueeze(1), torch.log(p))

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        check_codes(x, self.categories, "a categorical likelihood")


def check_codes(x: Float[Tensor, "*rows columns"], levels: int, what: str) -> None:
    """Raise an error unless all values are codes 0, 1, ... of the levels; NaN is missing."""
    if bool(((x < 0) | (x >= levels) | (x > x.floor())).any()):
        low, high = x[~x.isnan()].aminmax()
        raise MemgenError(
            f"{what} with {levels} categories needs whole numbers from 0 to {levels - 1}, these values go from "
            f"{low:g} to {high:g}"
        )
