"""`memgen impute`: its numbers are the library's, tables and images come back completed."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import memgen
from benchmarks import missing_pixels
from memgen.cli import impute as cli
from memgen.cli.main import main
from memgen.core.batch import Batch
from memgen.tasks import imputation
from memgen.tasks.imputation import impute
from memgen.tasks.patterns import missing_entries
from memgen.tasks.scores import squared_error
from tests.command import refused, told
from tests.pictures import picture


def test_the_default_method_is_said_twice_the_same() -> None:
    assert imputation.DEFAULT == cli.IMPUTATION
    assert imputation.DEFAULT_DRAWS == cli.COMPLETIONS
    assert imputation.DEFAULT_MASKED == cli.MASKED


@pytest.mark.parametrize("pattern", ["rect-3", "rand-0.6", "half", "half-top"])
def test_impute_prints_its_promised_keys_and_agrees_with_the_library(
    pattern: str, runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = told(capsys, ["impute", str(runs["mem"]), "--pattern", pattern, "--limit", "40", "--steps", "20"])
    assert result.keys() >= {"mse", "standard_error", "pattern", "method", "steps", "missing"}
    x = memgen.dataset("digits").fixed("test", 40).x
    missing = missing_entries(pattern, (8, 8), 64, 40)
    own = squared_error(impute(memgen.load(runs["mem"]), Batch(x, ~missing), steps=20).mean, x, missing)
    assert result["mse"] == pytest.approx(own.mean)
    assert result["standard_error"] == pytest.approx(own.standard_error)
    assert result["missing"] == int(missing.sum())
    assert (result["pattern"], result["steps"], result["kept"]) == (pattern, 20, 10)
    assert result["log_likelihood_missing"] < 0
    assert 1 <= result["effective_states"] <= 10
    assert picture(here / "imputed.png").shape[1] > 300


def test_the_papers_method_reports_both_statistics_on_grey_images(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["impute", str(runs["vae"]), "--pattern", "rect-3", "--method", "paper", "--steps", "30"]
    result = told(capsys, arguments)
    x = memgen.dataset("digits").rows("test")
    missing = missing_entries("rect-3", (8, 8), 64, len(x))
    own = impute(memgen.load(runs["vae"]), Batch(x, ~missing), "paper", steps=30).mean
    assert result["mse"] == pytest.approx(squared_error(own, x, missing).mean)
    assert result["mse_batch_statistics"] != result["mse"]
    assert result["mse_batch_statistics"] == pytest.approx(result["mse"], rel=0.5)
    assert result["values"] == "grey levels"
    assert result["log_likelihood_missing"] is None
    assert "RandomState" in told(capsys, [*arguments, "--values", "binary"])["values"]


def test_two_models_meet_the_same_missing_pixels(runs: dict[str, Path], here: Path) -> None:
    found = []
    for name in ("vae", "mem"):
        arguments = ["--pattern", "rand-0.5", "--limit", "12", "--steps", "4", "--npz", f"{name}.npz"]
        assert main(["impute", str(runs[name]), *arguments]) == 0
        with np.load(here / f"{name}.npz") as file:
            found.append(dict(file))
    a, b = found
    assert (a["missing"] == b["missing"]).all()
    assert (a["x"] == b["x"]).all()
    assert (a["mean"] != b["mean"]).any()
    assert (a["mean"] == a["x"])[~a["missing"]].all()


def test_all_methods_of_a_model_stand_side_by_side(
    runs: dict[str, Path], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """benchmarks/missing_pixels.py, which the documents name: every method that the model has, on every pattern."""
    arguments = [str(runs["mem"]), "--split", "test", "--limit", "6", "--steps", "4"]
    monkeypatch.setattr("sys.argv", ["missing_pixels.py", *arguments])
    missing_pixels.main()
    rows = json.loads(capsys.readouterr().out.splitlines()[-1])["rows"]
    unmasked = {name for name, own in imputation.METHODS.items() if not own.masked}
    assert {row["method"] for row in rows} == {"paper-last", *unmasked}
    assert len(rows) == 3 * (1 + len(unmasked))
    assert all(row["mse"] > 0 and row["log_p"] < 0 for row in rows)


def incomplete(n: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    x = memgen.dataset("digits").fixed("test", n).x
    missing = missing_entries("rand-0.3", (8, 8), 64, n)
    missing[0] = False
    return x, missing


def test_a_table_comes_back_completed_with_its_text(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, missing = incomplete()
    rows = [
        ["" if m else f"{v:.3f}" for v, m in zip(*pair, strict=True)]
        for pair in zip(x.tolist(), missing.tolist(), strict=True)
    ]
    (here / "in.csv").write_text("\n".join(",".join(row) for row in rows) + "\n")
    arguments = ["impute", str(runs["mem"]), "--input", "in.csv", "--output", "out.csv", "--steps", "20"]
    result = told(capsys, [*arguments, "--draws", "3", "--mean"])
    assert result["outputs"] == ["out.csv", "out-1.csv", "out-2.csv", "out-3.csv"]
    assert result["missing"] == int(missing.sum())
    for name in result["outputs"]:
        found = [line.split(",") for line in (here / name).read_text().splitlines()]
        for before, after, hole in zip(rows, found, missing.tolist(), strict=True):
            for old, new, gone in zip(before, after, hole, strict=True):
                assert (0 <= float(new) <= 1) if gone else new == old
                assert not (gone and name != "out.csv" and float(new) not in (0.0, 1.0))  # draws are draws
    assert result["method"] == "gibbs"
    assert not result["header"]
    library = impute(memgen.load(runs["mem"]), Batch(x, ~missing), steps=20, draws=3)
    mean = np.loadtxt(here / "out.csv", delimiter=",")
    np.testing.assert_allclose(mean, library.mean.numpy(), atol=1e-5)
    np.testing.assert_array_equal(np.loadtxt(here / "out-2.csv", delimiter=","), library.draws[1].numpy())


def test_images_come_back_completed(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "in").mkdir()
    grey = (memgen.dataset("digits").rows("test")[:3].numpy() * 255).astype(np.uint8).reshape(3, 8, 8)
    alpha = np.full((8, 8), 255, np.uint8)
    alpha[:, :4] = 0
    for i, image in enumerate(grey):
        Image.fromarray(np.dstack([image, alpha]), "LA").save(here / "in" / f"{i}.png")
    arguments = ["impute", str(runs["mem"]), "--input", "in", "--output", "out", "--steps", "20", "--draws", "2"]
    result = told(capsys, arguments)
    assert result["outputs"] == ["out-1", "out-2"]
    assert result["binarised"]
    for folder in result["outputs"]:
        for i, image in enumerate(grey):
            found = picture(here / folder / f"{i}.png")
            assert (found[:, 4:] == image[:, 4:]).all()
            assert len(np.unique(found[:, :4])) > 3  # grey levels, as the observed ones are
    large = [*arguments[:-2], "--seed", str(2**40), "--overwrite"]  # NumPy's own seeds end at 2^32
    assert told(capsys, large)["binarised"]


@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_arrays_come_back_completed_also_under_a_gaussian(
    ending: str, runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = memgen.dataset("digits").rows("test")[:5].numpy()
    x[2, 10:20] = np.nan
    np.save(here / "in.npy", x) if ending == "npy" else np.savez(here / "in.npz", x=x)
    files = ["--input", f"in.{ending}", "--output", f"out.{ending}"]
    for method in ("paper", "gibbs", "mwg", "importance"):
        told(capsys, ["impute", str(runs["gauss"]), *files, "--method", method, "--steps", "10", "--overwrite"])
        with (here / f"out.{ending}").open("rb") as file:
            found = np.load(file) if ending == "npy" else np.load(file)["x"]
        assert found.dtype == np.float32
        assert (found[~np.isnan(x)] == x[~np.isnan(x)]).all()
        assert np.isfinite(found).all()


def test_a_chain_that_runs_away_is_an_error(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = memgen.load(runs["gauss"])
    with torch.no_grad():
        model.q[0].head.mean.weight.mul_(1e6)
    x = memgen.dataset("digits").rows("test")[:5]
    with pytest.raises(memgen.MemgenError, match="beyond all bounds in 5 of 5 rows, first in row 1:"):
        impute(model, Batch(x, torch.rand(5, 64) < 0.5), "gibbs")


def test_bad_input_to_impute_is_one_line_and_leaves_outputs_alone(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(runs["mem"])
    (here / "taken.csv").write_text("mine")
    (here / "full").mkdir()
    (here / "full" / "mine.png").write_text("mine")
    np.savetxt(here / "grey.csv", np.full((2, 64), 7.0), delimiter=",")
    (here / "few.csv").write_text("1,0\n0,1\n")
    (here / "text.csv").write_text(",".join(["0"] * 63) + ",zero\n")
    (here / "empty.csv").write_text("\n".join([",".join(["0"] * 63) + ","] * 2))
    (here / "images").mkdir()
    Image.new("L", (9, 8)).save(here / "images" / "wide.png")
    before = {path: path.stat().st_mtime_ns for path in here.rglob("*")}
    io = lambda name, out="out.csv": ["impute", run, "--input", name, "--output", out]  # noqa: E731
    refused(capsys, io("few.csv"), "few.csv", "2 columns", "too few", "64")
    refused(capsys, io("text.csv"), "line 1, column 64", "'zero'")
    refused(capsys, io("empty.csv"), "column 64", "not one value", "--allow-empty-columns")
    refused(capsys, io("images", "done"), "wide.png", "9 pixels wide and 8 high", "8 wide", "resize")
    refused(capsys, io("images", "full"), "full exists already", "--overwrite")
    refused(capsys, io("grey.csv", "taken.csv"), "taken.csv exists already", "--overwrite")
    refused(capsys, [*io("grey.csv"), "--limit", "5"], "--limit does not go with --input")
    refused(capsys, [*io("grey.csv"), "-o", "x.png"], "-o does not go with --input")
    refused(capsys, io("grey.csv"), "grey.csv", "[0, 1]", "7")
    refused(capsys, io("nothing.csv"), "there is no file")
    refused(capsys, io("grey.csv", "out.npy"), "must end in .csv")
    refused(capsys, io("grey.csv", "grey.csv"), "the input itself")
    refused(capsys, io("grey.csv", "no/out.csv"), "no folder no")
    refused(capsys, ["impute", run, "--input", "grey.csv"], "--output")
    refused(capsys, ["impute", run], "--input", "--pattern", "rect-N")
    refused(capsys, ["impute", run, "--pattern", "half", "--input", "grey.csv"], "exclude each other")
    refused(capsys, ["impute", run, "--pattern", "rect-9"], "rect-9 does not fit", "8 x 8")
    refused(capsys, ["impute", run, "--pattern", "half", "--draws", "2"], "--draws does not go with --pattern")
    refused(capsys, ["impute", run, "--pattern", "half", "--method", "mwgg"], "did you mean 'mwg'")
    refused(capsys, ["impute", run, "--pattern", "half", "--values", "grey", "--method", "mwg"], "0 and 1 only")
    refused(capsys, ["impute", run, "--pattern", "half", "--keep", "200"], "between 1 and")
    refused(capsys, ["impute", run, "--pattern", "half", "-o", "picture.jpg"], ".png")
    refused(capsys, ["impute", run, "--pattern", "half", "--split", "tests"], "unknown split")
    refused(capsys, ["impute", run, "--pattern", "half", "--data", "digit"], "did you mean 'digits'")
    assert {path: path.stat().st_mtime_ns for path in here.rglob("*")} == before
    assert main([*io("empty.csv"), "--allow-empty-columns", "--steps", "4"]) == 0
