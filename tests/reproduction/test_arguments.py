"""The command line of the reproduction: groups, options, and one line for bad input."""

from __future__ import annotations

from pathlib import Path

import pytest

from reproduction.__main__ import main as reproduce
from tests.reproduction.commands import asked, told


@pytest.mark.parametrize(
    "more", [["--seed", "1"], ["--schedule", "paper"], ["all", "--schedule", "fast"], ["--schedule", "long"]]
)
def test_groups_leave_out_what_an_option_does_not_go_with(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {row["row"] for row in told(capsys, asked(tmp_path, "--status", *more))["rows"]}
    assert "mnist-vae" in found
    assert "slots" not in found
    assert ("frey-vae-b10" in found) == (not {"fast", "long"} & {*more})


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, words in (
        (["mnist-vea"], "did you mean 'mnist-vae'"),
        (["frey-vae-b10", "--schedule", "fast"], "has no fast schedule"),
        (["frey", "--schedule", "fast"], "none of frey has a fast schedule"),
        (["--status", "frey", "--schedule", "long"], "none of frey has a long schedule"),
        (["--status", "--verify"], "ask for one"),
        (["--limit", "100"], "--verify"),
        (["--verify"], "which row?"),
        (["--ship", "mnist-vae"], "no result yet"),
        (
            ["--ship", "mnist-vae", "--seed", "1"],
            "mnist-vae-fast-seed1 has no result yet: python -m reproduction mnist-vae --schedule fast --seed 1",
        ),
        (["--ship", "mnist-vae", "--budget", "1m"], "--budget does not go with --ship"),
        (["--ship", "slots"], "no row with weights"),
        (["slots", "--seed", "1"], "do not go with slots"),
    ):
        assert reproduce(asked(tmp_path, *more)) == 2, more
        told = capsys.readouterr().err.strip()
        assert words in told, more
        assert "\n" not in told
    assert reproduce(asked(tmp_path, "--budget", "soon")) == 2
    assert "150m" in capsys.readouterr().err
    assert not any(tmp_path.glob("r*"))
    (tmp_path / "results").write_text("not a folder")
    assert reproduce(asked(tmp_path, "mnist-vae")) == 2
    assert "cannot make the folder" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    (tmp_path / "results").unlink()
    (tmp_path / "results").mkdir()
    for text in ("{}", "[]", "{"):
        (tmp_path / "results" / "mnist-vae.json").write_text(text)
        assert reproduce(asked(tmp_path, "--status", "mnist-vae")) == 2
        assert "is damaged" in capsys.readouterr().err
