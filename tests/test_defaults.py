"""The trials of defaults go on where they were, and keep to the tables for choosing."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import defaults
from benchmarks.density import split
from memgen import MemDensity


def test_trials_are_kept_and_go_on(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(defaults.CHOICES, "short", lambda train: {"epochs": 2, "n_samples": 5, "hidden": [4]})
    keep = ["--tables", "iris", "--methods", "short", "--keep", str(tmp_path / "kept.jsonl")]
    assert defaults.main([*keep, "--seeds", "1"]) == 0
    assert "1 cells, 0 of them kept" in capsys.readouterr().out
    assert defaults.main([*keep, "--seeds", "2"]) == 0
    printed = capsys.readouterr().out
    assert "2 cells, 1 of them kept" in printed
    assert "Epochs trained" in printed


def test_tables_of_the_reports_are_refused() -> None:
    with pytest.raises(SystemExit, match="defaults are chosen on"):
        defaults.main(["--tables", "wine"])


def test_every_choice_is_a_setting_of_the_estimator() -> None:
    train, _ = split("iris", 0)
    for change in defaults.CHOICES.values():
        MemDensity(**change(train))
