"""Files in the idx format, in which MNIST and its like are published, also compressed by gzip."""

from __future__ import annotations

import gzip
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memgen.data.arrays import ALWAYS_EXPANDED, EXPANSION, check_size
from memgen.errors import MemgenError

NAME = re.compile(r"(?:.*[-.]idx\d-\w+|.*\.idx\d?)(?:\.gz)?", re.IGNORECASE)
TYPES = {0x08: "u1", 0x09: "i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
"""The third byte of a file -> the type of its values."""
MOST_AXES = 4


def is_idx(path: Path) -> bool:
    """Whether a file is in the idx format, by its name.

    >>> is_idx(Path("train-images-idx3-ubyte.gz")), is_idx(Path("digits.idx")), is_idx(Path("table.csv.gz"))
    (True, True, False)
    """
    return NAME.fullmatch(path.name) is not None


def read_idx(path: Path) -> NDArray[Any]:
    """The array of a file; its header must agree with its size."""
    try:
        content = _content(path)
        if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in TYPES or not 1 <= content[3] <= MOST_AXES:
            raise MemgenError("it does not begin as such files do")
        axes = content[3]
        start = 4 + 4 * axes
        if len(content) < start:
            raise MemgenError("it is cut off")
        shape = struct.unpack(f">{axes}I", content[4:start])
        kind = np.dtype(TYPES[content[2]])
        check_size(shape, kind, len(content) - start)
        count = int(np.prod(shape, dtype=object))
        values = np.frombuffer(content, kind, count, start).reshape(shape)
        return values.astype(kind.newbyteorder("="))
    except MemgenError as error:
        raise MemgenError(f"cannot read {path} as an idx file: {error}") from None


def _content(path: Path) -> bytes:
    """The decompressed content, of which no more is expanded than is allowed."""
    try:
        if path.suffix.lower() != ".gz":
            return path.read_bytes()
        most = max(ALWAYS_EXPANDED, EXPANSION * path.stat().st_size)
        with gzip.open(path) as file:
            content = file.read(most + 1)
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise MemgenError("its compressed content is damaged or cut off") from None
    except OSError as error:
        raise MemgenError(str(error.strerror)) from None
    if len(content) > most:
        raise MemgenError(f"it expands to more than {EXPANSION} times its size")
    return content


def labels_beside(path: Path) -> Path | None:
    """The file of the labels of a file of images, where both lie in one folder under the usual names.

    >>> labels_beside(Path("digits.idx")) is None
    True
    """
    name = path.name.replace("images-idx3", "labels-idx1").replace("images.idx3", "labels.idx1")
    return path.with_name(name) if name != path.name and path.with_name(name).is_file() else None
