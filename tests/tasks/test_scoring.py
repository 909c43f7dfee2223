"""A score for every row: its error is the estimate's error, and more samples are taken where they are needed."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
import torch

from memgen.cli.main import main
from memgen.cli.score import MOST as CLI_MOST
from memgen.core.batch import Batch
from memgen.tasks.density import log_likelihood
from memgen.tasks.scoring import MOST, percentiles, score_rows
from tests.command import refused, told
from tests.exact import linear_gaussian

SMALL = ["--set", "model.hidden=[8]", "--set", "model.latent=2", "--set", "model.slots=[4]"]
SMALL += ["--set", "objective.samples=1", "--set", "training.epochs=2"]


def test_the_standard_error_is_the_deviation_of_the_estimate() -> None:
    """One row many times, each time with noise of its own."""
    exact = linear_gaussian(1, off=0.3)
    x = exact.sample(1)
    scores = score_rows(exact.model, Batch(x.expand(200, -1)), 250)
    errors, claimed = scores.log_p - exact.log_p(x), float(scores.standard_error.square().mean().sqrt())
    assert float(errors.std()) == pytest.approx(claimed, rel=0.25)
    assert abs(float(errors.mean())) < 5 * claimed / 200**0.5 + claimed**2


def test_a_row_is_scored_until_its_effective_sample_size_holds_or_to_the_cap() -> None:
    exact = linear_gaussian(1, off=0.6)
    rows = Batch(exact.sample(12))
    first = score_rows(exact.model, rows, 250)
    target = float(first.effective.median())
    scores = score_rows(exact.model, rows, 250, until=target, batch_size=5)
    enough = first.effective >= target
    assert (scores.effective >= target).all()
    assert (scores.samples[enough] == 250).all()
    assert scores.log_p[enough].equal(first.log_p[enough])
    assert (scores.samples[~enough] > 250).all()
    row = int((~enough).nonzero()[0, 0])
    again = log_likelihood(exact.model, rows, int(scores.samples[row]))
    torch.testing.assert_close(scores.log_p[row], again.log_p[row], atol=1e-5, rtol=0)
    capped = score_rows(exact.model, rows, 250, until=1e9, most=700)
    assert (capped.samples == 700).all()


def test_a_score_depends_neither_on_batches_nor_on_other_rows() -> None:
    exact = linear_gaussian(1, off=0.6)
    rows = Batch(exact.sample(9))
    whole = score_rows(exact.model, rows, 250, until=150)
    for index in (slice(3, 4), slice(2, 9)):
        part = score_rows(exact.model, rows.rows(index), 250, until=150, keys=range(9)[index], batch_size=2)
        torch.testing.assert_close(part.log_p, whole.log_p[index], atol=1e-5, rtol=0)
        assert part.samples.equal(whole.samples[index])


def test_percentiles_count_the_rows_that_are_no_more_probable() -> None:
    reference = torch.tensor([3.0, 1.0, 2.0, 4.0], dtype=torch.float64)
    assert percentiles(torch.tensor([0.0, 1.0, 2.5, 9.0]).double(), reference).tolist() == [0, 25, 50, 100]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A table of text, numbers and missing values, the last row far from all others; and a small run on it."""
    home, chance = tmp_path_factory.mktemp("score"), np.random.RandomState(0)
    lines = [f"{('Bern', 'Chur')[i % 2]},{chance.randn():.3f},{chance.randn():.3f}" for i in range(60)]
    (home / "table.csv").write_text("\n".join(["town,height,weight", *lines, "Bern,,0.5"]) + "\n")
    (home / "new.csv").write_text("town,height,weight\nBern,0.1,0.2\nChur,,\nBern,9.0,-9.0\n")
    assert main(["train", "--data", str(home / "table.csv"), "--out", str(home / "run"), *SMALL]) == 0
    return home


def test_score_writes_a_line_for_every_row(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    output = tmp_path / "scores.csv"
    arguments = ["score", str(home / "run"), "--input", str(home / "new.csv"), "-o", str(output), "--samples", "50"]
    result = told(capsys, arguments)
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert [row["row"] for row in rows] == ["1", "2", "3"]
    log_p = [float(row["log_p"]) for row in rows]
    assert result["log_likelihood"] == pytest.approx(np.mean(log_p), abs=1e-4)
    assert log_p[2] < log_p[0] - 10
    assert float(rows[2]["percentile"]) < 5 < float(rows[0]["percentile"])
    refused(capsys, arguments, "exists already")
    assert told(capsys, [*arguments, "--overwrite"])["rows"] == 3


def test_score_refuses_before_it_works(home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, source = str(home / "run"), str(home / "new.csv")
    refused(capsys, ["score", run, "--input", source, "-o", str(tmp_path / "scores.txt")], ".csv")
    refused(capsys, ["score", run, "--input", source, "-o", source, "--overwrite"], "is the input itself")
    few = ["--until", "5", "--most", "10", "-o", str(tmp_path / "s.csv")]
    refused(capsys, ["score", run, "--input", source, *few], "--most 10 is less")
    refused(capsys, ["score", run, "--input", str(tmp_path / "none.csv"), "-o", str(tmp_path / "s.csv")], "there is no")


def test_the_caps_of_the_command_and_of_the_library_agree() -> None:
    assert CLI_MOST == MOST
