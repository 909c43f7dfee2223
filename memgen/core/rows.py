"""Sums over rows: the only operations in which the rows of a batch affect each other.

`normalise` standardises with the moments of the given rows: batch norm in training and the local reconstruction.
`moments` returns these moments without a gradient. `Moments` accumulates them over chunks of rows: the exact statistics
of a data set. Each takes a `Total` where the rows are divided among processes; the moments are then those of all rows.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from jaxtyping import Float, Float64
from torch import Tensor
from torch.autograd.function import once_differentiable

Total = Callable[[Tensor], Tensor]
"""Adds a tensor, entry by entry, over all processes among which the rows are divided. Every process calls it in the
same order with a tensor of the same form."""


def normalise(
    h: Float[Tensor, "*rows units"],
    gamma: Float[Tensor, " units"] | None,
    beta: Float[Tensor, " units"] | None,
    epsilon: float,
    total: Total | None = None,
) -> Float[Tensor, "*rows units"]:
    """gamma * (h - mean) / sqrt(variance + epsilon) + beta, mean and biased variance over all rows; gradients flow
    through both. Without gamma and beta these are 1 and 0.

    >>> normalise(torch.tensor([[1.0], [3.0]]), None, None, 0.0)
    tensor([[-1.],
            [ 1.]])
    """
    rows = h.reshape(-1, h.shape[-1])
    if total is None:
        return torch.batch_norm(rows, gamma, beta, None, None, True, 0.0, epsilon, False).view_as(h)
    standard: Tensor = _Standardise.apply(rows, epsilon, total)  # type: ignore[no-untyped-call]
    scaled = standard if gamma is None else standard * gamma
    return (scaled if beta is None else scaled + beta).view_as(h)


class _Standardise(torch.autograd.Function):
    """s = (h - mean) / sqrt(variance + epsilon) with the moments of the rows of all processes.

    With g the gradient of s, that of h is (g - mean(g) - s * mean(g * s)) / sqrt(variance + epsilon); these means, too,
    are over the rows of all processes.
    """

    @staticmethod
    def forward(ctx: Any, h: Tensor, epsilon: float, total: Total) -> Tensor:
        mean, variance, ctx.count = _pooled(*_own(h), total)
        scale = (variance + epsilon).rsqrt().to(h)
        standard = (h - mean.to(h)) * scale
        ctx.total = total
        ctx.save_for_backward(standard, scale)
        return standard

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        standard, scale = ctx.saved_tensors
        (g,) = gradients
        sums = ctx.total(torch.cat([g.sum(0), (g * standard).sum(0)]).double()) / ctx.count
        mean, along = sums.to(g).chunk(2)
        return (g - mean - standard * along) * scale, None, None


def moments(
    h: Float[Tensor, "*rows units"], total: Total | None = None
) -> tuple[Float[Tensor, " units"], Float[Tensor, " units"]]:
    """Mean and biased variance over all rows; no gradient."""
    count, mean, variance = _own(h.detach().flatten(0, -2))
    if total is not None:
        mean, variance, _ = _pooled(count, mean, variance, total)
    return mean.to(h), variance.to(h)


def _own(rows: Float[Tensor, "rows units"]) -> tuple[int, Float[Tensor, " units"], Float[Tensor, " units"]]:
    """Number, mean and biased variance of the rows of this process."""
    variance, mean = torch.var_mean(rows, 0, correction=0)
    return len(rows), mean, variance


def _pooled(
    count: int, mean: Float[Tensor, " units"], variance: Float[Tensor, " units"], total: Total
) -> tuple[Float64[Tensor, " units"], Float64[Tensor, " units"], Float64[Tensor, ""]]:
    """Mean, biased variance and number of the rows of all processes, from those of this one. One exchange is enough
    for all three: in float64 the difference of E[h^2] and E[h]^2 keeps the digits that float32 has."""
    mean, variance = mean.double(), variance.double()
    sums = total(torch.cat([mean.new_tensor([count]), count * mean, count * (variance + mean**2)]))
    mean, squares = (sums[1:] / sums[0]).chunk(2)
    return mean, (squares - mean**2).clamp_min(0), sums[0]


class Moments:
    """The moments of rows that arrive in chunks, in float64 (the update of Chan, Golub and LeVeque).

    >>> gathered = Moments()
    >>> gathered.add(torch.tensor([[1.0], [3.0]]))
    >>> gathered.add(torch.tensor([[5.0]]))
    >>> gathered.mean, gathered.variance
    (tensor([3.], dtype=torch.float64), tensor([2.6667], dtype=torch.float64))
    """

    def __init__(self) -> None:
        self.count = 0
        self.mean: Tensor = torch.zeros(1, dtype=torch.float64)
        self.squares: Tensor = torch.zeros(1, dtype=torch.float64)
        """Sum of the squared deviations from the mean."""

    def add(self, h: Float[Tensor, "*rows units"]) -> None:
        rows = h.reshape(-1, h.shape[-1])
        variance, mean = torch.var_mean(rows.double(), 0, correction=0)
        self.mean, self.squares = self.mean.to(mean), self.squares.to(mean)
        total = self.count + len(rows)
        shift = mean - self.mean
        self.squares = self.squares + variance * len(rows) + shift**2 * (self.count * len(rows) / total)
        self.mean = self.mean + shift * (len(rows) / total)
        self.count = total

    def exchange(self, total: Total, units: int) -> None:
        """Make these the moments of the rows of all processes. This one may have none."""
        mean = self.mean + self.mean.new_zeros(units)
        variance = self.squares / max(1, self.count) + self.mean.new_zeros(units)
        self.mean, variance, count = _pooled(self.count, mean, variance, total)
        self.count, self.squares = int(count), variance * count

    @property
    def variance(self) -> Float[Tensor, " units"]:
        return self.squares / self.count
