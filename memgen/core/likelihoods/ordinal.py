"""Columns of ordered levels."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from memgen.core.layers import linear
from memgen.core.likelihoods.base import Standardised, set_linear
from memgen.core.likelihoods.categorical import CategoricalColumns, check_codes
from memgen.core.likelihoods.integer import LOGISTIC

FIRST, LAST = -2.0, 2.0
"""The first and the last cut point before training."""


class Ordinal(Standardised):
    """The ordered logit (McCullagh, 1980): a linear map to a location m, and cut points c_0 < c_1 < ... of each column:

    P(x <= k) = S(c_k - m), S = sigmoid. The input of Q is the standardised code, one number per column.

    >>> Ordinal(features=4, columns=2, levels=3)(torch.zeros(1, 4)).probabilities.sum(-1)
    tensor([[1., 1.]], grad_fn=<SumBackward1>)
    """

    def __init__(self, features: int, columns: int, levels: int) -> None:
        super().__init__(columns)
        self.levels = levels
        self.location = linear(features, columns)
        gap = torch.tensor((LAST - FIRST) / max(1, levels - 2))
        self.first = nn.Parameter(torch.full((columns,), FIRST if levels > 2 else 0.0))
        self.gaps = nn.Parameter(inverse_softplus(gap).expand(columns, max(0, levels - 2)).clone())
        self.shift.fill_((levels - 1) / 2)

    @property
    def cuts(self) -> Float[Tensor, "columns levels_1"]:
        """The cut points of every column."""
        return self.first.unsqueeze(1) + F.pad(F.softplus(self.gaps).cumsum(1), (1, 0))

    def forward(self, h: Float[Tensor, "*rows features"]) -> CategoricalColumns:
        """log P(k) = log S(c_k - m) + log S(m - c_{k-1}) + log(1 - e^{c_{k-1} - c_k}), where these cut points exist."""
        if self.levels == 1:
            return CategoricalColumns(self.location(h).unsqueeze(-1))
        distance = self.cuts - self.location(h).unsqueeze(-1)
        inner = torch.log(-torch.expm1(-F.softplus(self.gaps)))
        log_p = F.pad(F.logsigmoid(distance), (0, 1)) + F.pad(F.logsigmoid(-distance), (1, 0)) + F.pad(inner, (1, 1))
        return CategoricalColumns(log_p)

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        check_codes(x, self.levels, "an ordinal column")

    def start(self, weight: Float[Tensor, "columns features"], mean: Float[Tensor, " columns"], sigma: float) -> None:
        """A logistic distribution of deviation sigma around the standardised code mean + weight h, cut halfway between
        the codes."""
        unit = LOGISTIC * max(sigma, 0.05)
        set_linear(self.location, weight / unit, mean / unit)
        with torch.no_grad():
            self.first.copy_((0.5 - self.shift) / self.scale / unit)
            self.gaps.copy_(inverse_softplus(1 / (self.scale * unit)).unsqueeze(1).expand_as(self.gaps))


def inverse_softplus(y: Tensor) -> Tensor:
    """log(e^y - 1)

    >>> F.softplus(inverse_softplus(torch.tensor([0.5, 80.0])))
    tensor([ 0.5000, 80.0000])
    """
    return y + torch.log(-torch.expm1(-y))
