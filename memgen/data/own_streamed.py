"""The user's own data that are read while they are used: which they are, and the Dataset that reads them so."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from jaxtyping import Float32
from numpy.typing import NDArray

from memgen.data.columns import Columns
from memgen.data.dataset import SPLITS, Dataset
from memgen.data.kinds import LEVELLED, given_kinds
from memgen.data.own_images import BYTE, RawImages, levels_of
from memgen.data.own_tables import Expected, RawTable, arrange
from memgen.data.scan import TableScan
from memgen.data.stored import BYTES, Stored, StoredArray
from memgen.data.streamed import SHARE, Blocks, Streamed, order_of, places
from memgen.errors import MemgenError

LARGE = 1 << 30
"""Data whose values take more bytes than this as 32-bit numbers are streamed, unless the user says otherwise."""
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Wanted:
    """How the data are to be read."""

    size: tuple[int, int] | None
    levels: int
    """The largest level of a pixel; 0: as the pixels show."""
    likelihood: str
    expected: Expected
    seed: int | None
    """Of the splits; None: every split is all rows."""
    report: Report


def open_stored(path: Path, size: tuple[int, int] | None, stream: str) -> Stored | None:
    """The rows of a file if they are to be streamed; None if they are to be read into memory."""
    if stream == "no":
        return None
    stored = _open(path, size, stream)
    if stored is None and stream == "yes":
        raise MemgenError(
            f"{path} cannot be streamed: only .npy files can, because their rows can be read from any place; convert "
            "it, or use --no-stream"
        )
    return stored


def _open(path: Path, size: tuple[int, int] | None, stream: str) -> Stored | None:
    if path.suffix.lower() == ".npy" and not path.is_dir() and (stream == "yes" or path.stat().st_size > LARGE // 8):
        stored = StoredArray(path, size)
        return stored if stream == "yes" or is_large(stored) else None
    return None


def is_large(stored: StoredArray) -> bool:
    return int(np.prod(stored.header.shape, dtype=np.float64)) * BYTES > LARGE


def read_streamed(stored: Stored, wanted: Wanted) -> Dataset:
    """The Dataset of these rows, after one pass over them."""
    rows = int(stored.bounds[-1])
    if wanted.seed is not None and rows < SHARE:
        raise MemgenError(f"there are {rows} rows; to train, validate and test takes at least {SHARE}")
    first = stored.block(0)
    if isinstance(first, RawTable):
        if wanted.size is not None:
            raise MemgenError("a size is for images, and this is a table; images in an array are (N, height, width)")
        return _table(stored, first, wanted)
    return _images(stored, first, wanted)


@contextmanager
def counted_from(stored: Stored, number: int) -> Iterator[None]:
    """Errors inside count the rows of a block; say where it begins."""
    try:
        yield
    except MemgenError as error:
        first = int(stored.bounds[number])
        where = f" (rows are counted from row {first + 1:,} of the file)" if first else ""
        raise MemgenError(f"{error}{where}") from None


def _passes(stored: Stored, wanted: Wanted) -> Iterator[tuple[int, RawTable | RawImages]]:
    for number in range(len(stored.bounds) - 1):
        with counted_from(stored, number):
            yield number, stored.block(number)
        wanted.report(int(stored.bounds[number + 1]), int(stored.bounds[-1]))


class Counts:
    """The number of missing values of each split."""

    def __init__(self, seed: int | None) -> None:
        self.seed = seed
        self.missing = dict.fromkeys(SPLITS, 0)

    def add(self, number: int, missing: NDArray[np.intp]) -> None:
        """`missing`: the number of each row of a block."""
        order, place = order_of(len(missing), number, self.seed), places(len(missing), self.seed)
        for split in SPLITS:
            self.missing[split] += int(missing[order[place[split]]].sum())


def _table(stored: Stored, first: RawTable, wanted: Wanted) -> Dataset:
    expected, counts = wanted.expected, Counts(wanted.seed)
    if expected.ignore:
        raise MemgenError("columns of a table that stays in its file cannot be ignored; say --no-stream")
    if expected.columns is not None:
        columns = expected.columns
        for number, raw in _passes(stored, wanted):
            assert isinstance(raw, RawTable)
            with counted_from(stored, number):
                x = columns.encode(arrange(raw, columns).values, dtype=np.float32)
            counts.add(number, np.isnan(x).sum(1))
    else:
        scan = TableScan(first, given_kinds(first.names, expected.kinds), len(stored.bounds) - 1)
        for number, raw in _passes(stored, wanted):
            assert isinstance(raw, RawTable)
            order, place = order_of(len(raw), number, wanted.seed), places(len(raw), wanted.seed)["train"]
            with counted_from(stored, number):
                counts.add(number, scan.add(raw, order[place]))
        columns = Columns(scan.columns(), first.ignored)
        if wanted.likelihood not in ("auto", "mixed"):
            columns = columns.unscaled()
    blocks = Blocks(stored, len(columns), encoder(columns), lambda raw: None, wanted.seed)
    likelihood = "mixed" if wanted.likelihood == "auto" else wanted.likelihood
    name = stored.path.resolve().name
    return Dataset(name, *_splits(blocks, counts), likelihood=likelihood, columns=columns)


def encoder(columns: Columns) -> Callable[[RawTable | RawImages], Float32[NDArray[np.float32], "n D"]]:
    """How the blocks of a table that has been checked become numbers."""
    offsets, scales = (np.array([getattr(column, name) for column in columns]) for name in ("offset", "scale"))
    plain = not any(column.kind in LEVELLED for column in columns)

    def encode(raw: RawTable | RawImages) -> Float32[NDArray[np.float32], "n D"]:
        assert isinstance(raw, RawTable)
        table = arrange(raw, columns)
        if plain:  # the same numbers as below, many columns at a time
            values = np.stack([np.asarray(column) for column in table.values], 1)
            numbers: NDArray[np.float32] = (np.subtract(values, offsets, dtype=np.float64) / scales).astype(np.float32)
            return numbers
        return columns.encode(table.values, dtype=np.float32)

    return encode


def _images(stored: Stored, first: RawImages, wanted: Wanted) -> Dataset:
    if wanted.expected.kinds or wanted.expected.columns is not None:
        what = "kinds of columns are for tables" if wanted.expected.kinds else "the model was trained on a table"
        raise MemgenError(f"{what}, and these are images")
    shape, counts, seen = first.pixels.shape[1:], Counts(wanted.seed), np.zeros(BYTE + 1, bool)
    for number, raw in _passes(stored, wanted):
        assert isinstance(raw, RawImages)
        x = raw.rows(BYTE)
        seen |= np.isin(np.arange(BYTE + 1), raw.pixels.reshape(x.shape)[~np.isnan(x)])
        counts.add(number, np.isnan(x).sum(1))
    everything = RawImages(np.flatnonzero(seen).astype(np.uint8).reshape(1, 1, -1))
    levels = levels_of(everything, wanted.levels)
    two, likelihood = everything.has_only(0, levels), wanted.likelihood
    if likelihood == "auto":
        likelihood = "bernoulli" if two else "discretised_logistic"
    blocks = Blocks(stored, int(np.prod(shape)), partial(_pixels, levels), lambda raw: None, wanted.seed)
    return Dataset(
        stored.path.resolve().name,
        *_splits(blocks, counts),
        shape=shape,
        likelihood=likelihood,
        stochastic=likelihood == "bernoulli" and not two,
        scale="0/1" if likelihood == "bernoulli" and two else f"v/{levels}",
        levels=levels,
    )


def _pixels(levels: int, raw: RawTable | RawImages) -> Float32[NDArray[np.float32], "n D"]:
    assert isinstance(raw, RawImages)
    return raw.rows(levels)


def _splits(blocks: Blocks, counts: Counts) -> tuple[Streamed, Streamed, Streamed]:
    train, valid, test = (Streamed(blocks, split, counts.missing[split]) for split in SPLITS)
    return train, valid, test
