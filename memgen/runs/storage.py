"""Atomic writes, and safetensors files with a checksum. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from memgen.data.output import write_atomically
from memgen.errors import MemgenError, reason

CHECKSUM = "sha256"
LARGEST_HEADER = 1 << 25
"""Largest header in bytes: names, shapes and metadata. The schema of a table with 200,000 columns fits."""
MOST_TENSORS = 100_000
METADATA = "__metadata__"
"""The entry of the header that is not a tensor."""
LENGTH = struct.Struct("<Q")
"""The length of the header: the first bytes of a safetensors file."""


def checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """sha256 over names, types, shapes and bytes, and over the metadata."""
    digest = hashlib.sha256()
    digest.update(json.dumps({key: metadata[key] for key in sorted(metadata) if key != CHECKSUM}).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        stored = tensor.detach().cpu().contiguous()
        # A contiguous tensor of one entry may have any stride, which `view` to another type does not accept.
        flat = stored.as_strided((stored.numel(),), (1,))
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file with metadata and a checksum over both, written atomically; equal tensors and metadata give
    equal bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {**metadata, CHECKSUM: checksum(plain, metadata)}
    write_atomically(path, *with_metadata(safetensors.torch.save(plain), about))


def with_metadata(content: bytes, metadata: dict[str, str]) -> tuple[bytes, memoryview]:
    """A safetensors file with metadata in the order of their names; the library itself writes them in any order."""
    about = {METADATA: dict(sorted(metadata.items())), **header_of(content)}
    start = LENGTH.size + LENGTH.unpack_from(content)[0]
    header = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH.size)  # the tensors stay aligned
    if len(header) > LARGEST_HEADER:
        raise MemgenError(f"names and metadata take {len(header):,} bytes; at most {LARGEST_HEADER:,} are kept")
    return LENGTH.pack(len(header)) + header, memoryview(content)[start:]


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata. A file that is missing, truncated, altered or too large raises an error.

    The file is opened once, because another process may replace it at any moment. The library compares the sizes in
    the header with the size of the file, so no more memory is allocated than the file has.
    """
    content = read_content(path)
    try:
        tensors = safetensors.torch.load(content)
        metadata = header_of(content).get(METADATA, {})
        actual = checksum(tensors, metadata)
    except Exception as error:  # of the library, and of torch for types that it supports only in part
        raise MemgenError(f"{path} is corrupt, or no model file: {reason(error)}") from None
    if metadata.get(CHECKSUM) != actual:
        raise MemgenError(f"{path} is corrupt: its content does not match its checksum")
    return tensors, metadata


def read_content(path: Path) -> bytes:
    """The bytes of a file. A header beyond the limits is refused before the rest is read."""
    try:
        with path.open("rb") as file:
            start = file.read(LENGTH.size)
            length = LENGTH.unpack(start)[0] if len(start) == LENGTH.size else 0
            if length > LARGEST_HEADER:
                raise MemgenError(
                    f"{path} is corrupt, or no model file: its header has {length:,} bytes, and at most "
                    f"{LARGEST_HEADER:,} are read"
                )
            content = start + file.read()
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None
    if (n_tensors := content.count(b'"dtype"', 0, LENGTH.size + length)) > MOST_TENSORS:
        raise MemgenError(f"{path} has {n_tensors:,} tensors, and at most {MOST_TENSORS:,} are read")
    return content


def header_of(content: bytes) -> dict[str, Any]:
    """The header of a safetensors file: types and shapes of tensors, and metadata."""
    (length,) = LENGTH.unpack_from(content)
    entries: dict[str, Any] = json.loads(content[LENGTH.size : LENGTH.size + length])
    return entries
