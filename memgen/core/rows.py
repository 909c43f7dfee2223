"""Sums over rows: the only operations in which the rows of a batch affect each other.

`normalise` standardises with the moments of the given rows: batch norm in training and the local reconstruction.
`moments` returns these moments without a gradient. `Moments` accumulates them over chunks of rows: the exact statistics
of a data set. If rows are divided among processes, these are the sums to exchange.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor


def normalise(
    h: Float[Tensor, "*rows units"],
    gamma: Float[Tensor, " units"] | None,
    beta: Float[Tensor, " units"] | None,
    epsilon: float,
) -> Float[Tensor, "*rows units"]:
    """gamma * (h - mean) / sqrt(variance + epsilon) + beta, mean and biased variance over all rows; gradients flow
    through both. Without gamma and beta these are 1 and 0.

    >>> normalise(torch.tensor([[1.0], [3.0]]), None, None, 0.0)
    tensor([[-1.],
            [ 1.]])
    """
    rows = h.reshape(-1, h.shape[-1])
    return torch.batch_norm(rows, gamma, beta, None, None, True, 0.0, epsilon, False).view_as(h)


def moments(h: Float[Tensor, "*rows units"]) -> tuple[Float[Tensor, " units"], Float[Tensor, " units"]]:
    """Mean and biased variance over all rows; no gradient."""
    variance, mean = torch.var_mean(h.detach().flatten(0, -2), 0, correction=0)
    return mean, variance


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

    @property
    def variance(self) -> Float[Tensor, " units"]:
        return self.squares / self.count
