"""Validation rows during the training of an estimator are scored in pieces, and not more of them than needed."""

from __future__ import annotations

import pytest
import torch

from memgen.core.batch import Batch
from memgen.core.model import infer_all
from memgen.core.noise import Purpose, generator
from memgen.core.objective import importance
from memgen.data.dataset import Dataset
from memgen.estimators import training
from memgen.estimators.training import VALIDATION_SAMPLES, WATCHED, Watch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training.prepare import prepare
from tests.tasks.test_defensive import REAL, TABLE, rows


def test_the_bounds_in_pieces_are_those_of_all_rows_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = Recipe().override(TABLE)
    model = build(recipe, 3, REAL)
    watch = Watch(prepare(recipe, Dataset("table", rows(50), rows(30)), model=model))
    noise = model.noise(VALIDATION_SAMPLES, 30, generator(recipe.training.seed, Purpose.EVALUATION))
    model.eval()
    with torch.no_grad():
        expected = importance(infer_all(model, Batch(rows(30)), noise).log_w).double()
    for size in (7, 64):
        monkeypatch.setattr(training, "ROWS", size)
        torch.testing.assert_close(watch.bounds(model, rows(30)), expected, atol=1e-4, rtol=0)
    assert len(watch.bounds(model, rows(WATCHED + 5))) == WATCHED
