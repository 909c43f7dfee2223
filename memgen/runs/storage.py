"""Files that are whole or not there: atomic writes, and safetensors with a checksum. Nothing is ever unpickled."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import safetensors.torch
import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from memgen.data.output import write_atomically
from memgen.errors import MemgenError

CHECKSUM = "sha256"


def checksum(tensors: dict[str, Tensor], metadata: dict[str, str]) -> str:
    """sha256 over names, types, shapes and bytes, and over the metadata."""
    digest = hashlib.sha256()
    digest.update(json.dumps({key: metadata[key] for key in sorted(metadata) if key != CHECKSUM}).encode())
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_tensors(path: Path, tensors: dict[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file with metadata and a checksum over both, written atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    content = safetensors.torch.save(plain, {**metadata, CHECKSUM: checksum(plain, metadata)})
    write_atomically(path, content)


def load_tensors(path: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors and metadata; a file that is missing, truncated or altered is an error that says so."""
    try:
        path.open("rb").close()
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None
    try:
        with safe_open(path, framework="pt") as file:
            metadata = dict(file.metadata() or {})
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (SafetensorError, OSError, ValueError) as error:
        raise MemgenError(f"{path} is corrupt, or no model file: {str(error).splitlines()[0]}") from None
    if metadata.get(CHECKSUM) != checksum(tensors, metadata):
        raise MemgenError(f"{path} is corrupt: its content does not match its checksum")
    return tensors, metadata
