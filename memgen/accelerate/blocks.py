"""Blocks of rows that are small enough for the cache, in which one call's output is the next call's input."""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

from torch import Tensor


class Block(NamedTuple):
    """Consecutive samples of consecutive rows. A matrix with K samples of B rows is stored sample by sample."""

    sample: int
    samples: int
    row: int
    rows: int
    before: int
    """Number of rows of such a matrix before the block."""
    only: bool
    """Whether it is the only block."""

    @property
    def size(self) -> int:
        return self.samples * self.rows

    def of(self, matrix: Tensor) -> Tensor:
        """The block's rows of a matrix with all samples."""
        return matrix[self.before : self.before + self.size]

    def once(self, matrix: Tensor) -> Tensor:
        """The block's rows of a matrix that has every row once."""
        return matrix[self.row : self.row + self.rows]


def blocks(K: int, B: int, largest: int, most: int) -> list[Block]:
    """K samples of B rows in order, in blocks of nearly equal size with about `most` rows at most.

    A block has several samples of all rows or, if that is too much, one sample of a part of the rows. Every worker has
    the same number of blocks, which is that of the worker with the most rows, `largest`.

    >>> [(block.sample, block.samples, block.row, block.rows) for block in blocks(5, 2, 2, most=4)]
    [(0, 1, 0, 2), (1, 2, 0, 2), (3, 2, 0, 2)]
    >>> [(block.sample, block.samples, block.row, block.rows) for block in blocks(2, 4, 5, most=4)]
    [(0, 1, 0, 2), (0, 1, 2, 2), (1, 1, 0, 2), (1, 1, 2, 2)]
    """
    samples, rows = _parts(K, -(-K // max(1, most // largest))), _parts(B, -(-largest // most))
    only = len(samples) * len(rows) == 1
    return [Block(k, times, b, size, k * B + b, only) for k, times in samples for b, size in rows]


def _parts(n: int, count: int) -> list[tuple[int, int]]:
    """The start and the size of each part."""
    ends = [n * i // count for i in range(count + 1)]
    return [(begin, end - begin) for begin, end in pairwise(ends)]
