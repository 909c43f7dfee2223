"""A shard: the part of a task's rows that one process works on."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from memgen.errors import MemgenError

MOST = 1_000_000
"""Shards of a task."""


@dataclass(frozen=True)
class Shard:
    """Shard `index` of `count`, counted from 0 as Slurm, Kubernetes and torchrun count."""

    index: int
    count: int

    @staticmethod
    def parse(text: str) -> Shard:
        """
        >>> Shard.parse("0/4")
        Shard(index=0, count=4)
        >>> Shard.parse("4/4")
        Traceback (most recent call last):
        memgen.errors.MemgenError: there is no shard 4/4: shards count from 0, so the last of 4 is 3/4
        """
        match = re.fullmatch("([0-9]{1,7})/([0-9]{1,7})", text)
        if match is None:
            raise MemgenError(f"{text!r} is not a shard; write INDEX/COUNT, as in 0/4, the first of four")
        shard = Shard(*map(int, match.groups()))
        if not 1 <= shard.count <= MOST:
            raise MemgenError(f"there is no shard {text}: the number of shards must lie between 1 and {MOST:,}")
        if shard.index >= shard.count:
            last = Shard(shard.count - 1, shard.count)
            raise MemgenError(
                f"there is no shard {text}: shards count from 0, so the last of {shard.count:,} is {last}"
            )
        return shard

    def rows(self, borders: Sequence[int]) -> range:
        """The rows of the shard. `borders`: the first row of every batch, and the number of rows.

        A shard has whole batches. In floating point the last bits of a row depend on the shape of its batch, so that
        only then the results of all shards are those of one process to the bit.

        >>> [Shard(i, 2).rows([0, 8, 16, 20]) for i in range(2)]
        [range(0, 8), range(8, 20)]
        """
        first, last = (i * (len(borders) - 1) // self.count for i in (self.index, self.index + 1))
        return range(borders[first], borders[last])

    def __str__(self) -> str:
        return f"{self.index}/{self.count}"
