"""NumPy files: never unpickled, checked for their size before they are expanded, and refused with a one-line error."""

from __future__ import annotations

import math
import os
import warnings
import zipfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from io import BufferedIOBase
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
from numpy.lib import format as npy
from numpy.typing import NDArray

from memgen.errors import MemgenError, reason

MOST_ARRAYS = 1000
"""The most arrays in one .npz file."""
EXPANSION = 100
"""An .npz file may expand to this many times its size, ..."""
ALWAYS_EXPANDED = 1 << 28
"""... and to this many bytes in any case."""
LAST_CHARACTER = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)
"""Numbers that are no characters of Unicode."""
ARCHIVE = b"PK"
"""How an .npz file begins."""


def load_arrays(path: Path) -> dict[str, NDArray[Any]]:
    """The arrays of an .npz file by name, or the one of an .npy file under the name x."""
    with open_numpy(path) as (file, size):
        archive = file.read(len(ARCHIVE)) == ARCHIVE
        file.seek(0)
        return read_archive(file, size) if archive else {"x": read_array(file, size)}


@contextmanager
def open_numpy(path: Path) -> Iterator[tuple[IO[bytes], int]]:
    """A file and its size; whatever is wrong with it is an error of one line that names it."""
    try:
        with path.open("rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # NumPy's, of headers that it reads nevertheless
            yield file, os.fstat(file.fileno()).st_size
    except MemoryError:
        raise
    except Exception as error:  # parsers of damaged files raise anything: TokenError, zlib.error, SystemError, ...
        raise MemgenError(f"cannot read {path} as a NumPy array of numbers: {_reason(error)}") from None


def _reason(error: Exception) -> str:
    # NumPy's own words for a file that is no array advise to unpickle it.
    return "it is no such file, or holds Python objects" if "pickle" in str(error) else reason(error)


def read_archive(file: IO[bytes] | BufferedIOBase, size: int) -> dict[str, NDArray[Any]]:
    """Every array of an .npz; the total size is checked before the first is expanded."""
    with zipfile.ZipFile(file) as archive:
        members = archive.infolist()
        check_members(members, size)
        return {member.filename.removesuffix(".npy"): _read_member(archive, member) for member in members}


def check_members(members: list[zipfile.ZipInfo], size: int) -> None:
    """Refuse an archive of `size` bytes whose directory states too large an expanded size.

    No member expands to more than its stated size.
    """
    if len(members) > MOST_ARRAYS:
        raise MemgenError(f"it has {len(members):,} members, and at most {MOST_ARRAYS:,} are read")
    expanded = sum(member.file_size for member in members)
    if expanded > max(ALWAYS_EXPANDED, EXPANSION * size):
        raise MemgenError(
            f"it would expand from {size:,} bytes to {expanded:,}, which is more than {EXPANSION} times as many; "
            "save it uncompressed (numpy.savez)"
        )
    for member in members:
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise MemgenError(f"its member {member.filename!r} is compressed in a way that NumPy does not write")


def _read_member(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> NDArray[Any]:
    if not member.filename.endswith(".npy"):
        raise MemgenError(f"its member {member.filename!r} is no array")
    with archive.open(member) as file:
        return read_array(file, member.file_size)


def read_array(file: IO[bytes] | BufferedIOBase, size: int) -> NDArray[Any]:
    """The array of an .npy file of `size` bytes, which must hold as many values as its header states."""
    kind = read_header(file, size).kind
    file.seek(0)
    values: NDArray[Any] = npy.read_array(file, allow_pickle=False)
    if kind.kind == "U":
        check_characters(values)
    return values


class Header(NamedTuple):
    """What an .npy file states before its values."""

    shape: tuple[int, ...]
    by_columns: bool
    """Whether the first axis is the one whose values are next to each other (Fortran order)."""
    kind: np.dtype[Any]
    start: int
    """The place of the first value, in bytes."""


def read_header(file: IO[bytes] | BufferedIOBase, size: int) -> Header:
    """The header of an .npy file of `size` bytes, which must hold as many values as it states."""
    version = npy.read_magic(file)
    if version not in READERS:
        raise MemgenError(f"it has version {version[0]}.{version[1]} of the format, which is unknown")
    shape, by_columns, kind = READERS[version](file)
    if kind.hasobject:
        raise MemgenError("it holds Python objects")
    check_size(shape, kind, size - file.tell())
    return Header(shape, by_columns, kind, file.tell())


READERS = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}
"""Version of the format -> what reads its header; 3.0 is for names of fields only, of which there are none here."""


def check_size(shape: tuple[int, ...], kind: np.dtype[Any], remaining: int) -> None:
    """Compare the size that a header states with the bytes that follow it, before anything is allocated."""
    if any(isinstance(n, bool) or n < 0 for n in shape):
        raise MemgenError(f"its header says {str(shape)[:80]}, which is no shape")
    count = math.prod(shape)
    if count and not kind.itemsize:
        raise MemgenError("its values have no bytes")
    if count * kind.itemsize > remaining:
        raise MemgenError(f"it is cut off: its header says {count * kind.itemsize:,} bytes, and {remaining:,} follow")
    if not count and max(shape) > np.iinfo(np.int32).max:
        raise MemgenError(f"its header says {str(shape)[:80]}, and it holds nothing")


def check_characters(values: NDArray[Any]) -> None:
    """Refuse text with invalid code points, which NumPy does not check."""
    codes = np.ascontiguousarray(values).reshape(-1).view(np.dtype(np.uint32).newbyteorder(values.dtype.byteorder))
    low, high = SURROGATES
    if bool(((codes > LAST_CHARACTER) | ((codes >= low) & (codes <= high))).any()):
        raise MemgenError("its text is damaged: it holds numbers that are no characters")


def name_of_data(path: Path, arrays: Mapping[str, NDArray[Any]]) -> str:
    """Which array holds the rows: x, or the only one."""
    if len(arrays) != 1 and "x" not in arrays:
        raise MemgenError(f"{path} holds {len(arrays)} arrays ({_listed(arrays)}); it must hold one, or x")
    return "x" if "x" in arrays else next(iter(arrays))


def _listed(names: Mapping[str, object]) -> str:
    return ", ".join(map(repr, list(names)[:5]))[:80]


def check_numbers(path: Path, values: NDArray[Any]) -> None:
    if not (
        np.issubdtype(values.dtype, np.floating) or np.issubdtype(values.dtype, np.integer) or values.dtype == bool
    ):
        raise MemgenError(f"{path} holds {values.dtype}, not numbers")
