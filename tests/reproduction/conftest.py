"""The two models of digits as rows of the reproduction, and a folder with both of them done."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from memgen.recipes.settings import Recipe
from reproduction import analyses, rows
from reproduction.__main__ import main as reproduce
from reproduction.rows import IMPUTATION_PAPER, PAIRS, ROWS, Row, Scoring
from tests.checks import unchecked
from tests.reproduction.commands import asked

SMALL = [
    "model.hidden=[16, 8]",
    "model.latent=4",
    "training.epochs=12",
    "training.evaluate_every=6",
    "training.ema=0.9",
]


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Row]:
    """The two models of digits as if they were rows, small enough to train in a second."""
    named = Recipe.named

    def reduced(name: str, schedule: str | None = None) -> Recipe:
        slots = ["model.slots=[6, 4]"] if "mem" in name else []
        return named(name, schedule).override([*SMALL, *slots, "objective.local_reconstruction=[]"])

    scorings = (Scoring(20), Scoring(50, 40))
    own_analyses = {
        "digits-vae": ("svm", "imputation"),
        "digits-mem-vae": ("generation", "memory", "imputation", "svm"),
    }
    for name, own in own_analyses.items():
        monkeypatch.setitem(ROWS, name, Row(name, name, rows.MNIST, -20.0, scorings, own, by=("paper",)))
    PAIRS.append(("digits-mem-vae", "digits-vae"))
    kept = dict(IMPUTATION_PAPER)  # monkeypatch would bring an entry back at the end, and the page has their order
    IMPUTATION_PAPER["rect-4"] = dict.fromkeys(IMPUTATION_PAPER["half"], 0.1)
    del IMPUTATION_PAPER["rect-12"]
    monkeypatch.setattr(analyses, "STEPS", 5)
    monkeypatch.setattr(Recipe, "named", staticmethod(reduced))
    yield ROWS["digits-mem-vae"]
    PAIRS.pop()
    IMPUTATION_PAPER.clear()
    IMPUTATION_PAPER.update(kept)


@pytest.fixture
def made(small: Row, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both rows done, which takes a while once."""
    kept = tmp_path_factory.getbasetemp() / "made"
    if not kept.exists():
        with unchecked():
            assert reproduce(asked(kept, "digits-mem-vae", "digits-vae")) == 0
    return Path(shutil.copytree(kept, tmp_path / "made"))
