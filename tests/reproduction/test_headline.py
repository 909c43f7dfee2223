"""Other binarisations of the test set, and more samples, of shipped models."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from memgen.core.batch import Batch
from memgen.core.noise import BINARISATION_SEED, binarise
from memgen.data import dataset, source
from memgen.runs import zoo
from memgen.runs.finite import as_json
from memgen.runs.run import read_model
from memgen.tasks.density import log_likelihood
from reproduction import headline, ledger
from reproduction.job import read_json

IMAGES, SAMPLES = 16, 5
NAME = "mnist-vae"
needs_mnist = pytest.mark.skipif(source("mnist").find() is None, reason="MNIST is not on this machine")


@pytest.fixture(scope="module")
def results(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Two binarisations scored, of few images and with few samples."""
    settings = {"SEEDS": (BINARISATION_SEED, 1), "SAMPLES": SAMPLES, "CURVE_SAMPLES": 500, "CURVE_IMAGES": IMAGES}
    folder = tmp_path_factory.mktemp("headline")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in settings.items():
            patch.setattr(headline, name, value)
        patch.setattr(headline, "binarise", lambda x, seed=BINARISATION_SEED: binarise(x[:IMAGES], seed))
        headline.measure(folder, NAME)
        yield folder


@needs_mnist
def test_a_binarisation_is_scored_as_any_test_set(results: Path) -> None:
    """The usual seed gives the number of `memgen evaluate`."""
    found = (read_json(results / headline.FILE) or {})[NAME]
    model = read_model(zoo.folder() / f"{NAME}{zoo.ENDING}", "cpu").model
    pixels = dataset("mnist").rows("test", IMAGES)
    for seed in headline.SEEDS:
        expected = log_likelihood(model, Batch(binarise(pixels, seed)), SAMPLES).mean
        assert found["binarisations"][str(seed)] == pytest.approx(expected, abs=1e-9)
    bounds = [found["curve"]["bounds"][K] for K in ("1", "5", "50", "500")]
    assert bounds == sorted(bounds)


@needs_mnist
def test_what_is_known_is_not_scored_again_and_is_in_the_ledger_once(
    results: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headline, "log_likelihood", None)  # scoring fails
    for _ in range(2):
        headline.measure(results, NAME)
        headline.note_looks(results, NAME)
    lines = ledger.entries(results)
    assert [line["samples"] for line in lines] == [SAMPLES, 500]
    assert all(line["row"] == NAME for line in lines)


def test_the_page_has_mean_and_spread_of_the_others(tmp_path: Path) -> None:
    """The usual seed is not among the ten."""
    found = {
        "binarisations": {str(BINARISATION_SEED): -85.0, "0": -84.0, "1": -86.0},
        "curve": {"bounds": {"1": -90.0, "50000": -84.5}, "samples": 50_000},
    }
    (tmp_path / headline.FILE).write_bytes(as_json({NAME: found}))
    spread = float(torch.tensor([-84.0, -86.0]).std())
    assert f"| VAE | -85.00 | -85.00 | {spread:.2f} | -86.00 | -84.00 |" in headline.section(tmp_path)
    assert "| model | K = 1 | K = 50,000 |" in headline.section(tmp_path)
    assert headline.section(tmp_path / "empty") == ""
