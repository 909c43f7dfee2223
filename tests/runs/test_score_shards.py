"""Shards of `memgen score`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memgen.cli.main import main
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


def test_shards_of_other_settings_are_not_merged(
    home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = [str(home / "run"), "--input", str(home / "new.csv"), "--shards", str(tmp_path / "parts")]
    assert main(["score", *arguments, "--samples", "5", "--shard", "0/1"]) == 0
    other = ["merge", "score", *arguments, "--samples", "6", "-o", str(tmp_path / "out.csv")]
    refused(capsys, other, "samples 5", "samples 6")
