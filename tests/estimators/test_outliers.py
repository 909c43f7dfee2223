"""MemDensity as an outlier detector, and log p of single columns."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.utils import estimator_checks

from memgen.core.batch import Batch
from memgen.errors import MemgenError
from memgen.estimators.table import MemDensity
from memgen.tasks.scoring import column_scores, score_rows
from tests.command import refused, told
from tests.tasks.test_defensive import far, quadrature, rows, trained
from tests.tasks.test_scoring import home as home

QUICK: dict[str, Any] = {"epochs": 3, "hidden": (4,), "slots": (3,), "latent": 2, "n_samples": 20, "batch_size": 64}


@pytest.mark.parametrize(
    "check",
    [
        "check_outliers_fit_predict",
        "check_outlier_contamination",
        "check_methods_subset_invariance",
        "check_fit_idempotent",
        "check_estimators_pickle",
    ],
)
def test_scikit_learn_checks_of_outlier_detectors(check: str) -> None:
    getattr(estimator_checks, check)("MemDensity", MemDensity(**QUICK, contamination=0.1, random_state=0))


def test_predict_calls_the_fraction_outliers_and_names_the_row_far_out(tmp_path: Path) -> None:
    x = rows(60).numpy()
    x[7] = 40
    density = MemDensity(epochs=20, n_samples=20, contamination=0.1, random_state=0).fit(x)
    predicted = density.predict(x)
    assert (predicted == -1).sum() == 6
    assert predicted[7] == -1
    density.save(tmp_path / "density.safetensors")
    assert MemDensity.load(tmp_path / "density.safetensors").offset_ == density.offset_


def test_without_contamination_there_is_no_predict() -> None:
    density = MemDensity(**QUICK, random_state=0).fit(rows(40).numpy())
    assert not hasattr(density, "predict")
    assert density.offset_ is None
    with pytest.raises(MemgenError, match="fitted without contamination"):
        density.set_params(contamination=0.1).predict(rows(5).numpy())
    with pytest.raises(MemgenError, match="contamination"):
        density.set_params(contamination=0.9).fit(rows(40).numpy())


def test_log_p_of_a_column_given_the_others_is_that_of_quadrature() -> None:
    """Ordinary rows, and rows of which one value lies 10 standard deviations away."""
    batch = Batch(torch.cat([rows(2).double(), far(10).x[:3]]))
    samples = 1000
    whole = score_rows(trained(), batch, samples)
    scores = column_scores(trained(), batch, whole.log_p, samples)
    for column in range(3):
        x = batch.x.clone()
        x[:, column] = torch.nan
        exact = quadrature(trained(), batch) - quadrature(trained(), Batch.of(x))
        torch.testing.assert_close(scores[:, column], exact, atol=0.5, rtol=0)
    assert (scores[2:].argmin(1) == torch.arange(3)).all()


def test_columns_are_scored_on_the_command_line(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "scores.csv"
    arguments = ["score", str(home / "run"), "--input", str(home / "new.csv"), "-o", str(output), "--samples", "50"]
    told(capsys, [*arguments, "--columns"])
    lines = list(csv.DictReader(output.read_text().splitlines()))
    assert lines[2]["least_expected"] in ("height", "weight")
    assert lines[1]["log_p of height"] == lines[1]["log_p of weight"] == ""
    assert lines[1]["least_expected"] == "town"
    np.save(tmp_path / "bits.npy", np.random.RandomState(0).randint(0, 2, (40, 4)).astype(np.float32))
    settings = ["--set", "model.hidden=[4]", "--set", "model.latent=2", "--set", "model.slots=[]"]
    settings += ["--set", "training.epochs=1", "--likelihood", "bernoulli"]
    bits = ["train", "--data", str(tmp_path / "bits.npy"), "--out", str(tmp_path / "bits"), *settings]
    told(capsys, bits)
    refused(
        capsys,
        [
            "score",
            str(tmp_path / "bits"),
            "--input",
            str(tmp_path / "bits.npy"),
            "-o",
            str(tmp_path / "bits.csv"),
            "--columns",
        ],
        "--columns is for tables",
    )
