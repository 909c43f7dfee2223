"""Files that pass their checksum and lie: the author of a file can also write its checksum."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from memgen.cli.main import main
from memgen.errors import MemgenError
from memgen.estimators import MemDensity, MemImputer
from memgen.runs.run import CHECKPOINT, WEIGHTS, load
from memgen.runs.storage import load_tensors, save_tensors

Change = Callable[[dict[str, Tensor], dict[str, str]], object]
DEEP, LONG = "[" * 5000, "1" * 5000


def change(path: Path, how: Change) -> Path:
    """The file again, changed, and with a checksum that is right."""
    tensors, about = load_tensors(path)
    how(tensors, about)
    save_tensors(path, tensors, about)
    return path


def says(key: str, text: str) -> Change:
    return lambda tensors, about: about.update({key: text})


def says_within(key: str, entry: str, value: Any) -> Change:
    return lambda tensors, about: about.update({key: json.dumps({**json.loads(about[key]), entry: value})})


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of a table of the user's own, of one epoch."""
    folder = tmp_path_factory.mktemp("lies")
    random = np.random.default_rng(0)
    lines = [f"{x:.4f},{'ab'[i % 2]}" for i, x in enumerate(random.normal(size=40))]
    (folder / "t.csv").write_text("size,kind\n" + "\n".join(lines) + "\n")
    settings = ["model.hidden=[4]", "model.slots=[2]", "model.latent=2", "training.epochs=1"]
    more = [part for setting in settings for part in ("--set", setting)]
    assert main(["train", "--data", str(folder / "t.csv"), "--out", str(folder / "run"), *more]) == 0
    return folder / "run"


FORMS: list[Change] = [
    says("form", DEEP),
    says("form", LONG),
    says("form", "[]"),
    says_within("form", "shape", [2, 2]),
    says_within("form", "shape", [10**18, 10**18]),
    says_within("form", "columns", None),
    says_within("form", "columns", {"columns": []}),
    says_within("form", "columns", {"columns": [3]}),
    says_within("form", "levels", 10**400),
    says_within("form", "classes", [1]),
    says("columns", "x"),
    says("columns", LONG),
    says("columns", "3"),
    says("columns", "-2"),
    says("epoch", "x"),
    says("epoch", "1e9"),
    says("recipe", "a" * 1000),
    says("recipe", "model.hidden = " + LONG),
    lambda tensors, about: about.pop("epoch"),
    lambda tensors, about: tensors.popitem(),
    lambda tensors, about: tensors.update(extra=torch.zeros(1)),
]


@pytest.mark.parametrize("how", FORMS)
def test_a_model_that_lies_is_one_line(run: Path, tmp_path: Path, how: Change) -> None:
    path = change(Path(shutil.copy(run / WEIGHTS, tmp_path)), how)
    with pytest.raises(MemgenError) as error:
        load(path)
    assert "\n" not in str(error.value)


CHECKPOINTS: list[Change] = [
    says("counts", DEEP),
    says("counts", "[]"),
    says("counts", "{}"),
    says_within("counts", "epoch", "1"),
    says_within("counts", "epoch", -1),
    says_within("execution", "threads", "2"),
    says_within("execution", "threads", 10**9),
    says_within("execution", "device", 3),
    says("execution", "{}"),
    lambda tensors, about: about.pop("execution"),
    lambda tensors, about: tensors.pop("generator"),
    lambda tensors, about: tensors.update(generator=torch.zeros(3)),
]


@pytest.mark.parametrize("how", CHECKPOINTS)
def test_a_checkpoint_that_lies_is_one_line(
    run: Path, tmp_path: Path, how: Change, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    change(folder / CHECKPOINT, how)
    capsys.readouterr()
    assert main(["train", "--resume", "--out", str(folder)]) == 2
    shown = capsys.readouterr().err.strip().splitlines()
    assert len(shown) == 1
    assert "checkpoint" in shown[0] or "metrics" in shown[0]


ESTIMATORS: list[Change] = [
    says_within("fitted", "fit", "x"),
    says_within("fitted", "__class__", "x"),
    says_within("fitted", "seed_", "x"),
    says_within("fitted", "validation_scores_", {"x": 1}),
    says_within("fitted", "validation_scores_", {"1": "x"}),
    says_within("fitted", "missing_", [99]),
    says("fitted", "[]"),
    says("fitted", DEEP),
    says_within("settings", "nobody", 1),
    says("settings", "{}"),
    says("settings", LONG),
    says("columns", "{}"),
    says("recipe", "x"),
    lambda tensors, about: about.pop("fitted"),
    lambda tensors, about: tensors.popitem(),
]


@pytest.fixture(scope="module")
def imputer(tmp_path_factory: pytest.TempPathFactory) -> Path:
    X = np.random.default_rng(0).normal(size=(40, 3))
    X[::5, 1] = np.nan
    path = tmp_path_factory.mktemp("imputer") / "imputer.safetensors"
    MemImputer(epochs=1, hidden=[4], latent=2, random_state=0).fit(X).save(path)
    return path


@pytest.mark.parametrize("how", ESTIMATORS)
def test_an_estimator_that_lies_is_one_line_and_gets_declared_attributes_only(
    imputer: Path, tmp_path: Path, how: Change
) -> None:
    path = change(Path(shutil.copy(imputer, tmp_path)), how)
    with pytest.raises(MemgenError) as error:
        MemImputer.load(path)
    assert "\n" not in str(error.value)
    with pytest.raises(MemgenError, match="not a MemDensity"):
        MemDensity.load(imputer)


def test_kept_scores_that_lie_do_not_count(run: Path, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    arguments = ["evaluate", str(folder), "--samples", "3"]
    assert main(arguments) == 0
    (file,) = (folder / "likelihood").iterdir()
    kept = file.read_bytes()
    lies: list[Change] = [
        lambda tensors, about: tensors.pop("log_p"),
        lambda tensors, about: tensors.update(elbo=torch.zeros(1)),
        lambda tensors, about: tensors.update({"bound.x": tensors["elbo"].clone()}),
        lambda tensors, about: about.pop("weights"),
        says("seconds", "x"),
    ]
    for how in lies:
        file.write_bytes(kept)
        change(file, how)
        assert main(arguments) == 0
        assert load_tensors(file)[0]["log_p"].equal(_loaded(kept, tmp_path)["log_p"])


def _loaded(content: bytes, folder: Path) -> dict[str, Tensor]:
    (folder / "kept").write_bytes(content)
    return load_tensors(folder / "kept")[0]
