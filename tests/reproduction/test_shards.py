"""The scoring of a row that is divided among processes."""

from __future__ import annotations

from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from memgen.cli.main import main
from memgen.runs import scores
from memgen.runs.run import Run, read_model
from memgen.tasks.density import Likelihood
from reproduction.job import Job, Place, read_json
from reproduction.jobs import data_of
from reproduction.results import score_as
from reproduction.rows import ROWS


def nothing(*arguments: Any, **options: Any) -> Generator[Likelihood, None, None]:
    yield from ()


def test_merged_shards_are_the_scoring_of_a_row(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the bit, and the reproduction takes them as its own: nothing is scored again."""
    row = ROWS["digits-vae"]
    job, place = Job(row, row.schedule), Place(made / "results", made / "runs")
    folder, samples = job.run(place), row.scorings[0].samples
    expected = (read_json(job.result(place)) or {})["log_likelihood"]
    for file in (folder / "likelihood").iterdir():
        file.unlink()
    for index in range(3):
        assert main(["evaluate", str(folder), "--samples", str(samples), "--shard", f"{index}/3"]) == 0
    assert main(["merge", "evaluate", str(folder), "--samples", str(samples)]) == 0
    monkeypatch.setattr(scores, "log_likelihoods", nothing)
    saved = read_model(folder)
    result, _ = score_as(row.scorings[0], Run.open(folder), saved, data_of(saved))
    assert len(result) == len(data_of(saved).rows("test"))
    assert result.mean == expected
