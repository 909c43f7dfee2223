"""Checkpoints whose checksum is right and whose content is not: every field is checked before it is used."""

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
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs.modelfile import read_file, save
from memgen.runs.run import CHECKPOINT
from memgen.runs.storage import load_tensors, save_tensors
from memgen.training.state import State, begin

Tensors = dict[str, Tensor]
Change = Callable[[Tensors, dict[str, Any]], object]
ROWS = 40


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was stopped in the middle of its second epoch."""
    folder = tmp_path_factory.mktemp("restoring")
    rows = np.random.default_rng(0).normal(size=(ROWS, 2)).tolist()
    (folder / "t.csv").write_text("a,b\n" + "".join(f"{x:.4f},{y:.4f}\n" for x, y in rows))
    settings = ["model.hidden=[4]", "model.slots=[4]", "model.latent=2", "training.epochs=2", "training.batch_size=16"]
    more = [part for text in (*settings, "training.keep=best", "training.evaluate_every=1") for part in ("--set", text)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("memgen.runs.session.Session._tick", stopping_at(3))
        assert main(["train", "--data", str(folder / "t.csv"), "--out", str(folder / "run"), *more]) == 130
    return folder / "run"


def stopping_at(steps: int) -> Callable[..., Any]:
    """Session._tick of a training that is asked to stop after so many steps."""

    def with_progress(session: Any, progress: Any) -> Callable[[State, int], None]:
        def tick(state: State, n: int) -> None:
            session.state = state
            if state.optimizer.t == steps:
                session._interrupt()

        return tick

    return with_progress


def sets(name: str, value: Tensor) -> Change:
    return lambda tensors, counts: tensors.update({name: value})


def counts_as(**values: Any) -> Change:
    return lambda tensors, counts: counts.update(values)


def first_moment(tensors: Tensors) -> str:
    return next(name for name in tensors if name.startswith("first.") and tensors[name].numel() > 1)


LIES: dict[str, Change] = {
    "an index beyond the rows": sets("order", torch.arange(32) + 1_000_000),
    "a row twice": sets("order", torch.zeros(32, dtype=torch.int64)),
    "too few rows": sets("order", torch.arange(5)),
    "an order of truth values": sets("order", torch.ones(32, dtype=torch.bool)),
    "a short log": sets("log", torch.zeros(1, 3)),
    "a log of whole numbers": sets("log", torch.zeros(2, 3, dtype=torch.int64)),
    "other steps": sets("steps", torch.tensor(7)),
    "negative steps": sets("steps", torch.tensor(-3)),
    "steps of many numbers": sets("steps", torch.tensor([3, 3])),
    "a moment that would be spread": lambda t, c: t.update({first_moment(t): torch.zeros(1)}),
    "a moment of whole numbers": lambda t, c: t.update({first_moment(t): t[first_moment(t)].long()}),
    "best weights of another model": sets("best.extra", torch.zeros(1)),
    "the best epoch is to come": lambda t, c: t.update(kept=torch.tensor([2.0, 0.0], dtype=torch.float64)),
    "an infinite epoch": lambda t, c: t.update(kept=torch.tensor([torch.inf, 0.0], dtype=torch.float64)),
    "an unknown tensor": sets("another", torch.zeros(1)),
    "a stage that is not there": counts_as(stage=5),
    "a negative stage": counts_as(stage=-1),
    "a step that is not there": counts_as(step=99),
    "negative time": counts_as(seconds=-1),
    "time that is no number": counts_as(seconds=float("nan")),
}


@pytest.mark.parametrize("lie", LIES)
def test_a_checkpoint_that_lies_is_one_line(
    run: Path, tmp_path: Path, lie: str, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = tmp_path / "run"
    shutil.copytree(run, folder)
    tensors, about = load_tensors(folder / CHECKPOINT)
    assert len(tensors["order"]) == 32
    counts = json.loads(about["counts"])
    LIES[lie](tensors, counts)
    save_tensors(folder / CHECKPOINT, tensors, {**about, "counts": json.dumps(counts)})
    capsys.readouterr()
    assert main(["train", "--resume", "--out", str(folder)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert "checkpoint.safetensors" in line


def test_the_checkpoint_itself_is_accepted(run: Path, tmp_path: Path) -> None:
    shutil.copytree(run, tmp_path / "run")
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 0


SPARSE: dict[str, Callable[[Tensors, str], object]] = {
    "rows beyond the last": lambda t, name: t[f"rows.{name}"].add_(1_000_000),
    "negative rows": lambda t, name: t[f"rows.{name}"].sub_(1_000_000),
    "a row twice": lambda t, name: t[f"rows.{name}"].fill_(3),
    "rows as a mask": lambda t, name: t.update({f"rows.{name}": t[f"rows.{name}"].bool()}),
    "touched in the future": lambda t, name: t[f"last.{name}"].fill_(9),
    "moments of one row": lambda t, name: t.update({f"first.{name}": t[f"first.{name}"][:1]}),
}


@pytest.mark.parametrize("lie", SPARSE)
def test_rows_of_a_large_memory_that_lie_are_refused(lie: str) -> None:
    recipe = Recipe().override(
        ["model.hidden=[4]", "model.slots=[64]", "model.attention=product", "model.top=2", "model.latent=2"]
    )
    state = begin(build(recipe, 6), recipe)
    slot = next(slot for slot in state.optimizer.slots if slot.last is not None)
    assert slot.last is not None
    slot.last[[2, 7]] = 1
    state.optimizer.t = 1
    tensors = {name: value.clone() for name, value in state.tensors().items()}
    begin(build(recipe, 6), recipe).restore(tensors)  # it is good, until it lies
    SPARSE[lie](tensors, slot.name)
    with pytest.raises(MemgenError):
        begin(build(recipe, 6), recipe).restore(tensors)


@pytest.mark.parametrize(
    ("key", "value"), [("stages", "99"), ("stage", "\x1b[2J"), ("epoch", "10000"), ("weights", "best")]
)
def test_a_model_whose_progress_its_recipe_does_not_allow_is_refused(tmp_path: Path, key: str, value: str) -> None:
    recipe = Recipe().override(["model.hidden=[4]", "model.latent=2"])
    path = tmp_path / "model.safetensors"
    save(build(recipe, 6), path, recipe)
    tensors, about = load_tensors(path)
    save_tensors(path, tensors, {**about, key: value})
    with pytest.raises(MemgenError, match=f"its entry {key} does not fit"):
        read_file(path)
