"""Feather files (Arrow's IPC format), whose stated sizes are checked before anything is decompressed.

A compressed buffer begins with its size after decompression. Where the buffers lie is in the metadata of a message, a
flatbuffer, of which only this is read here. pyarrow reads the same messages afterwards.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from memgen.data.arrays import ALWAYS_EXPANDED, EXPANSION
from memgen.errors import MemgenError, reason

if TYPE_CHECKING:
    import pyarrow

INSTALL = "pip install pyarrow"
MAGIC = b"ARROW1\0\0"
DICTIONARY, RECORDS = 2, 3
"""Types of messages."""


def read_feather_table(path: Path) -> pyarrow.Table:
    """All rows; MemgenError with one line for a damaged file and for one that would expand too far."""
    try:
        import pyarrow
    except ImportError:
        raise MemgenError(f"{path}: feather files need pyarrow; {INSTALL}") from None
    try:
        with pyarrow.OSFile(str(path)) as file:
            check_sizes(_messages(file), path.stat().st_size)
            file.seek(len(MAGIC))
            table = pyarrow.ipc.open_stream(file).read_all()
        table.validate(full=True)
    except Exception as error:  # pyarrow raises errors of many types for damaged files, MemoryError among them
        raise MemgenError(f"cannot read {path} as a feather file: {reason(error)}") from None
    return table


def _messages(file: Any) -> Iterator[Any]:
    import pyarrow

    if file.read(len(MAGIC)) != MAGIC:
        raise MemgenError("it does not begin as one of version 2 does")
    return iter(pyarrow.ipc.MessageReader.open_stream(file))


def check_sizes(messages: Iterator[Any], size: int) -> None:
    """Refuse messages that expand to more than EXPANSION times the size of the file."""
    expanded = 0
    for message in messages:
        expanded += sum(stated_sizes(memoryview(message.metadata), memoryview(message.body or b"")))
        if expanded > max(ALWAYS_EXPANDED, EXPANSION * size):
            raise MemgenError(f"it would expand to more than {EXPANSION} times its size")


def stated_sizes(metadata: memoryview, body: memoryview) -> Iterator[int]:
    """The size of every buffer of a message after decompression."""
    message = struct.unpack_from("<I", metadata)[0]
    kind = _field(metadata, message, 1)
    header = _table(metadata, message, 2)
    if kind is None or header is None or metadata[kind] not in (DICTIONARY, RECORDS):
        return
    batch = _table(metadata, header, 1) if metadata[kind] == DICTIONARY else header
    buffers = None if batch is None else _table(metadata, batch, 2)
    if batch is None or buffers is None:
        return
    compressed = _field(metadata, batch, 3) is not None
    for i in range(struct.unpack_from("<I", metadata, buffers)[0]):
        offset, length = struct.unpack_from("<qq", metadata, buffers + 4 + 16 * i)
        stated = struct.unpack_from("<q", body, offset)[0] if compressed and length >= 8 else length
        yield length if stated == -1 else max(stated, 0)  # -1: this buffer is not compressed


def _field(metadata: memoryview, table: int, number: int) -> int | None:
    """Where a field of a flatbuffer's table lies; None if it has its default."""
    layout = table - struct.unpack_from("<i", metadata, table)[0]
    if 4 + 2 * number >= struct.unpack_from("<H", metadata, layout)[0]:
        return None
    offset: int = struct.unpack_from("<H", metadata, layout + 4 + 2 * number)[0]
    return table + offset if offset else None


def _table(metadata: memoryview, table: int, number: int) -> int | None:
    """Where the table or vector begins to which a field refers."""
    field = _field(metadata, table, number)
    return None if field is None else field + int(struct.unpack_from("<I", metadata, field)[0])
