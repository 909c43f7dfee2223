"""Files that are whole or not there."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from memgen.errors import MemgenError


def write_atomically(path: Path, content: bytes) -> None:
    """Replace a file in one step: after a kill or a full disk at any moment, the old one or the new one is there."""
    scratch = path.with_name(path.name + ".tmp")
    try:
        with scratch.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        scratch.replace(path)
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        with contextlib.suppress(OSError):
            scratch.unlink(missing_ok=True)
        raise MemgenError(f"cannot write {path}: {error.strerror}; what was there before is still whole") from None
