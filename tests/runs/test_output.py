"""Files are whole or not there, whatever other processes do beside them."""

from __future__ import annotations

import os
import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from memgen.data import output
from memgen.data.output import is_scrap, open_scratch, remove_scraps, write_atomically
from memgen.errors import MemgenError


def test_a_file_of_the_users_beside_the_output_is_left_alone(tmp_path: Path) -> None:
    """The name X.tmp is not ours: neither a file nor what a link of that name points to is touched."""
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a.csv.tmp").symlink_to(tmp_path / "secret")
    (tmp_path / "b.csv.tmp").write_text("notes")
    for name in ("a.csv", "b.csv"):
        write_atomically(tmp_path / name, b"new")
    assert (tmp_path / "secret").read_text() == "secret"
    assert (tmp_path / "b.csv.tmp").read_text() == "notes"
    assert (tmp_path / "a.csv").read_bytes() == b"new"
    assert not (tmp_path / "a.csv").is_symlink()


def test_a_link_under_the_scratch_name_is_not_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("secrets.token_hex", lambda size: "0" * 2 * size)
    (tmp_path / "secret").write_text("secret")
    (tmp_path / f"{output.SCRATCH}{'0' * 16}{output.ENDING}").symlink_to(tmp_path / "secret")
    with pytest.raises(MemgenError, match="File exists"):
        write_atomically(tmp_path / "a.csv", b"new")
    assert (tmp_path / "secret").read_text() == "secret"


def test_many_writers_and_readers_see_whole_files_only(tmp_path: Path) -> None:
    path = tmp_path / "shared"
    contents = [bytes([65 + i]) * (1 + 50_000 * i) for i in range(4)]
    write_atomically(path, contents[0])

    def write(content: bytes) -> None:
        for _ in range(25):
            write_atomically(path, content)

    def read(_: int) -> set[bytes]:
        return {path.read_bytes() for _ in range(200)}

    with ThreadPoolExecutor(8) as pool:
        writing = [pool.submit(write, content) for content in contents]
        seen = set().union(*pool.map(read, range(4)))
        for writer in writing:
            writer.result()
    assert seen <= set(contents)
    assert [entry.name for entry in tmp_path.iterdir()] == ["shared"]


@pytest.mark.parametrize("mode", [0o600, 0o640, 0o755])
def test_a_replaced_file_keeps_its_permissions(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "a"
    path.write_text("old")
    path.chmod(mode)
    write_atomically(path, b"new")
    assert stat.S_IMODE(path.stat().st_mode) == mode


def test_a_new_file_has_the_permissions_of_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_atomically(tmp_path / "a", b"new")
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a").stat().st_mode) == 0o640


def test_a_failed_write_leaves_nothing_and_keeps_the_old(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(file: int) -> None:
        raise OSError(28, "No space left on device")

    path = tmp_path / "a"
    path.write_text("old")
    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(MemgenError, match="No space left on device; what was there before is still whole"):
        write_atomically(path, b"new")
    assert path.read_text() == "old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["a"]


def test_an_interrupted_write_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(file: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(tmp_path / "a", b"new")
    assert not list(tmp_path.iterdir())


def test_a_folder_or_a_pipe_in_the_way_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    for name, reason in {"folder": "Is a directory", "pipe": "a device or a pipe", "none/a": "No such file"}.items():
        with pytest.raises(MemgenError, match=reason):
            write_atomically(tmp_path / name, b"new")
    assert stat.S_ISFIFO((tmp_path / "pipe").stat().st_mode)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["folder", "pipe"]


def test_a_name_of_the_greatest_length_can_be_written(tmp_path: Path) -> None:
    path = tmp_path / ("a" * 255)
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"


def test_what_a_killed_writer_left_is_removed_and_what_is_being_written_stays(tmp_path: Path) -> None:
    dead, file = open_scratch(tmp_path, None)
    os.close(file)
    alive, file = open_scratch(tmp_path, None)
    (tmp_path / "a.tmp").write_text("the user's")
    remove_scraps(tmp_path)
    os.close(file)
    assert is_scrap(dead.name)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == sorted([alive.name, "a.tmp"])
