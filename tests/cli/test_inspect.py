"""`memgen inspect`, `features` and `classify`: figures with their numbers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

import memgen
from memgen.core.batch import Batch
from tests.command import refused, told
from tests.pictures import rows_of


def test_features_and_classify(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["mem"])
    result = told(capsys, ["features", run, "--data", "digits", "-o", "features.npz"])
    with np.load(here / "features.npz") as file:
        arrays = dict(file)
    assert result["arrays"]["train_last"] == [1297, 200]
    assert arrays["test_mean"].shape == (300, 20)
    own = memgen.features(memgen.load(runs["mem"]), Batch.of(memgen.dataset("digits").rows("test")))
    np.testing.assert_allclose(arrays["test_last"], own.last, atol=1e-5)
    np.testing.assert_array_equal(arrays["test_labels"], memgen.dataset("digits").labels["test"])
    found = told(capsys, ["classify", run])
    assert found["C"] == pytest.approx(1 / (1e-4 * 1497))
    assert 0.8 < found["accuracy"] <= 1
    assert found["accuracy_chosen"] > 0.8
    assert found["validation"][f"{found['regularisation_chosen']:g}"] == max(found["validation"].values())
    refused(capsys, ["features", run, "-o", "features.txt"], ".npz")
    refused(capsys, ["features", run, "--data", "nothing", "-o", "new.npz"], "unknown data set")


def unlabelled(monkeypatch: pytest.MonkeyPatch) -> None:
    """The digits, without their labels."""
    from dataclasses import replace

    from memgen.data import DATASETS

    source = DATASETS["digits"]
    monkeypatch.setitem(DATASETS, "digits", replace(source, load=lambda: replace(source.load(), labels={})))


def test_inspect_writes_figures_with_their_numbers(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    options = ["--rows", "5", "--samples", "5"]
    result = told(capsys, ["inspect", str(runs["mem"]), "--out", "look", *options])
    stems = {Path(name).stem for name in result["files"]} - {"summary"}
    expected = {"class-correlation", "memory-disabled"}
    for layer in ("layer-1", "layer-2"):
        expected |= {
            f"{kind}-{layer}" for kind in ("preference", "class-slots", "slot-neighbours", "usage", "ablation")
        }
    assert stems == expected
    for stem in stems:
        assert (here / "look" / f"{stem}.png").read_bytes().startswith(b"\x89PNG")
        assert (here / "look" / f"{stem}.pdf").read_bytes().startswith(b"%PDF")
        assert (here / "look" / f"{stem}.csv").exists() or (here / "look" / f"{stem}.json").exists()
    rows = rows_of(here / "look" / "preference-layer-1.csv")
    assert len(rows) == 10
    assert sum(float(rows[3][f"slot {j}"]) for j in range(30)) == pytest.approx(1, abs=1e-4)
    nats = [float(row["nats"]) for row in rows_of(here / "look" / "ablation-layer-2.csv")]
    assert nats == sorted(nats, reverse=True)
    summary = json.loads((here / "look" / "summary.json").read_text())
    assert [layer["slots"] for layer in summary["layers"]] == [30, 15]
    assert -1 <= summary["layers"][0]["resemblance_to_pixels"] <= 1


def test_inspect_without_labels_has_no_figures_of_classes(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    unlabelled(monkeypatch)
    result = told(capsys, ["inspect", str(runs["mem"]), "--out", "look", "--rows", "5", "--samples", "5"])
    assert not any("class" in name or "preference" in name for name in result["files"])
    assert "usage-layer-1.png" in result["files"]
    refused(capsys, ["classify", str(runs["mem"])], "no labels")


def test_numbers_that_do_not_exist_are_null_not_nan(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Three rows, of two classes."""
    result = told(
        capsys, ["inspect", str(runs["mem"]), "--out", "look", "--limit", "3", "--rows", "2", "--samples", "2"]
    )
    assert result["layers"][0]["resemblance_to_pixels"] is None
    for path in (here / "look").glob("*.json"):
        json.loads(path.read_text(), parse_constant=pytest.fail)


def test_bad_input_to_inspect_is_one_line(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    refused(capsys, ["inspect", str(runs["vae"]), "--out", "look"], "no memory", "digits-mem-vae")
    (here / "file").write_text("mine")
    refused(capsys, ["inspect", str(runs["mem"]), "--out", "file"], "is a file")
    refused(capsys, ["inspect", "nothing", "--out", "look"], "no run at nothing")
    refused(capsys, ["inspect", str(runs["mem"]), "--out", "/proc/look"], "cannot make the folder")
    assert [path.name for path in here.iterdir()] == ["file"]
    assert (here / "file").read_text() == "mine"
