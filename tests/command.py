"""What tests of the command line share: a command that answers in JSON, and one that is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from memgen.cli.main import main

QUICK = ["--set", "training.epochs=3", "--set", "training.evaluate_every=2", "--set", "training.evaluate_rows=50"]


def told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> dict[str, Any]:
    """The one JSON object that a command prints on stdout."""
    capsys.readouterr()
    assert main([*arguments, "--json"]) == 0
    out = capsys.readouterr().out
    assert out.count("\n") == 1
    found: dict[str, Any] = json.loads(out)
    return found


def refused(capsys: pytest.CaptureFixture[str], arguments: list[str], *words: str) -> str:
    """A command that exits with 2 and one line that has all the words."""
    capsys.readouterr()
    code = main(arguments)
    captured = capsys.readouterr()
    assert code == 2, captured
    assert captured.out == ""
    assert captured.err.count("\n") == 1, captured.err
    for word in words:
        assert word in captured.err
    return captured.err


def refused_last(capsys: pytest.CaptureFixture[str], arguments: list[str], words: str) -> None:
    """Exit code 2, nothing on stdout, the words in the last line of stderr (there is progress before it)."""
    capsys.readouterr()
    assert main(arguments) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert words in captured.err.splitlines()[-1]


def copied(run: Path, tmp_path: Path) -> Path:
    """A copy of a run, to be changed."""
    return Path(shutil.copytree(run, tmp_path / "copy"))
