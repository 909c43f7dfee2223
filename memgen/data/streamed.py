"""The rows of a split that are read from a file while they are used, with a bounded number of blocks in memory.

Every block of the file is divided among the splits by itself: 80% of its rows are for training, 10% each for validation
and test, by a permutation that depends on the seed and on the number of the block. So a split needs no list of its
rows, and it has rows from all parts of the file.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from jaxtyping import Float32, Int, Int64, Shaped
from numpy.typing import NDArray
from torch import Tensor

from memgen.core.batch import Batch, Index
from memgen.core.noise import BINARISATION_SEED
from memgen.data.own_images import RawImages
from memgen.data.own_tables import RawTable
from memgen.data.stored import BYTES, Stored

WINDOW_BYTES = 1 << 26
"""Of the rows that are shuffled together; twice as much is kept in memory."""
SHARE = 10
"""One row in this many is for validation, and one for test."""
Raw = RawTable | RawImages
Encode = Callable[[Raw], Float32[NDArray[np.float32], "n D"]]
Codes = Callable[[Raw], "Shaped[NDArray[np.intp], ' n'] | None"]


def places(rows: int, seed: int | None) -> dict[str, slice]:
    """Where the rows of each split are in the `order` of a block; without a seed every split is all the rows.

    >>> places(20, seed=1)["valid"]
    slice(16, 18, None)
    """
    if seed is None:
        return dict.fromkeys(("train", "valid", "test", "train+valid"), slice(0, rows))
    part = rows // SHARE
    train, test = rows - 2 * part, rows - part
    return {
        "train": slice(0, train),
        "valid": slice(train, test),
        "test": slice(test, rows),
        "train+valid": slice(0, test),
    }


def order_of(rows: int, number: int, seed: int | None) -> Int[NDArray[np.intp], " rows"]:
    """The rows of block `number`, those of one split after those of the other; without a seed, in their order."""
    if seed is None:
        return np.arange(rows)
    # RandomState, because its stream is frozen for good.
    return np.random.RandomState([seed, number]).permutation(rows).astype(np.intp)


@dataclass(frozen=True, eq=False)
class Blocks:
    """Blocks of a file as the model reads them. The least recently used ones make room for others."""

    stored: Stored
    columns: int
    encode: Encode
    codes: Codes
    """The class of each row, as a number."""
    seed: int | None
    """Of the splits."""

    @cached_property
    def most(self) -> int:
        """Rows of the largest block."""
        return int(np.diff(self.stored.bounds).max())

    @cached_property
    def window(self) -> int:
        """The number of blocks that are shuffled together: at least 2."""
        return max(2, WINDOW_BYTES // (BYTES * self.columns * self.most))

    @cached_property
    def slots(self) -> int:
        """The number of blocks in memory: two windows, or all."""
        return min(2 * self.window, len(self.stored.bounds) - 1)

    @cached_property
    def values(self) -> Float32[Tensor, "slots most columns"]:
        return torch.empty(self.slots, self.most, self.columns)

    @cached_property
    def labels(self) -> Int64[Tensor, "slots most"]:
        return torch.empty(self.slots, self.most, dtype=torch.int64)

    @cached_property
    def loaded(self) -> OrderedDict[int, int]:
        """Block -> its slot, the least recently used first."""
        return OrderedDict()

    @cached_property
    def lock(self) -> threading.Lock:
        return threading.Lock()

    @cached_property
    def labelled(self) -> bool:
        return self.codes(self.stored.block(0)) is not None

    def slot(self, number: int) -> int:
        """Where the rows of a block are, in the order of its division; it is read if it is not in memory."""
        if number in self.loaded:
            self.loaded.move_to_end(number)
            return self.loaded[number]
        raw = self.stored.block(number)
        x, codes = self.encode(raw), self.codes(raw)
        slot = len(self.loaded) if len(self.loaded) < self.slots else self.loaded.popitem(last=False)[1]
        order = order_of(len(x), number, self.seed)
        self.values[slot, : len(x)] = torch.from_numpy(x[order])
        if codes is not None:
            self.labels[slot, : len(x)] = torch.from_numpy(codes[order].astype(np.int64))
        self.loaded[number] = slot
        return slot

    def __deepcopy__(self, memo: dict[int, object]) -> Blocks:
        return self


@dataclass(frozen=True, eq=False)
class Streamed:
    """The rows of a split."""

    blocks: Blocks
    split: str
    missing: int = 0
    """The number of missing values."""

    @cached_property
    def starts(self) -> Int64[NDArray[np.int64], " blocks"]:
        """The place of the split's first row in the division of each block."""
        return np.array([place.start for place in self._places])

    @cached_property
    def bounds(self) -> Int64[NDArray[np.int64], " ends"]:
        """The first row of each block, counted in the split, and the number of all rows."""
        return np.cumsum([0, *(place.stop - place.start for place in self._places)])

    @property
    def _places(self) -> list[slice]:
        lengths = np.diff(self.blocks.stored.bounds).tolist()
        return [places(rows, self.blocks.seed)[self.split] for rows in lengths]

    @property
    def window(self) -> int:
        return self.blocks.window

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns."""
        return len(self), self.blocks.columns

    def __len__(self) -> int:
        return int(self.bounds[-1])

    def rows(self, index: Index) -> Batch:
        """The rows at `index`, whose blocks are read if they are not in memory."""
        chosen = np.arange(*index.indices(len(self))) if isinstance(index, slice) else index.cpu().numpy()
        number = np.searchsorted(self.bounds, chosen, side="right") - 1
        inside = chosen - self.bounds[number] + self.starts[number]
        x = torch.empty(len(chosen), self.blocks.columns)
        label = torch.empty(len(chosen), dtype=torch.int64) if self.blocks.labelled else None
        needed = np.unique(number)
        for group in np.split(needed, range(self.blocks.slots, len(needed), self.blocks.slots)):
            which = np.flatnonzero((number >= group[0]) & (number <= group[-1])) if len(group) else np.arange(0)
            self._copy(torch.from_numpy(which), number[which], torch.from_numpy(inside[which]), x, label)
        return Batch.of(x, label)

    def _copy(
        self,
        where: Int64[Tensor, " m"],
        number: Int64[NDArray[np.int64], " m"],
        inside: Int64[Tensor, " m"],
        x: Float32[Tensor, "B D"],
        label: Int64[Tensor, " B"] | None,
    ) -> None:
        """Copy rows of as many blocks as fit into memory."""
        blocks = self.blocks
        with blocks.lock:
            needed, which = np.unique(number, return_inverse=True)
            slots = torch.tensor([blocks.slot(int(n)) for n in needed], dtype=torch.int64)
            flat = slots[torch.from_numpy(which)] * blocks.most + inside
            x[where] = blocks.values.view(-1, blocks.columns).index_select(0, flat)
            if label is not None:
                label[where] = blocks.labels.view(-1)[flat]


@dataclass(frozen=True, eq=False)
class Scored:
    """The first rows of a split as they are scored: grey levels that stand for probabilities are binarised."""

    source: Streamed
    limit: int | None
    stochastic: bool

    def __len__(self) -> int:
        return len(self.source) if self.limit is None else min(self.limit, len(self.source))

    def rows(self, index: Index) -> Batch:
        if isinstance(index, slice):
            index = torch.arange(*index.indices(len(self)))
        batch = self.source.rows(index)
        return replace(batch, x=_binarised(batch.x, index)) if self.stochastic else batch


def _binarised(x: Float32[Tensor, "B D"], keys: Int64[Tensor, " B"]) -> Float32[Tensor, "B D"]:
    """1 with probability x. The uniform numbers of a row depend on its place in the split alone."""
    draws = [np.random.RandomState([BINARISATION_SEED, key]).random_sample(x.shape[1]) for key in keys.tolist()]
    return (torch.from_numpy(np.array(draws).reshape(x.shape)) < x.double()).float()
