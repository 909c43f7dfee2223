"""What a terminal shows: help, completion, progress, errors without a traceback."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import memgen
from memgen.cli.main import SECTIONS, main
from memgen.data import DATASETS
from memgen.recipes import listing
from tests.command import told


def test_show_a_recipe_and_a_run(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert told(capsys, ["show", "mnist-mem-vae"])["parameters"] == 1_550_084
    shown = told(capsys, ["show", str(run)])
    assert shown["parameters"] == sum(shown["parts"].values()) == memgen.count_parameters(memgen.load(run))
    assert shown["metrics"]["epoch"] == 3
    assert shown["recipe"]["training"]["epochs"] == 3
    assert main(["show", str(run)]) == 0
    out = capsys.readouterr().out
    assert "epoch 3 of 3" in out
    assert "recognition net Q" in out


def test_recipes_and_data_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    told_of = told(capsys, ["recipes"])
    assert {entry["name"] for entry in told_of["recipes"]} == set(memgen.recipe_names())
    assert {entry["name"] for entry in told_of["schedules"]} >= {"paper", "fast", "long"}
    assert main(["recipes"]) == 0
    assert capsys.readouterr().out.count("\n") < 50  # on one screen
    listed = told(capsys, ["data", "list"])["datasets"]
    assert [entry["name"] for entry in listed] == list(DATASETS)
    assert list(DATASETS)[:5] == ["digits", "mnist", "mnist-255", "ocr_letters", "frey_faces"]
    assert told(capsys, ["data", "check", "digits"])["good"] is True


def test_help_is_fast_and_has_examples_everywhere(capsys: pytest.CaptureFixture[str]) -> None:
    code = "import sys\nfrom memgen.cli.main import main\nmain(['--help'])\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0
    for command in (
        "train",
        "evaluate",
        "sample",
        "show",
        "recipes",
        "data",
        "data list",
        "data fetch",
        "data check",
        "demo",
    ):
        assert main([*command.split(), "--help"]) == 0
        assert f"Examples:\n    memgen {command.split()[0]}" in capsys.readouterr().out


def test_without_a_command_the_help_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in (([], "Train and evaluate:"), (["data"], "fetch")):
        assert main(arguments) == 0
        assert words in capsys.readouterr().out


def test_an_unforeseen_error_is_one_line_with_the_place_of_its_trace(
    own_cache: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken() -> list[str]:
        raise ZeroDivisionError("one\nby none")

    monkeypatch.setattr(listing, "recipe_groups", broken)
    assert main(["recipes", "--json"]) == 70
    captured = capsys.readouterr()
    assert captured.out == ""
    assert re.fullmatch(r"memgen recipes: .*ZeroDivisionError: one; the full trace is in (\S+)\n", captured.err)
    trace = Path(captured.err.split()[-1])
    assert trace.parent == own_cache / "traces"
    assert "in broken" in trace.read_text()
    own_cache.joinpath("traces").rename(own_cache / "old")
    own_cache.joinpath("traces").write_text("in the way")
    assert main(["recipes"]) == 70
    elsewhere = Path(capsys.readouterr().err.split()[-1])
    assert "in broken" in elsewhere.read_text()
    elsewhere.unlink()


def test_tab_completes_commands_options_and_recipes(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def completions(*words: str) -> str:
        monkeypatch.setenv("_MEMGEN_COMPLETE", "bash_complete")
        monkeypatch.setenv("COMP_WORDS", " ".join(["memgen", *words]))
        monkeypatch.setenv("COMP_CWORD", str(len(words)))
        assert main([]) == 0
        return capsys.readouterr().out

    assert "plain,evaluate" in completions("eva")
    assert "plain,--samples" in completions("evaluate", "--sa")
    assert "plain,digits-mem-vae" in completions("train", "digits")


def test_a_bar_is_drawn_on_a_terminal() -> None:
    """Through a pseudo-terminal: a bar there, plain lines in a pipe."""
    import fcntl
    import os
    import pty
    import struct
    import termios

    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    code = "from memgen.runs.progress import Progress\nwith Progress('work', 3, 'step') as p:\n"
    code += "  for i in (1, 2, 3): p.to(i, 'note')"
    subprocess.run([sys.executable, "-c", code], stderr=slave, check=True)
    os.close(slave)
    drawn = os.read(master, 10_000)
    assert b"\r" in drawn
    assert b"3/3" in drawn
    os.close(master)
    piped = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert piped.stderr.splitlines() == ["work: 3/3 steps, 0 s  note"]


def test_output_into_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; '{sys.executable}' -m memgen recipes | head -1"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.startswith("digits:")
    assert "Traceback" not in done.stderr


def test_help_does_not_wait_for_torch() -> None:
    import subprocess
    import sys

    commands = ["", *(name for section in SECTIONS.values() for name in section)]
    code = "import sys; from memgen.cli.main import main\n"
    code += f"for name in {commands}: main([*name.split(), '--help'])\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_every_command_of_the_tasks_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("impute", "features", "classify", "inspect", "report"):
        assert main([command, "--help"]) == 0
        out: Any = capsys.readouterr().out
        assert "Examples:" in out
        assert max(map(len, out.splitlines())) <= 130
