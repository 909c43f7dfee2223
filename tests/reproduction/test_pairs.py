"""Differences of two rows, groups of classes, and ways to share slots."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from memgen.recipes.settings import Recipe
from memgen.runs.storage import load_tensors, save_tensors
from reproduction import jobs, pairs
from reproduction import sweep as sweeping
from reproduction.__main__ import main as reproduce
from reproduction.analyses import group
from reproduction.job import Job, Place, read_json
from reproduction.rows import ROWS
from tests.conftest import needs_data
from tests.reproduction.commands import asked


def test_differences_of_weights_that_are_no_more_are_not_shown(made: Path) -> None:
    results, pair = made / "results", ("digits-mem-vae", "digits-vae")
    assert len(pairs.valid(results, pair)) == 1
    path = results / "digits-vae.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["weights_sha256"], "f" * 64))
    assert pairs.valid(results, pair) == []


def test_a_pair_needs_the_results_and_no_run(made: Path) -> None:
    """The other half may have been trained on another machine; numbers of other weights are no half of it."""
    place = Place(made / "results", made / "nowhere")
    file, job = pairs.file_of(place.results, ("digits-mem-vae", "digits-vae")), Job(ROWS["digits-vae"], "paper")
    before = read_json(file)
    file.unlink()
    pairs.update(job, place)
    assert read_json(file) == before
    file.unlink()
    own = jobs.examples_of(job, place, jobs.LIKELIHOOD)
    numbers, about = load_tensors(own)
    for other in ({"weights_sha256": "others"}, {"samples": "7"}):
        save_tensors(own, numbers, about | other)
        pairs.update(job, place)
        assert not file.exists()
    # Where the run is at hand they are made again, though the result lacks nothing.
    assert reproduce(asked(made, "digits-vae")) == 0
    assert read_json(file) == before


@needs_data
def test_ways_to_share_slots_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few images and with small layers: who is best on validation images is said, with the paired difference."""
    base = Recipe.named("mnist-mem-vae", "fast").until("main")
    small = ["model.hidden=[8, 8]", "model.latent=2", "training.batch_size=5000", "training.evaluate_every=0"]
    monkeypatch.setattr(sweeping, "EPOCHS", 1)
    monkeypatch.setattr(sweeping, "EXAMPLES", 50)
    monkeypatch.setattr(sweeping, "SAMPLES", 5)
    monkeypatch.setattr(sweeping, "SLOT_SPLITS", ((70, 30), (10, 90)))
    monkeypatch.setattr(
        sweeping,
        "recipe_of",
        lambda slots: base.override([f"model.slots={list(slots)}", "data.train_on=train", "training.epochs=1", *small]),
    )
    found = sweeping.sweep(Place(tmp_path, tmp_path / "runs"))
    one, other = (found["splits"][name] for name in ("70-30", "10-90"))
    assert one["minus_paper"] == 0
    assert other["minus_paper"] == pytest.approx(other["log_likelihood"] - one["log_likelihood"])
    assert sweeping.sweep(Place(tmp_path, tmp_path / "nowhere")) == found


def test_a_group_of_classes_is_ranked_among_all() -> None:
    """Classes 0 and 1 are alike, 2 and 3 a little: of the six pairs theirs are first and second."""
    matrix = torch.eye(4)
    for i, j, value in ((0, 1, 0.9), (2, 3, 0.4)):
        matrix[i, j] = matrix[j, i] = value
    assert group(matrix, (0, 1)) == {"inside": 0.9, "least": 0.9, "across": 0.0, "rank": 1, "groups": 6}
    assert group(matrix, (0, 1, 2))["least"] == 0  # the third has nothing in common with them
    assert group(matrix, (2, 3))["rank"] == 2


def test_the_mean_of_differences_and_its_error_are_over_trainings() -> None:
    """Over seeds; where there are several splits, over them, whatever number of seeds each has."""
    own = [{"schedule": "fast", "split": 0, "mean": value} for value in (1.0, 2.0, 3.0)]
    found = pairs.over([*own, {"schedule": "paper", "split": 0, "mean": 9.0}], "fast")
    assert (found["trainings"], found["over"]) == (3, "seeds")
    assert found["mean"] == pytest.approx(2.0)
    assert found["standard_error"] == pytest.approx((1 / 3) ** 0.5)
    found = pairs.over([*own, {"schedule": "fast", "split": 1, "mean": 4.0}], "fast")
    assert (found["trainings"], found["over"], found["mean"]) == (2, "splits", pytest.approx(3.0))
