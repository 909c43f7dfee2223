"""Files that are written completely or not at all."""

from __future__ import annotations

import contextlib
import fcntl
import os
import secrets
import stat
from pathlib import Path

from memgen.errors import MemgenError

SCRATCH, ENDING = ".memgen-", ".tmp"
"""The beginning and the end of a temporary file's name; between them stand random digits."""


def write_atomically(path: Path, *content: bytes | memoryview) -> None:
    """Replace a file in one step: after a kill or a full disk at any moment, the old one or the new one is there.

    The content goes into a new file beside it, under an unused random name. It then replaces the old file and keeps the
    old permissions.
    """
    try:
        mode = replaced_mode(path)
        scratch, file = open_scratch(path.parent, mode)
        try:
            for part in content:
                write_all(file, part)
            os.fsync(file)
            scratch.replace(path)
        except BaseException:
            with contextlib.suppress(OSError):
                scratch.unlink(missing_ok=True)
            raise
        finally:
            os.close(file)
        sync_folder(path.parent)
    except OSError as error:
        raise MemgenError(f"cannot write {path}: {error.strerror}; what was there before is still whole") from None


def replaced_mode(path: Path) -> int | None:
    """The permissions of the file that is replaced; a device or a pipe is refused, because it would be lost."""
    try:
        mode = path.stat().st_mode
    except FileNotFoundError:
        return None
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):  # for a folder the system's own message is good
        raise MemgenError(f"cannot write {path}: it is a device or a pipe, not a file")
    return stat.S_IMODE(mode) & 0o777


def open_scratch(folder: Path, mode: int | None) -> tuple[Path, int]:
    """A new file, locked while it is written, so that `remove_scraps` leaves it alone."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    while True:
        scratch = folder / f"{SCRATCH}{secrets.token_hex(8)}{ENDING}"
        file = os.open(scratch, flags, 0o666 if mode is None else mode)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if mode is not None:
                os.fchmod(file, mode)
            return scratch, file
        except BlockingIOError:  # `remove_scraps` was there first, and is removing it
            os.close(file)


def write_all(file: int, content: bytes | memoryview) -> None:
    """The system may write less at a time than it is given."""
    rest = memoryview(content)
    while rest:
        rest = rest[os.write(file, rest) :]


def sync_folder(folder: Path) -> None:
    """Put the names of a folder's files onto the disk."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def is_scrap(name: str) -> bool:
    """Whether a file has the name of a temporary file.

    >>> is_scrap(".memgen-0123456789abcdef.tmp"), is_scrap("recipe.toml.tmp")
    (True, False)
    """
    return name.startswith(SCRATCH) and name.endswith(ENDING)


def remove_scraps(folder: Path) -> None:
    """Remove the temporary files of killed writers; those of running writers are locked, and stay."""
    with contextlib.suppress(OSError):
        for entry in [entry for entry in folder.iterdir() if is_scrap(entry.name)]:
            with contextlib.suppress(OSError), os.fdopen(os.open(entry, os.O_RDWR | os.O_NOFOLLOW), "rb") as file:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                entry.unlink(missing_ok=True)
