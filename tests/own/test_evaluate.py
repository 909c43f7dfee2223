"""`memgen evaluate` on the user's own data: in their units, where they moved, where they changed."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import memgen
from memgen.cli.main import main
from memgen.core.batch import Batch
from memgen.data.form import Form, Origin
from memgen.data.own import read_own
from memgen.runs import progress
from memgen.runs.run import WEIGHTS, Run, read_model
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import bits_per_dimension
from tests.command import refused, told
from tests.own.tables import SMALL, run_of, table_rows, write_table


def test_images_with_colours_get_a_likelihood_of_bytes(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = read_model(Path(run_of(home, "photos")))
    assert saved.recipe.model.likelihood == "discretised_logistic"
    assert saved.form == Form((6, 5, 3), None, 255, ("cat", "dog"))
    x = read_own(home / "photos").fixed("test").x
    result = told(capsys, ["evaluate", run_of(home, "photos"), "--samples", "20"])
    library = memgen.log_likelihood(saved.model, Batch.of(x), 20)
    assert result["log_likelihood"] == pytest.approx(library.mean, abs=1e-3)
    assert result["bits_per_dimension"] == pytest.approx(-library.mean / (90 * math.log(2)), abs=1e-5)
    assert result["bits_per_dimension_standard_error"] == pytest.approx(
        library.standard_error / (90 * math.log(2)), rel=1e-4
    )


def test_bits_per_dimension_of_incomplete_rows_are_per_value() -> None:
    """A row that lacks half of its values costs half, and the mean over values stays what it is."""
    found = bits_per_dimension(torch.tensor([-8.0, -4.0, -2.0]).double() * math.log(2), torch.tensor([4, 2, 1]))
    assert found.mean == pytest.approx(2)
    assert found.standard_error == pytest.approx(0, abs=1e-12)


def test_reading_many_images_shows_progress(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0)
    assert main(["evaluate", run_of(home, "photos"), "--samples", "1"]) == 0
    assert f"reading {home / 'photos'}: 7/24 images" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["table.csv", "array.npy"])
def test_a_table_is_scored_in_its_own_units(name: str, home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    saved = read_model(Path(run_of(home, name)))
    x = read_own(home / name, columns=saved.form.columns).fixed("test").x
    result = told(capsys, ["evaluate", run_of(home, name), "--samples", "20"])
    assert result["log_likelihood"] == pytest.approx(memgen.log_likelihood(saved.model, Batch.of(x), 20).mean, abs=1e-3)
    assert result["bits_per_dimension"] is None


def test_data_that_moved_are_found_or_asked_for(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(home / "table.csv", here)
    assert main(["train", "--data", "table.csv", *SMALL, "--out", "run"]) == 0
    first = told(capsys, ["evaluate", "run", "--samples", "5"])["log_likelihood"]
    (here / "sub").mkdir()
    (here / "table.csv").rename(here / "sub" / "moved.csv")
    for command in (["evaluate", "run"], ["inspect", "run", "--out", "look"], ["report", "run"], ["features", "run"]):
        refused(capsys, command, "not at table.csv any more", "--data NEW_PATH")
    refused(capsys, ["impute", "run", "--pattern", "rand-0.3"], "not at table.csv any more")
    refused(capsys, ["train", "--resume", "--out", "run"], "not at table.csv any more")
    moved = ["--data", "sub/moved.csv"]
    assert told(capsys, ["evaluate", "run", "--samples", "5", *moved])["log_likelihood"] == pytest.approx(first)
    assert main(["train", "--resume", "--out", "run", *moved]) == 0  # and remembers the new place
    assert told(capsys, ["evaluate", "run", "--samples", "5"])["log_likelihood"] == pytest.approx(first)
    assert Run.open(here / "run").origin is not None


def test_a_run_is_evaluated_from_anywhere(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copy(home / "array.npy", here)
    assert main(["train", "--data", "array.npy", *SMALL, "--out", "run"]) == 0
    (here / "else").mkdir()
    monkeypatch.chdir(here / "else")
    assert told(capsys, ["evaluate", "../run", "--samples", "5"])["examples"] == 3


def test_data_that_changed_are_noticed(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(run_of(home, "table.csv"), here / "run")
    write_table(here / "table.csv", table_rows(50))
    origin = Run.open(here / "run").origin
    assert origin is not None
    changed = Origin(here / "table.csv", origin.fingerprint, origin.rows, origin.form)
    (here / "run" / "data.json").write_text(changed.to_json())
    recipe = (here / "run" / "recipe.toml").read_text()
    tensors, about = load_tensors(here / "run" / WEIGHTS)
    for old in (recipe, about["recipe"]):
        assert str(home / "table.csv") in old
    (here / "run" / "recipe.toml").write_text(recipe.replace(str(home), str(here)))
    save_tensors(here / "run" / WEIGHTS, tensors, about | {"recipe": about["recipe"].replace(str(home), str(here))})
    refused(capsys, ["train", "--resume", "--out", "run"], "the data have changed since", "40 rows then, 50 now")
    assert main(["evaluate", "run", "--samples", "5", "--json"]) == 0
    captured = capsys.readouterr()
    assert captured.err.count("has changed since this run was trained on it") == 1
    assert json.loads(captured.out)["examples"] == 5  # nothing was taken from an evaluation of the other rows


def test_other_data_of_the_same_form_can_be_scored(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the schema of the model: the order of the columns does not matter, and levels keep their codes."""
    run = run_of(home, "table.csv")
    rows = [[row[4], row[0], *row[1:4], row[5]] for row in table_rows() if row[0] != "Basel"]
    write_table(here / "other.csv", rows, ["temp", "town", "age", "income", "member", "labels"])
    result = told(capsys, ["evaluate", run, "--data", "other.csv", "--samples", "20"])
    schema = read_model(Path(run)).form.columns
    x = read_own(here / "other.csv", columns=schema, whole=True).fixed("test").x
    assert result["examples"] == len(x) == len(rows)  # no training has seen any of them
    assert result["log_likelihood"] == pytest.approx(
        memgen.log_likelihood(memgen.load(run), Batch.of(x), 20).mean, abs=1e-3
    )
    grey = here / "grey"
    grey.mkdir()
    for i in range(10):
        Image.new("L", (5, 6), 20 * i).save(grey / f"{i}.png")
    assert told(capsys, ["evaluate", run_of(home, "photos"), "--data", "grey", "--samples", "5"])["examples"] == 10
    refused(capsys, ["evaluate", run, "--data", "grey"], "trained on a table")
    refused(capsys, ["evaluate", run_of(home, "scans.npz"), "--data", "grey"], "images of 6 x 5", "images of 4 x 4")
    refused(capsys, ["evaluate", run, "--data", "gray"], "unknown data set 'gray'")


def test_a_model_file_knows_the_rows_that_it_was_trained_on(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Wherever they lie: only those that were held out then are scored."""
    shutil.copy(Path(run_of(home, "table.csv")) / WEIGHTS, here / "m.safetensors")
    shutil.copy(home / "table.csv", here / "same.csv")
    wanted = told(capsys, ["evaluate", run_of(home, "table.csv"), "--samples", "5"])
    found = told(capsys, ["evaluate", "m.safetensors", "--data", "same.csv", "--samples", "5"])
    assert found["examples"] == wanted["examples"] < len(table_rows())
    assert found["log_likelihood"] == wanted["log_likelihood"]
    tensors, about = load_tensors(here / "m.safetensors")
    save_tensors(here / "old.safetensors", tensors, {k: v for k, v in about.items() if k != "trained_on"})
    assert main(["evaluate", "old.safetensors", "--data", "same.csv", "--samples", "5"]) == 0
    assert "does not say which rows it was trained on" in capsys.readouterr().err


@pytest.mark.filterwarnings("always")
def test_a_bound_that_is_no_number_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A validation row far from all others: the training is kept, and its files stay JSON."""
    x = np.random.RandomState(0).randn(40, 2)
    np.save(here / "x.npy", x)
    data = read_own(here / "x.npy")
    assert data.valid is not None
    assert data.columns is not None
    row = np.concatenate(data.columns.decode(data.rows("valid")[:1].double().numpy()))
    place = int(np.abs(x - row).sum(1).argmin())
    x[place] = 1e29
    np.save(here / "x.npy", x)
    kinds = ["--kind", "column 1=real", "--kind", "column 2=real"]  # they would be heavy_tailed, with a finite bound
    settings = [*SMALL, *kinds, "--set", "training.evaluate_every=1", "--json"]
    arguments = ["train", "--data", "x.npy", "--out", "run", *settings]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "valid_bound" not in json.loads(printed.out)
    assert "bound of validation rows is not finite" in printed.err
    for line in (here / "run" / "metrics.jsonl").read_text().splitlines():
        assert "valid_bound" not in json.loads(line, parse_constant=pytest.fail)
    assert "train_bound" in told(capsys, ["show", "run"])["metrics"]
