"""The C library: compiled once, loaded from a folder that is ours, and done without where it cannot be had."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from memgen.accelerate import library
from memgen.accelerate.calls import bind
from memgen.accelerate.library import private_folder
from memgen.training.execution import flushed_denormals

needs_library = pytest.mark.skipif(
    library.library() is None, reason="there is no C compiler here, so memgen runs plain torch"
)
CODE = "from memgen.accelerate.library import library; library(); print(library() is None)"


FAST = '#!/bin/sh\nexec {cc} "$@" -O0\n'
"""A compiler that does not optimise, for tests of where its output lies."""


def answer(cache: Path, **settings: str) -> tuple[bool, list[str]]:
    """Whether a process goes without the library, and its warnings."""
    environment = os.environ | {"MEMGEN_CACHE": str(cache)} | settings
    command = [sys.executable, "-W", "always", "-c", CODE]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip() == "True", [line for line in done.stderr.splitlines() if "Warning" in line]


def test_a_machine_with_a_compiler_has_the_library() -> None:
    """Else all tests of it would be skipped, and a library that no longer compiles would go unnoticed."""
    if sys.platform == "linux" and shutil.which("cc") and os.environ.get("MEMGEN_NATIVE") != "0":
        assert library.library() is not None
    assert library.serves(torch.zeros(3)) == (library.library() is not None)
    assert not library.serves(torch.zeros(3, dtype=torch.float64))
    assert not library.serves(torch.zeros(3, 4).t())


def test_who_wants_none_gets_none_and_no_warning(tmp_path: Path) -> None:
    assert answer(tmp_path / "cache", MEMGEN_NATIVE="0") == (True, [])
    assert answer(tmp_path / "cache", CC="", PATH=str(tmp_path)) == (True, [])


@pytest.mark.skipif(sys.platform != "linux", reason="there is no library on other systems")
@pytest.mark.parametrize(
    ("compiler", "word"),
    [
        ("'cc", "cannot be read"),
        ("no-such-compiler -O2", "cannot be run"),
        ("{folder}/cc", "the C compiler failed: no"),
    ],
)
def test_a_compiler_that_does_not_work_is_one_line(compiler: str, word: str, tmp_path: Path) -> None:
    """And nothing half-made is left in the cache."""
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\necho first >&2\necho no >&2\nexit 1\n")
    broken.chmod(0o755)
    without, warned = answer(tmp_path / "cache", CC=compiler.format(folder=tmp_path))
    assert without
    assert len(warned) == 1
    assert word in warned[0]
    assert "plain torch" in warned[0]
    assert not any(tmp_path.glob("cache/native/*"))


@needs_library
def test_a_cache_that_others_can_write_to_is_refused(tmp_path: Path) -> None:
    """Another user who can write there could have memgen load any code."""
    for folder in (tmp_path / "open", tmp_path / "half" / "native"):
        folder.mkdir(parents=True)
        folder.chmod(0o777 if folder.name == "open" else 0o775)
    for cache in ("open", "half"):
        without, warned = answer(tmp_path / cache)
        assert without
        assert len(warned) == 1
        assert "others can write" in warned[0]
    assert not any(tmp_path.glob("*/native/*"))


def test_a_folder_of_another_user_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "getuid", lambda: tmp_path.stat().st_uid + 1)
    with pytest.raises(library.UnusableError, match="another user"):
        private_folder(tmp_path)


@needs_library
def test_a_cache_that_cannot_be_made_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    without, warned = answer(tmp_path / "file" / "cache")
    assert without
    assert len(warned) == 1


@needs_library
def test_the_cache_is_made_for_us_alone_and_a_damaged_library_is_made_again(tmp_path: Path) -> None:
    cache, compiler = tmp_path / "cache", tmp_path / "cc"
    compiler.write_text(FAST.format(cc=os.environ.get("CC") or "cc"))
    compiler.chmod(0o755)
    for _ in range(2):
        assert answer(cache, CC=str(compiler)) == (False, [])
        (made,) = cache.glob("native/*.so")
        made.write_bytes(made.read_bytes()[:1000])
    assert [stat.S_IMODE(path.stat().st_mode) for path in (cache, cache / "native")] == [0o700, 0o700]


@needs_library
def test_denormal_numbers_are_flushed_on_every_thread_and_only_inside() -> None:
    threads, tiny = torch.zeros((), dtype=torch.int64), torch.full((100_000,), 1e-30)
    flushing = bind("flushing", threads)
    with flushed_denormals():
        flushing()
        assert int(threads) == torch.get_num_threads()
        assert (tiny * 1e-10).count_nonzero() == 0
    flushing()
    assert int(threads) == 0
    assert (tiny * 1e-10).count_nonzero() == len(tiny)
