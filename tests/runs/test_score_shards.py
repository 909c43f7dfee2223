"""Shards of `memgen score`."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from memgen.cli.main import main
from memgen.core.batch import Batch
from memgen.data.incomplete import read_incomplete
from memgen.runs.run import read_model
from memgen.tasks.columns import quick_column_scores
from tests.command import refused

SMALL = ["model.hidden=[8]", "model.latent=3", "model.slots=[4]", "training.epochs=2"]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on a table, and rows for two groups, some incomplete and one far from all others."""
    home, chance = tmp_path_factory.mktemp("score"), np.random.RandomState(0)
    lines = [f"{('Bern', 'Chur')[i % 2]},{chance.randn():.3f},{chance.randn():.3f}" for i in range(70)]
    (home / "table.csv").write_text("\n".join(["town,height,weight", *lines, "Bern,,0.5"]) + "\n")
    missing = [line if i % 5 else line.rpartition(",")[0] + "," for i, line in enumerate(lines)]
    (home / "new.csv").write_text("\n".join(["town,height,weight", *missing, "Bern,9.0,-9.0"]) + "\n")
    settings = [word for setting in SMALL for word in ("--set", setting)]
    assert main(["train", "--data", str(home / "table.csv"), "--out", str(home / "run"), *settings]) == 0
    return home


def test_merged_shards_are_the_table_of_one_process(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Byte by byte, with columns scored and with more samples where they are needed."""
    how = ["--samples", "20", "--until", "10", "--most", "80", "--columns", "--reference", "20"]
    arguments = [str(home / "run"), "--input", str(home / "new.csv"), *how, "--shards", str(tmp_path / "parts")]
    assert main(["score", *arguments, "-o", str(tmp_path / "one.csv")]) == 0
    merge = ["merge", "score", *arguments, "-o", str(tmp_path / "many.csv")]
    assert main(["score", *arguments, "--shard", "0/2"]) == 0
    refused(capsys, merge, "1 shard is missing", "1/2")
    assert not (tmp_path / "many.csv").exists()
    assert main(["score", *arguments, "--shard", "1/2"]) == 0
    assert main(merge) == 0
    assert (tmp_path / "many.csv").read_bytes() == (tmp_path / "one.csv").read_bytes()
    assert len((tmp_path / "one.csv").read_text().splitlines()) == 72


def test_quick_scores_of_columns_are_those_of_the_page(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page calls quick_column_scores."""
    (tmp_path / "new.csv").write_text("town,height,weight\nBern,0.1,0.2\nChur,9.0,0.3\n")
    arguments = [
        "score",
        str(home / "run"),
        "--input",
        str(tmp_path / "new.csv"),
        "--samples",
        "50",
        "--reference",
        "9",
    ]
    refused(capsys, [*arguments, "--quick", "-o", str(tmp_path / "s.csv")], "--quick goes with --columns")
    assert main([*arguments, "--columns", "--quick", "-o", str(tmp_path / "s.csv")]) == 0
    model = read_model(home / "run").model
    columns = read_model(home / "run").form.columns
    assert columns is not None
    x = read_incomplete(tmp_path / "new.csv", 3, (), 1, True, "auto", columns).x
    expected = quick_column_scores(model, Batch.of(x), 50)
    rows = list(csv.DictReader((tmp_path / "s.csv").read_text().splitlines()))
    actual = [[float(row[f"log_p of {name}"]) for name in ("town", "height", "weight")] for row in rows]
    np.testing.assert_allclose(actual, expected, atol=1e-3)
    assert rows[1]["least_expected"] == "height"


def test_shards_of_other_settings_are_not_merged(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(home / "run"), "--input", str(home / "new.csv"), "--shards", str(tmp_path / "parts")]
    assert main(["score", *arguments, "--samples", "5", "--shard", "0/1"]) == 0
    other = ["merge", "score", *arguments, "--samples", "6", "-o", str(tmp_path / "out.csv")]
    refused(capsys, other, "samples 5", "samples 6")
