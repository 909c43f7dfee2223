"""The commands of the tasks: what they print and write, and one clear line for bad input."""

from __future__ import annotations

import csv
import json
import re
import shutil
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import memgen
from benchmarks import missing_pixels
from memgen.cli import impute as cli
from memgen.cli.main import SECTIONS, main
from memgen.cli.subjects import subject
from memgen.core.batch import Batch
from memgen.report.figures.curves import shared_limits
from memgen.report.gather import Gathered, names, paired_difference, to_score
from memgen.report.page import differences
from memgen.tasks import imputation
from memgen.tasks.imputation import impute
from memgen.tasks.patterns import missing_entries
from memgen.tasks.scores import squared_error
from tests.test_cli import refused, told

QUICK = ["--set", "training.epochs=3", "--set", "training.evaluate_every=2", "--set", "training.evaluate_rows=50"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Small finished runs, to be read only."""
    folder = tmp_path_factory.mktemp("runs")
    made = {"mem": ["digits-mem-vae"], "vae": ["digits-vae"]}
    made["gauss"] = ["digits-mem-vae", "--set", "model.likelihood=gaussian", "--set", "model.sigma_floor=0.05"]
    more = {"gauss": ["--set", "training.epochs=40"]}
    for name, recipe in made.items():
        assert main(["train", *recipe, "--out", str(folder / name), *QUICK, *more.get(name, [])]) == 0
    return {name: folder / name for name in made}


def picture(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(image)


def rows_of(path: Path) -> list[dict[str, str]]:
    with path.open() as file:
        return list(csv.DictReader(file))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


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


def holes(n: int = 6) -> tuple[torch.Tensor, torch.Tensor]:
    x = memgen.dataset("digits").fixed("test", n).x
    missing = missing_entries("rand-0.3", (8, 8), 64, n)
    missing[0] = False
    return x, missing


def test_a_table_comes_back_completed_with_its_text(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x, missing = holes()
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


def test_sample_draws_its_figures(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["mem"])
    made = {
        "reconstruct": (["--reconstruct", "-n", "15"], 30, ["data", "reconstruction"]),
        "interpolate": (["--interpolate"], 60, ["0 to 1", "2 to 3"]),
        "between": (["--interpolate", "3", "8"], 10, ["3 to 8"]),
        "walk": (["--walk", "2"], 32, ["image, reconstruction", "radius 1"]),
        "both": (["--both", "-n", "7"], 14, ["mean", "draw"]),
    }
    for name, (options, count, rows) in made.items():
        result = told(capsys, ["sample", run, *options, "-o", f"{name}.png", "--npy", f"{name}.npy"])
        assert result["samples"] == count
        assert [row.strip() for row in result["rows"]][: len(rows)] == rows
        assert picture(here / f"{name}.png").shape[1] > 150
        assert np.load(here / f"{name}.npy").shape == (count, 64)
    between = np.load(here / "between.npy")
    x = memgen.dataset("digits").rows("test").numpy()
    np.testing.assert_array_equal(between[[0, -1]], x[[3, 8]])  # nothing is picked: the images that were asked for
    model = memgen.load(runs["mem"])
    np.testing.assert_allclose(between[1], memgen.reconstruct(model, Batch.of(torch.from_numpy(x[3:4])))[0], atol=1e-5)


def test_bad_input_to_sample_is_one_line(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["mem"])
    refused(capsys, ["sample", run, "--interpolate", "3"], "two images")
    refused(capsys, ["sample", run, "--interpolate", "3", "300"], "no image 300", "300, counted from 0")
    refused(capsys, ["sample", run, "--walk", "-1"], "at least 0")
    refused(capsys, ["sample", run, "--both", "--reconstruct"], "two figures")
    refused(capsys, ["sample", run, "--hold", "2"], "0 to 1 for this model")
    refused(capsys, ["sample", run, "--reconstruct", "--split", "tset"], "did you mean 'test'")
    assert not list(here.iterdir())


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


class Reader(HTMLParser):
    """Tags must be balanced; collects attributes."""

    VOID = frozenset({"meta", "img", "br", "hr", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read_page(path: Path) -> tuple[str, Reader]:
    text, reader = path.read_text(), Reader()
    reader.feed(text)
    assert reader.open == []
    return text, reader


def test_a_report_is_one_file_with_everything_inside(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(runs["vae"]), str(runs["mem"]), "-o", "r.html", "--samples", "20", "--limit", "20"]
    result = told(capsys, arguments)
    text, reader = read_page(here / "r.html")
    images = [attributes for tag, attributes in reader.tags if tag == "img"]
    assert len(images) > 20
    for attributes in images:
        assert (attributes["src"] or "").startswith("data:image/png;base64,")
        assert attributes["alt"]
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "http" not in re.sub(r'src="data:[^"]*"', "", text)
    assert len([tag for tag, _ in reader.tags if tag == "figcaption"]) == len(images)
    for words in ("Log-likelihood", "Training", "Samples", "Reconstructions", "Missing values", "Inside the memory"):
        assert f">{words}</h2>" in text
    assert "vae has no memory" in text
    assert f"{result['runs'][1]['log_likelihood']:.2f} ± {result['runs'][1]['standard_error']:.2f}" in text
    assert f"{result['differences'][0]['mean']:+.2f} ± {result['differences'][0]['standard_error']:.2f}" in text
    library = memgen.log_likelihood(memgen.load(runs["mem"]), memgen.dataset("digits").fixed("test", 20), 20)
    assert result["runs"][1]["log_likelihood"] == pytest.approx(library.mean, abs=1e-4)
    for stem in ("samples", "training", "imputation-half", "reconstructions"):
        for ending in ("png", "pdf", "csv"):
            assert (here / "r-figures" / "mem" / f"{stem}.{ending}").exists()


def test_one_run_with_an_odd_name_makes_the_same_page_again(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = here / 'a <b> & "c"'
    odd.symlink_to(runs["vae"])
    arguments = ["report", str(odd), "-o", "r.html", "--samples", "5", "--limit", "5"]
    told(capsys, arguments)
    before = read_page(here / "r.html")[0]
    assert "a <b>" not in before
    assert "&lt;b&gt;" in before
    told(capsys, arguments)
    assert (here / "r.html").read_text() == before


def test_a_report_takes_the_best_evaluation_that_all_runs_have_kept(runs: dict[str, Path], tmp_path: Path) -> None:
    subjects = []
    for name in ("vae", "mem"):
        shutil.copytree(runs[name], tmp_path / name)
        assert main(["evaluate", str(tmp_path / name), "--samples", "40", "--limit", "30"]) == 0
        subjects.append(subject(tmp_path / name, name, "cpu"))
    assert main(["evaluate", str(tmp_path / "mem"), "--samples", "90", "--limit", "30"]) == 0
    assert to_score(subjects, 20, 10, 0) == (40, 30)
    assert to_score(subjects[1:], 20, 10, 0) == (90, 30)
    assert to_score(subjects, 20, 31, 0) == (20, 31)
    assert to_score(subjects, 20, 10, 1) == (20, 10)


def test_runs_on_other_data_are_not_compared(runs: dict[str, Path]) -> None:
    gathered = []
    for name in ("gauss", "mem"):
        own = subject(runs[name], name, "cpu")
        scores = memgen.log_likelihood(own.saved.model, own.data.fixed("test", 4), 5)
        gathered.append(Gathered(own, scores, {}))
    assert paired_difference(*gathered) is None
    assert "not comparable" in differences(gathered)[0]
    assert "no detectable difference" in differences([gathered[1], gathered[1]])[0]
    assert names([Path("a/x"), Path("b/x")]) == ["a/x", "b/x"]
    assert len(set(names([Path("a/x"), Path("a/x")]))) == 2


def test_bad_input_to_report_is_one_line(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["mem"])
    (here / "old.html").write_text("mine")
    refused(capsys, ["report", run, "nothing", "-o", "old.html"], "no run at nothing")
    refused(capsys, ["report", run, "-o", "report.pdf"], ".html")
    refused(capsys, ["report", run, "-o", "no/report.html"], "no folder no")
    assert (here / "old.html").read_text() == "mine"
    assert [path.name for path in here.iterdir()] == ["old.html"]


def test_help_does_not_wait_for_torch() -> None:
    import subprocess
    import sys

    commands = ["", *(name for section in SECTIONS.values() for name in section)]
    code = "import sys; from memgen.cli.main import main\n"
    code += f"for name in {commands}: main([*name.split(), '--help'])\nsys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, check=False).returncode == 0


def test_every_command_of_the_tasks_shows_help(capsys: pytest.CaptureFixture[str]) -> None:
    for command in ("impute", "features", "classify", "inspect", "report"):
        assert main([command, "--help"]) == 0
        out: Any = capsys.readouterr().out
        assert "Examples:" in out
        assert max(map(len, out.splitlines())) <= 130


def test_the_axis_of_training_curves_holds_every_line() -> None:
    """But for the first tenth of the epochs; validation rows may lie below all that the training bound goes through."""
    metrics = [{"epoch": n, "bound": -28.0 + 0.01 * n} for n in range(30)]
    metrics[0]["bound"] = -500.0
    metrics[20] |= {"train_bound": -27.5, "valid_bound": -30.2}
    limits = shared_limits([metrics])
    assert limits is not None
    assert -31.0 < limits[0] < -30.2
    assert limits[1] > -27.5
