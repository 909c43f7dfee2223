"""Rows of a file that are read block by block: where the blocks lie, and whether the file is still the same.

A block is read with ordinary reads, not through a memory map. A file that shrinks then gives a short read, which is an
error of one line, where a memory map would end the process with SIGBUS.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64
from numpy.typing import NDArray

from memgen.data.arrays import Header, check_numbers, open_numpy, read_header
from memgen.data.own_images import BYTE, RawImages, images_of_bytes
from memgen.data.own_tables import RawTable, table_of_array
from memgen.errors import MemgenError

BLOCK_BYTES = 1 << 20
"""About the size of a block, as 32-bit numbers."""
FEWEST = 100
"""The fewest rows of a block, which gives rows to every split."""
BYTES = 4
"""Of a value that a model reads."""


@runtime_checkable
class Stored(Protocol):
    """The rows of a file or a folder, in blocks."""

    path: Path
    bounds: Int64[NDArray[np.int64], " ends"]
    """The first row of each block, and the number of all rows."""

    def block(self, number: int) -> RawTable | RawImages:
        """Read a block; an error if the file has changed since it was opened."""
        ...


class Stamp(NamedTuple):
    """What tells one version of a file from another without reading it."""

    file: int
    size: int
    modified: int

    @staticmethod
    def of(path: Path) -> Stamp:
        try:
            about = path.stat()
        except OSError as error:
            raise MemgenError(f"cannot read {path}: {error.strerror}") from None
        return Stamp(about.st_ino, about.st_size, about.st_mtime_ns)

    def check(self, path: Path) -> None:
        """Refuse a file that has changed."""
        now = Stamp.of(path)
        if now != self:
            what = f"it had {self.size:,} bytes and has {now.size:,}" if now.size != self.size else "it was written to"
            raise MemgenError(f"{path} has changed while it was in use: {what}; bring it back, and go on with --resume")


def equal_blocks(rows: int, columns: int) -> Int64[NDArray[np.int64], " ends"]:
    """The bounds of blocks of BLOCK_BYTES, and of at least FEWEST rows.

    >>> equal_blocks(250, 1 << 20)
    array([  0, 100, 200, 250])
    """
    size = max(FEWEST, BLOCK_BYTES // (BYTES * max(1, columns)))
    return np.append(np.arange(0, rows, size, dtype=np.int64), np.int64(rows))


class StoredArray:
    """The array of an .npy file: a table (N, columns), or images."""

    def __init__(self, path: Path, size: tuple[int, int] | None = None) -> None:
        self.path, self.size = path, size
        self.stamp = Stamp.of(path)
        self.header = read_npy_header(path)
        shape = self.header.shape
        if len(shape) not in (2, 3, 4) or 0 in shape:
            raise MemgenError(
                f"{path} has shape {shape}; it must be (N, columns), or for images (N, height, width) or "
                "(N, height, width, 3)"
            )
        if self.header.by_columns:
            raise MemgenError(
                f"{path} is stored column by column (Fortran order), so its rows cannot be read one block after the "
                "other; save it again with numpy.ascontiguousarray, or use --no-stream"
            )
        check_numbers(path, np.empty(0, self.header.kind))
        if len(shape) > 2 and self.header.kind not in (np.dtype(np.uint8), np.dtype(bool)):
            raise MemgenError(f"{path} holds {self.header.kind}; images that stay in a file must be bytes (uint8)")
        columns = math.prod(shape[1:]) if size is None else math.prod((*size, *shape[3:]))
        self.bounds = equal_blocks(shape[0], columns)

    def block(self, number: int) -> RawTable | RawImages:
        values = self._read(int(self.bounds[number]), int(self.bounds[number + 1]))
        self.stamp.check(self.path)
        if values.ndim == 2:
            return table_of_array(values, None)
        pixels = values.astype(np.uint8) * np.uint8(BYTE) if values.dtype == bool else values
        return images_of_bytes(self.path, pixels, None, self.size)

    def _read(self, first: int, end: int) -> NDArray[Any]:
        shape, kind = self.header.shape[1:], self.header.kind
        values = np.empty((end - first, *shape), kind)
        try:
            with self.path.open("rb") as file:
                file.seek(self.header.start + first * math.prod(shape) * kind.itemsize)
                read = file.readinto(values.reshape(-1).view(np.uint8).data)
        except OSError as error:
            raise MemgenError(f"cannot read {self.path}: {error.strerror}") from None
        if read != values.nbytes:
            self.stamp.check(self.path)
            raise MemgenError(f"{self.path} ends before row {end:,}")
        return values


def read_npy_header(path: Path) -> Header:
    with open_numpy(path) as (file, size):
        return read_header(file, size)
