"""Checks of output paths before the work begins."""

from __future__ import annotations

import tempfile
from pathlib import Path

from memgen.errors import MemgenError


def check_output(path: Path | None, ending: str, overwrite: bool = True) -> None:
    """Refuse a path to which no file with this ending can be written. Figures are replaced. Tables and arrays might be
    the user's own: they are replaced only with --overwrite.
    """
    if path is None:
        return
    if path.suffix.lower() != ending:
        raise MemgenError(f"{path}: give it a name that ends in {ending}")
    if not path.parent.is_dir():
        raise MemgenError(f"there is no folder {path.parent} to write {path.name} into")
    if path.is_dir():
        raise MemgenError(f"{path} is a folder, not a file to write")
    if path.exists() and not overwrite:
        raise MemgenError(f"{path} exists already; choose another name, or say --overwrite")
    check_writable(path.parent)


def check_writable(folder: Path) -> None:
    """Refuse a folder that takes no new file: a file is first written beside its final path, then renamed."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise MemgenError(f"cannot write into the folder {folder}: {error.strerror}") from None


def check_folder(folder: Path, option: str) -> None:
    """Create the folder if there is none, and refuse one that takes no new file."""
    if folder.exists() and not folder.is_dir():
        raise MemgenError(f"{folder} is a file; choose another {option}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MemgenError(f"cannot make the folder {folder}: {error.strerror}") from None
    check_writable(folder)
