"""Files that are whole or not there: atomic writes, and safetensors with a checksum. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
import struct
from pathlib import Path

import safetensors.torch
import torch
from safetensors import safe_open
from torch import Tensor

from memgen.data.output import write_atomically
from memgen.errors import MemgenError, reason

CHECKSUM = "sha256"
LARGEST_HEADER = 1 << 25
"""Bytes of names, shapes and metadata: the schema of a table with 200,000 columns fits."""
MOST_TENSORS = 100_000
METADATA = "__metadata__"
"""The entry of the header that is not a tensor."""
LENGTH = struct.Struct("<Q")
"""Of the header: the first bytes of a safetensors file."""


def checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """sha256 over names, types, shapes and bytes, and over the metadata."""
    digest = hashlib.sha256()
    digest.update(json.dumps({key: metadata[key] for key in sorted(metadata) if key != CHECKSUM}).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file with metadata and a checksum over both, written atomically; equal tensors and metadata give
    equal bytes."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    about = {**metadata, CHECKSUM: checksum(plain, metadata)}
    write_atomically(path, *with_metadata(safetensors.torch.save(plain), about))


def with_metadata(content: bytes, metadata: dict[str, str]) -> tuple[bytes, memoryview]:
    """A safetensors file with metadata in the order of their names; the library itself writes them in any order."""
    (length,) = LENGTH.unpack_from(content)
    start = LENGTH.size + length
    entries = json.loads(content[LENGTH.size : start])
    about = {METADATA: dict(sorted(metadata.items())), **entries}
    header = json.dumps(about, ensure_ascii=False, separators=(",", ":")).encode()
    header += b" " * (-len(header) % LENGTH.size)  # the tensors stay aligned
    if len(header) > LARGEST_HEADER:
        raise MemgenError(f"names and metadata take {len(header):,} bytes; at most {LARGEST_HEADER:,} are kept")
    return LENGTH.pack(len(header)) + header, memoryview(content)[start:]


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; a file that is missing, truncated, altered or beyond the limits is an error that says so.

    Nothing is allocated beyond the size of the file: the library compares the sizes that the header tells with it.
    """
    check_header(path)
    try:
        with safe_open(path, framework="pt") as file:
            names = list(file.keys())
            if len(names) > MOST_TENSORS:
                raise MemgenError(f"it has {len(names):,} tensors, and at most {MOST_TENSORS:,} are read")
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in names}
            actual = checksum(tensors, metadata)
    except Exception as error:  # of the library, and of torch for types that it only half knows
        raise MemgenError(f"{path} is corrupt, or no model file: {reason(error)}") from None
    if metadata.get(CHECKSUM) != actual:
        raise MemgenError(f"{path} is corrupt: its content does not match its checksum")
    return tensors, metadata


def check_header(path: Path) -> None:
    """Refuse a file that cannot be read, or that begins with a header of absurd length."""
    try:
        with path.open("rb") as file:
            start = file.read(LENGTH.size)
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None
    if len(start) == LENGTH.size and (length := LENGTH.unpack(start)[0]) > LARGEST_HEADER:
        raise MemgenError(
            f"{path} is corrupt, or no model file: its header has {length:,} bytes, and at most {LARGEST_HEADER:,} "
            "are read"
        )
