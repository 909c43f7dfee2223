"""Small files that would expand, and names that would command a terminal."""

from __future__ import annotations

import gzip
import tracemalloc
from pathlib import Path

import pytest

from memgen.cli.main import main
from memgen.data import source
from memgen.data.files import LARGEST
from memgen.errors import MemgenError, printable


def test_a_published_file_is_not_expanded_beyond_its_size(tmp_path: Path) -> None:
    """A gigabyte of zeros takes a megabyte of file."""
    path = tmp_path / "train-images-idx3-ubyte.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(64):
            file.write(bytes(1 << 24))
    tracemalloc.start()
    with pytest.raises(MemgenError, match="expands to more than"):
        source("mnist").check(tmp_path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 3 * LARGEST


def test_names_in_files_do_not_command_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A cell that clears the screen, a name that turns the direction of text, and bytes that are no text."""
    table = tmp_path / "evil\x1b]0;title\x07.csv"
    table.write_text("a\x1b[2J,b\u202e\n" + "".join(f"{i / 7},{i % 3}\n" for i in range(40)) + "x\x1b[31m,3\n")
    assert main(["train", "--data", str(table), "--out", str(tmp_path / "run")]) == 2
    assert "is not a number" in (before := capsys.readouterr().err)
    assert main(["train", "--data", str(tmp_path / "\udcff.csv"), "--out", str(tmp_path / "run")]) == 2
    table.write_text("a\x1b[2J,b\u202e\n" + "".join(f"{i / 7},{i % 3}\n" for i in range(40)))
    sizes = [
        part
        for text in ("model.hidden=[2]", "model.slots=[2]", "model.latent=2", "training.epochs=1")
        for part in ("--set", text)
    ]
    assert main(["train", "--data", str(table), "--out", str(tmp_path / "run"), *sizes]) == 0
    output = capsys.readouterr()
    assert "a?[2J" in output.out
    assert not set(before + output.out + output.err) & {"\x1b", "\x07", "\u202e", "\udcff"}


def test_text_in_any_script_stays_as_it_is() -> None:
    for text in ("Grüße, 東京, עברית", "two\nlines\tand a tab", "नमस्ते", "👩\u200d🔬"):
        assert printable(text) == text
    assert str(MemgenError("a\r\nb\x9b")) == "a b?"
