"""The order of the rows in an epoch: a permutation of all rows in memory, or of blocks of the rows of a file.

A permutation of all rows would read a file row by row from random places. Rows of a file (`BlockRows`) are shuffled
thus, in every epoch anew:

1. The blocks of neighbouring rows are permuted.
2. Every `window` blocks of that order are read into memory together, and their rows are permuted.

The order is a function of the number of the epoch's seed, which is drawn from the training's generator and kept in the
checkpoint. So a resumed run goes on with the same rows, and a checkpoint does not grow with the number of rows.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from jaxtyping import Int
from torch import Tensor

from memgen.core.batch import BlockRows, Rows

SEEDS = 1 << 32
"""torch seeds its CPU generator with 32 bits."""


def draw_order(rows: Rows, random: torch.Generator) -> Int[Tensor, " order"]:
    """What determines the order of an epoch: for rows in memory the permutation, for rows of a file its seed."""
    if isinstance(rows, BlockRows):
        return torch.randint(SEEDS, (1,), generator=random, device=random.device)
    return torch.randperm(len(rows), generator=random, device=random.device)


def rows_of_steps(
    rows: Rows, order: Int[Tensor, " order"], sizes: Sequence[int], first: int = 0
) -> Iterator[Int[Tensor, " B"]]:
    """The rows of each step from step `first` on, by the order that `draw_order` gave.

    >>> from memgen.core.batch import Batch
    >>> rows, order = Batch.of(torch.zeros(3, 1)), torch.tensor([2, 0, 1])
    >>> [step.tolist() for step in rows_of_steps(rows, order, [2, 1])]
    [[2, 0], [1]]
    """
    if not isinstance(rows, BlockRows):
        yield from order[: sum(sizes)].split(list(sizes))[first:]
        return
    windows = shuffled(rows, int(order), sum(sizes[:first]))
    rest = torch.empty(0, dtype=torch.int64)
    for size in sizes[first:]:
        while len(rest) < size:
            rest = torch.cat([rest, next(windows)])
        yield rest[:size]
        rest = rest[size:]


def shuffled(rows: BlockRows, seed: int, skip: int = 0) -> Iterator[Int[Tensor, " n"]]:
    """All rows in shuffled order, a window at a time, without the first `skip`."""
    bounds = torch.from_numpy(rows.bounds)
    blocks = _permutation(len(bounds) - 1, seed)
    for number, window in enumerate(blocks.tensor_split(math.ceil(len(blocks) / rows.window)), 1):
        count = int((bounds[window + 1] - bounds[window]).sum())
        if skip < count:
            inside = torch.cat([torch.arange(int(bounds[b]), int(bounds[b + 1])) for b in window.tolist()])
            yield inside[_permutation(count, seed + number)[skip:]]
        skip = max(0, skip - count)


def _permutation(n: int, seed: int) -> Int[Tensor, " n"]:
    return torch.randperm(n, generator=torch.Generator().manual_seed(seed % SEEDS))
