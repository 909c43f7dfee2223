"""What training and reports say about the user's own data: its name, its rows, what the curves show."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memgen.cli.main import main
from memgen.report.figures.curves import training_curves
from memgen.runs.run import Run


def test_other_data_than_the_recipes_are_named_and_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("scans.npy", np.random.RandomState(0).randint(0, 256, (40, 4, 4)).astype(np.uint8))
    small = ["--set", "training.epochs=1", "--set", "model.hidden=[4]", "--set", "model.slots=[]"]
    command = ["train", "digits-vae", "--data", "scans.npy", "--out", "run", "--set", "data.train_on=train+valid"]
    assert main([*command, *small]) == 0
    assert "(36 train+valid, 4 test)" in capsys.readouterr().out
    about = Run.open(Path("run")).recipe.about
    assert "scans.npy" in about
    assert "scikit-learn" not in about


def test_a_caption_says_that_bounds_are_left_out_only_where_some_are() -> None:
    steady = [{"epoch": i, "bound": -10.0 - 0.01 * i} for i in range(1, 31)]
    assert "left out" not in training_curves(steady).caption
    assert "left out" in training_curves([{"epoch": 0, "bound": -1000.0}, *steady]).caption
