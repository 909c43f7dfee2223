"""Columns of amounts, many of which are zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import linear
from memgen.core.likelihoods.base import Head, IndependentColumns, set_linear
from memgen.core.likelihoods.standard import LogNormalColumns, Positive
from memgen.core.likelihoods.units import Unit
from memgen.errors import MemgenError


@dataclass(frozen=True)
class ZeroInflatedColumns(IndependentColumns):
    """x = 0 with probability S(l), S = sigmoid; else x is log-normal.

    log p is the log-probability of a zero, and of any other value the log-density: the two parts add up to one.
    """

    logits: Float[Tensor, "*rows columns"]
    positive: LogNormalColumns

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        density = self.positive.log_probs(x.where(x > 0, 1)) + F.logsigmoid(-self.logits)
        return torch.where(x > 0, density, F.logsigmoid(self.logits))

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        return torch.sigmoid(-self.logits) * self.positive.mean

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        """Zero where it is more probable than all other values together, else the mode of these."""
        return self.positive.mode.where(self.logits < 0, 0)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        zero, rest = torch.sigmoid(self.logits), torch.sigmoid(-self.logits)
        inside = ((u - zero) / rest.clamp_min(torch.finfo(u.dtype).tiny)).clamp(0, 1)
        return self.positive.icdf(inside).where(u > zero, 0)

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        below = torch.sigmoid(self.logits) + torch.sigmoid(-self.logits) * self.positive.cdf(x)
        return below.where(x >= 0, 0)


class ZeroInflated(Head):
    """A linear map to the log-odds of a zero, and the head of a positive column. Q reads, for each column, whether x is
    zero, and log x, standardised, or 0 for a zero.
    """

    def __init__(self, features: int, columns: int, floor: float = 0.0) -> None:
        super().__init__(columns, 2 * columns)
        self.logits = linear(features, columns)
        self.positive = Positive(features, columns, floor)

    def forward(self, h: Float[Tensor, "*rows features"]) -> ZeroInflatedColumns:
        return ZeroInflatedColumns(self.logits(h), self.positive(h))

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]:
        logarithm = self.positive.encode(x.where(x > 0, 1)).where(x > 0, 0)
        return torch.stack([(x <= 0).to(x), logarithm], -1).flatten(-2)

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        if bool((x < 0).any()):
            raise MemgenError(f"a zero_inflated column needs values from 0 on, the least is {x[~x.isnan()].min():g}")

    def measured(self, x: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, "rows columns"]]:
        return (torch.log(x.double().where(x > 0, torch.nan)),)

    def set_units(self, units: Sequence[Unit]) -> None:
        self.positive.set_units(units)

    def start(self, weight: Float[Tensor, "encoded features"], mean: Float[Tensor, " encoded"], sigma: float) -> None:
        zero = mean[::2].clamp(0.01, 0.99)
        set_linear(self.logits, weight[::2] / (zero * (1 - zero)).unsqueeze(1), torch.logit(zero))
        self.positive.start(weight[1::2], mean[1::2], sigma)
