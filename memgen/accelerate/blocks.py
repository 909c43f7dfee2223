"""Some rows at a time: what one call has written the next finds in the cache."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor


class Block(NamedTuple):
    """Some samples of some rows. A matrix with K samples of B rows has them one after the other, sample by sample."""

    sample: int
    samples: int
    row: int
    rows: int
    before: int
    """Rows of such a matrix that come before it."""
    only: bool
    """Whether there is no other block."""

    @property
    def size(self) -> int:
        return self.samples * self.rows

    def of(self, matrix: Tensor) -> Tensor:
        """Its rows of a matrix with all samples."""
        return matrix[self.before : self.before + self.size]

    def once(self, matrix: Tensor) -> Tensor:
        """Its rows of a matrix that has every row once."""
        return matrix[self.row : self.row + self.rows]


def blocks(K: int, B: int, largest: int, most: int) -> list[Block]:
    """K samples of B rows in order, in blocks of about the same size: several samples of all rows, or, where that is
    too much, one sample of some rows. There are as many as the worker with the most rows needs, who has `largest`.

    >>> [(block.sample, block.samples, block.row, block.rows) for block in blocks(5, 2, 2, most=4)]
    [(0, 1, 0, 2), (1, 2, 0, 2), (3, 2, 0, 2)]
    >>> [(block.sample, block.samples, block.row, block.rows) for block in blocks(2, 4, 5, most=4)]
    [(0, 1, 0, 2), (0, 1, 2, 2), (1, 1, 0, 2), (1, 1, 2, 2)]
    """
    samples, rows = _parts(K, -(-K // max(1, most // largest))), _parts(B, -(-largest // most))
    only = len(samples) * len(rows) == 1
    return [Block(k, times, b, size, k * B + b, only) for k, times in samples for b, size in rows]


def _parts(n: int, count: int) -> list[tuple[int, int]]:
    """Where each part begins, and its size."""
    ends = [n * i // count for i in range(count + 1)]
    return [(begin, end - begin) for begin, end in pairwise(ends)]
