"""Running sums over importance samples that come in blocks."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float64
from torch import Tensor

from memgen.core.noise import BLOCK


class Rung:
    """The importance bound with K samples, averaged over disjoint groups of K in a stream of blocks."""

    def __init__(self, K: int) -> None:
        self.K = K
        self.groups = 0
        self.sum: Tensor | float = 0.0
        self.open: Tensor | None = None
        self.filled = 0

    def add(self, log_w: Float64[Tensor, "block B"]) -> None:
        if self.K <= BLOCK:  # whole groups inside the block
            groups = log_w[: len(log_w) // self.K * self.K].unflatten(0, (-1, self.K)).logsumexp(1)
            self._close(groups.sum(0), len(groups))
            return
        block = log_w.logsumexp(0)
        self.open = block if self.open is None else torch.logaddexp(self.open, block)
        self.filled += len(log_w)
        if self.filled == self.K:
            self._close(self.open, 1)
            self.open, self.filled = None, 0

    def _close(self, log_sums: Tensor, groups: int) -> None:
        self.sum = self.sum + log_sums - groups * math.log(self.K)
        self.groups += groups

    def result(self) -> Tensor:
        assert isinstance(self.sum, Tensor)
        return self.sum / self.groups


def rungs(samples: int) -> list[int]:
    """The values 5, 50, 500, ... of K below `samples`. Each divides the next, and divides BLOCK or is a multiple of it.

    >>> rungs(5000)
    [5, 50, 500]
    """
    return [K for K in (5 * 10**n for n in range(12)) if samples > K]


class Sums:
    """Running log-sum-exp of log w and of 2 log w, running mean of log w, and the rungs."""

    def __init__(self, samples: int) -> None:
        self.count = 0
        self.sum = torch.zeros(1, dtype=torch.float64)
        self.log_sum = torch.full((1,), -torch.inf, dtype=torch.float64)
        self.log_squares = torch.full((1,), -torch.inf, dtype=torch.float64)
        self.rungs = [Rung(K) for K in rungs(samples)]

    def add(self, log_w: Float64[Tensor, "block B"]) -> None:
        log_w = log_w.cpu()
        self.count += len(log_w)
        self.sum = self.sum + log_w.sum(0)
        self.log_sum = torch.logaddexp(self.log_sum, log_w.logsumexp(0))
        self.log_squares = torch.logaddexp(self.log_squares, (2 * log_w).logsumexp(0))
        for rung in self.rungs:
            rung.add(log_w)

    @property
    def mean(self) -> Float64[Tensor, " B"]:
        """mean_k log w_k"""
        return self.sum / self.count

    @property
    def log_mean(self) -> Float64[Tensor, " B"]:
        """log mean_k w_k"""
        return self.log_sum - math.log(self.count)

    @property
    def effective(self) -> Float64[Tensor, " B"]:
        """(sum w)^2 / sum w^2; 0 if there is no weight."""
        return torch.exp(2 * self.log_sum - self.log_squares).nan_to_num(0)
