"""Disks that are full, folders that cannot be written to, runs that are moved, and two processes on one run."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from memgen.data.output import is_scrap, write_atomically
from memgen.errors import MemgenError
from memgen.runs.run import CHECKPOINT, METRICS, WEIGHTS, load
from memgen.runs.storage import load_tensors
from tests.runs.test_resume import assert_same_end, command, finish, reference, start

__all__ = ["reference"]

IS_ROOT = os.geteuid() == 0


@contextlib.contextmanager
def small_disk(folder: Path, size: str) -> Iterator[Path]:
    """A file system of so many bytes, where the system permits to mount one."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    if shutil.which("mount") is None or subprocess.run(mount, capture_output=True).returncode != 0:
        pytest.skip("a file system cannot be mounted here; test_resume.py has a limit on the size of a file instead")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


def test_a_full_disk_keeps_what_was_there(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "64k") as disk:
        write_atomically(disk / "a", b"old")
        with pytest.raises(MemgenError, match="No space left on device; what was there before is still whole"):
            write_atomically(disk / "a", bytes(1 << 20))
        assert (disk / "a").read_bytes() == b"old"
        assert [entry.name for entry in disk.iterdir()] == ["a"]
        write_atomically(disk / "a", b"new")


def test_a_training_on_a_full_disk_ends_in_one_line_and_goes_on_elsewhere(reference: Path, tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", "200k") as disk:
        folder, log = disk / "run", tmp_path / "log"
        ballast = disk / "ballast"
        process = start(command(folder, "--checkpoint-every", "0"), log)
        while process.is_alive() and not (folder / CHECKPOINT).exists():
            time.sleep(0.001)
        with contextlib.suppress(OSError), ballast.open("wb") as file:
            file.write(bytes(1 << 20))
        process.join(120)
        assert process.exitcode == 2
        assert "Traceback" not in log.read_text()
        assert "No space left on device" in log.read_text().splitlines()[-1]
        load_tensors(folder / CHECKPOINT)
        assert not any(is_scrap(path.name) for path in folder.iterdir())
        moved = shutil.copytree(folder, tmp_path / "moved")
    assert finish(["train", "--resume", "--out", str(moved)], log) == 0
    assert_same_end(moved, reference)


def test_a_folder_that_cannot_be_written_to_is_one_line(tmp_path: Path) -> None:
    """Not even by root: the folder is no folder, or of the system's own."""
    locked = Path("/proc/self/task") if IS_ROOT else tmp_path / "locked"
    if not IS_ROOT:
        locked.mkdir(mode=0o555)
    with pytest.raises(MemgenError, match=f"cannot write {locked / 'a'}"):
        write_atomically(locked / "a", b"new")
    (tmp_path / "file").write_text("old")
    with pytest.raises(MemgenError, match="Not a directory"):
        write_atomically(tmp_path / "file" / "a", b"new")
    log = tmp_path / "log"
    assert finish(command(locked / "run"), log) == 2
    assert "Traceback" not in log.read_text()
    assert "cannot make the folder" in log.read_text().splitlines()[-1]


def test_a_run_that_is_moved_while_it_trains_ends_in_one_line_and_goes_on_there(
    reference: Path, tmp_path: Path
) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    process = start(command(folder, "--checkpoint-every", "0"), log)
    while process.is_alive() and not (folder / CHECKPOINT).exists():
        time.sleep(0.001)
    folder.rename(tmp_path / "moved")
    process.join(120)
    assert process.exitcode == 2
    assert "Traceback" not in log.read_text()
    assert "No such file or directory" in log.read_text().splitlines()[-1]
    assert not folder.exists()
    assert finish(["train", "--resume", "--out", str(tmp_path / "moved")], log) == 0
    assert_same_end(tmp_path / "moved", reference)


def test_a_model_is_read_while_it_is_being_trained(tmp_path: Path) -> None:
    """Two processes on one run: one replaces the files over and over, the other reads whole ones every time."""
    folder, log = tmp_path / "run", tmp_path / "log"
    process = start(command(folder, "--checkpoint-every", "0", "--set", "training.evaluate_every=1"), log)
    read = 0
    while process.is_alive():
        if (folder / WEIGHTS).exists():
            load(folder)
            load_tensors(folder / CHECKPOINT)
            read += 1
        time.sleep(0.001)
    assert process.exitcode == 0
    assert read > 0
    assert len((folder / METRICS).read_text().splitlines()) == 20
