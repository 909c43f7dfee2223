"""Columns that are given, by their values or by ranges, and a distribution restricted to the ranges."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from memgen.core.likelihoods.base import Factorised, IndependentColumns


@dataclass(frozen=True)
class Given:
    """A condition on one row: x_d is given, or low_d < x_d <= high_d.

    >>> Given.of([1.0, torch.nan, torch.nan], low={1: 0.5}).ranged
    tensor([False,  True, False])
    """

    x: Float[Tensor, " D"]
    """NaN in columns that are not given by a value."""
    low: Float[Tensor, " D"]
    high: Float[Tensor, " D"]
    """Infinite in columns that are not given by a range. For whole numbers the bounds are halves."""

    @staticmethod
    def of(x: list[float], low: dict[int, float] | None = None, high: dict[int, float] | None = None) -> Given:
        """The condition with these values, NaN for none, and these bounds by column."""
        values = torch.tensor(x, dtype=torch.float64)
        return Given(values, _bounds(len(x), low or {}, -1), _bounds(len(x), high or {}, 1))

    @property
    def fixed(self) -> Bool[Tensor, " D"]:
        return ~self.x.isnan()

    @property
    def ranged(self) -> Bool[Tensor, " D"]:
        return self.low.isfinite() | self.high.isfinite()

    def within(self, limits: Given) -> Given:
        """The ranges of both, in all columns in which they overlap; in any other column the own one."""
        low, high = torch.maximum(self.low, limits.low), torch.minimum(self.high, limits.high)
        both = low < high
        return Given(self.x, low.where(both, self.low), high.where(both, self.high))


def _bounds(columns: int, bounds: dict[int, float], sign: int) -> Float[Tensor, " D"]:
    result = torch.full((columns,), sign * torch.inf, dtype=torch.float64)
    for column, bound in bounds.items():
        result[column] = bound
    return result


@dataclass(frozen=True)
class RestrictedColumns(IndependentColumns):
    """p(x|z) 1[low < x <= high], which is not normalised: log P(low < x_d <= high) stands for an unobserved column."""

    p: Factorised
    given: Given

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        return self.p.log_probs(x)

    def log_prob(
        self, x: Float[Tensor, "*batch columns"], observed: Bool[Tensor, "*batch columns"] | None = None
    ) -> Float[Tensor, "*rows"]:
        """log p of the observed columns, and log P of the ranges of all others."""
        if observed is None:
            return self.p.log_prob(x)
        low, high = self._ends()
        ranges = torch.log((high - low).clamp_min(0)).where(self.given.ranged & ~observed, 0)
        return self.p.log_prob(x, observed) + ranges.sum(-1)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """The quantile of the column restricted to its range: icdf(F(low) + u (F(high) - F(low)))."""
        low, high = self._ends()
        inside = low + u * (high - low)
        # Strictly between the two, or a rounding error might lead to the neighbour of a whole number at the end.
        inside = torch.minimum(torch.maximum(inside, torch.nextafter(low, high)), torch.nextafter(high, low))
        return self.p.icdf(inside.where(self.given.ranged, u)).clamp(self.given.low, self.given.high)

    def sample(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """A draw; columns without a range are drawn as by p itself, which may have limits of its own."""
        limits = getattr(self.p, "limits", None)
        inside = self if limits is None else RestrictedColumns(self.p, self.given.within(limits))
        return inside.icdf(u).where(self.given.ranged, self.p.sample(u))

    def _ends(self) -> tuple[Float[Tensor, "*rows columns"], Float[Tensor, "*rows columns"]]:
        return self.p.cdf(self.given.low), self.p.cdf(self.given.high)
