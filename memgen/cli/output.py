"""Places to write into, checked before the work that fills them."""

from __future__ import annotations

import tempfile
from pathlib import Path

from memgen.errors import MemgenError


def check_output(path: Path | None, ending: str, overwrite: bool = True) -> None:
    """A file with this ending can be written there. Figures are drawn anew; tables and arrays might be the user's own,
    and are replaced if told to.
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
    """Files are written beside their place and moved there, so the folder must take a new file."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise MemgenError(f"cannot write into the folder {folder}: {error.strerror}") from None


def check_folder(folder: Path, option: str) -> None:
    """A folder for files can be made there, or is one that takes them."""
    if folder.exists() and not folder.is_dir():
        raise MemgenError(f"{folder} is a file; choose another {option}")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MemgenError(f"cannot make the folder {folder}: {error.strerror}") from None
    check_writable(folder)
