"""The command line on the user's own data: every command from end to end, and one clear line for bad input."""

from __future__ import annotations

import csv
import io
import json
import math
import random
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from PIL import Image

import memgen
from memgen.cli.main import main
from memgen.core.batch import Batch
from memgen.data.cells import split_rows
from memgen.data.columns import Columns
from memgen.data.form import Form, Origin
from memgen.data.incomplete import read_incomplete
from memgen.data.own import read_own
from memgen.data.texts import as_texts
from memgen.runs import progress
from memgen.runs.run import WEIGHTS, Run, read_model
from memgen.runs.session import Session
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import bits_per_dimension
from memgen.tasks.patterns import missing_entries
from tests.command import refused, told

SMALL = ["--set", "model.hidden=[8]", "--set", "model.latent=2", "--set", "model.slots=[4]"]
SMALL += ["--set", "objective.samples=1", "--set", "training.epochs=2"]
NAMES = ["town", "age", "income", "member", "temp", "labels"]
TOWNS = ["Basel", "Bern", "Chur, GR"]


def table_rows(n: int = 40) -> list[list[str]]:
    """Text, a count, a positive column, two levels, a real column far from 0, and labels; here and there a hole."""
    chance = np.random.RandomState(0)
    rows = []
    for i in range(n):
        town, age = TOWNS[i % 3], int(chance.poisson(3))
        row = [town, str(age), f"{np.exp(chance.randn() + 1):.3f}", ("no", "yes")[i % 2]]
        row.append(f"{1000 + 5 * (i % 3) + chance.randn():.2f}")
        holed = ["" if i > 5 and chance.rand() < 0.1 else cell for cell in row]
        rows.append([*holed, ("low", "high")[age > 2]])
    return rows


def write_table(path: Path, rows: list[list[str]], names: list[str] | None = None) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(NAMES if names is None else names)
        writer.writerows(rows)


def write_photos(folder: Path, n: int = 12) -> None:
    """Reddish cats and bluish dogs of 6 x 5 pixels, in sub-folders."""
    chance = np.random.RandomState(1)
    for c, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = chance.randint(0, 80, (6, 5, 3)) + np.array([150 * (1 - c), 60, 150 * c])
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of every kind and a small finished run on each, to be read only."""
    home = tmp_path_factory.mktemp("own")
    chance = np.random.RandomState(2)
    write_table(home / "table.csv", table_rows())
    write_photos(home / "photos")
    np.save(home / "array.npy", chance.randn(30, 3) + np.array([0, 5, 500]))
    np.savez(home / "scans.npz", x=chance.randint(0, 256, (30, 4, 4), np.uint8), labels=np.arange(30) % 3)
    for name in ("table.csv", "photos", "array.npy", "scans.npz"):
        assert main(["train", "--data", str(home / name), "--out", str(home / "runs" / name), *SMALL]) == 0
    return home


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run_of(home: Path, name: str) -> str:
    return str(home / "runs" / name)


def picture(path: Path) -> NDArray[np.uint8]:
    with Image.open(path) as image:
        return np.asarray(image)


# ---- training


def test_a_table_is_described_before_it_is_trained_on(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["train", "auto", "--data", str(home / "table.csv"), *SMALL, "--kind", "age=categorical"]
    assert main([*arguments, "--out", "run"]) == 0
    out = capsys.readouterr().out
    assert "40 rows of 5 columns (32 train, 4 valid, 4 test)" in out
    assert "classes: 2 (high, low)" in out
    for words in ("town", "categorical  3 levels of text: Basel, Bern, Chur, GR", "age     categorical  given"):
        assert words in out
    assert out.index("likelihood: mixed") < out.index("trained 2 epochs")
    result = told(capsys, [*arguments, "--out", "again"])
    assert [column["kind"] for column in result["columns"]] == [
        "categorical",
        "categorical",
        "positive",
        "binary",
        "real",
    ]
    assert (result["likelihood"], result["classes"]) == ("mixed", ["high", "low"])
    assert result["rows"] == {"train": 32, "valid": 4, "test": 4}
    recipe = memgen.Recipe.read("run/recipe.toml")
    assert (recipe.data.kinds, recipe.model.likelihood, recipe.model.mask) == (("age=categorical",), "mixed", True)


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


def test_a_named_recipe_keeps_its_settings_on_other_data(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The likelihood and the mask are what the data ask for."""
    arguments = ["train", "digits-mem-vae", "--data", str(home / "table.csv"), "--set", "training.epochs=1"]
    assert main([*arguments, "--out", "run"]) == 0
    changed = memgen.Recipe.named("digits-mem-vae").differences(memgen.Recipe.read("run/recipe.toml"))
    keys = {text.split()[0] for text in changed}
    assert keys <= {"data.name", "model.likelihood", "model.mask", "training.epochs"}
    assert {"data.name", "model.mask"} <= keys
    result = told(capsys, ["train", "--data", "digits", "--likelihood", "gaussian", *SMALL, "--out", "digits"])
    assert (result["likelihood"], result["shape"], result["columns"]) == ("gaussian", [8, 8], None)
    refused(capsys, [*arguments, "--out", "no", "--set", "model.mask=false"], "model.mask=true reads incomplete rows")
    assert not (here / "no").exists()


def test_any_likelihood_can_be_asked_for(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that cannot start as a linear model, and grey levels read as probabilities."""
    for name, likelihood in (("array.npy", "gaussian"), ("scans.npz", "bernoulli")):
        arguments = ["train", "--data", str(home / name), "--likelihood", likelihood, *SMALL, "--out", likelihood]
        assert told(capsys, arguments)["likelihood"] == likelihood
    assert "RandomState" in told(capsys, ["evaluate", "bernoulli", "--samples", "5"])["binarisation"]


def test_a_report_on_ten_rows_has_one_to_test_on(here: Path) -> None:
    """Whose mean has no standard error."""
    write_table(here / "ten.csv", table_rows(10))
    assert main(["train", "--data", "ten.csv", *SMALL, "--set", "model.slots=[]", "--out", "run"]) == 0
    assert main(["report", "run", "-o", "r.html", "--samples", "5"]) == 0
    assert not re.search(r"\bnan\b", re.sub(r'src="[^"]*"', "", (here / "r.html").read_text()))


def test_images_are_made_to_have_one_size(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(home / "photos", here / "photos")
    Image.new("RGB", (9, 7), "green").save(here / "photos" / "cat" / "large.png")
    refused(capsys, ["train", "--data", "photos", "--out", "run"], "large.png", "--size")
    assert not (here / "run").exists()
    assert main(["train", "--data", "photos", "--size", "4x3", *SMALL, "--out", "run"]) == 0
    assert memgen.Recipe.read("run/recipe.toml").data.name == "./photos"  # known as a path, also elsewhere
    assert told(capsys, ["evaluate", "run", "--samples", "5"])["examples"] == 2
    assert read_model(here / "run").form.shape == (4, 3, 3)


def test_reading_many_images_shows_progress(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY", 0)
    assert main(["evaluate", run_of(home, "photos"), "--samples", "1"]) == 0
    assert f"reading {home / 'photos'}: 7/24 images" in capsys.readouterr().err


# ---- evaluating


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


# ---- filling in


ODD = {
    "a line break in quotes": '"x\ny"',
    "a line separator": "x\u2028y",
    "a next line": "x\x85y",
    "a form feed": "x\x0cy",
    "a quote inside": 'x" y',
}


@pytest.mark.parametrize("cell", ODD.values(), ids=ODD)
def test_what_can_be_trained_on_can_be_filled_in(cell: str, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Both readers see the same lines; a name that pandas left out is the same one."""
    rows = [f"{i},{i / 7:.3f},{cell if i % 2 else 'z'}" for i in range(30)]
    with (here / "t.csv").open("w", newline="") as file:
        file.write("\r\n".join([",a,b", *rows, ""]))
    assert main(["train", "--data", "t.csv", "--out", "run", *SMALL]) == 0
    with (here / "h.csv").open("w", newline="") as file:
        file.write("\r\n".join([",a,b", f"5,,{cell}", rows[1], ",0.1,z"]))
    assert told(capsys, ["impute", "run", "--input", "h.csv", "--output", "full.csv"])["missing"] == 2
    full = (here / "full.csv").read_bytes().decode()
    lines = full.split("\r\n")
    assert (lines[0], lines[2]) == (",a,b", rows[1])
    assert lines[1].endswith("," + cell)
    with (here / "h.csv").open("w", newline="") as file:
        file.write("\r\n".join([",a,b", rows[1], "1,2"]))
    place = 4 if "\n" in cell else 3
    refused(capsys, ["impute", "run", "--input", "h.csv", "--output", "no.csv"], f"line {place}, has 2 columns")


def test_lines_end_where_the_csv_module_ends_them() -> None:
    """Of any table, and its text comes back to the letter."""
    chance = random.Random(0)
    cells = ["", "1", "a b", '"x\ny"', '"q,1"', "z\x0c", '""', '"a""b"', 'x" y']
    for _ in range(500):
        rows = [chance.choices(cells, k=3) for _ in range(chance.randint(1, 4))]
        end = chance.choice(["\n", "\r\n", "\r"])
        text = end.join(map(",".join, rows)) + chance.choice(["", end])
        found = list(split_rows(text, ","))
        assert [row for row, _ in found] == rows
        assert "".join(",".join(row) + own for row, own in found) == text
        assert len(list(csv.reader(io.StringIO(text, newline="")))) == len(rows)


def test_delimiters_inside_quotes_are_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "t.csv").write_text('"a,1,2";"b,2"\n' + "".join(f"{i / 3};{i}\n" for i in range(30)))
    assert told(capsys, ["train", "--data", "t.csv", "--out", "run", *SMALL])["epochs"] == 2
    schema = read_model(Path("run")).form.columns
    assert schema is not None
    assert schema.names == ("a,1,2", "b,2")


def test_arrays_are_not_replaced_unless_told_to(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    commands = {
        "x.npy": ["sample", run_of(home, "array.npy"), "-n", "2", "--npy", "x.npy"],
        "f.npz": ["features", run_of(home, "array.npy"), "-o", "f.npz"],
        "i.npz": ["impute", run_of(home, "array.npy"), "--pattern", "rand-0.5", "--steps", "4", "--npz", "i.npz"],
    }
    for name, command in commands.items():
        (here / name).write_text("precious")
        refused(capsys, command, f"{name} exists already", "--overwrite")
        assert (here / name).read_text() == "precious"
        assert main([*command, "--overwrite"]) == 0
        assert (here / name).read_bytes() != b"precious"
    refused(capsys, ["sample", run_of(home, "array.npy"), "--npy", "x.csv"], ".npy")


@pytest.mark.filterwarnings("always")
def test_a_bound_that_is_no_number_is_told(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A validation row far from all others: the training is kept, and its files stay JSON."""
    x = np.random.RandomState(0).randn(40, 2)
    np.save(here / "x.npy", x)
    data = read_own(here / "x.npy")
    assert data.valid is not None
    place = int(np.abs(x - data.valid[0].double().numpy()).sum(1).argmin())
    x[place] = 1e29
    np.save(here / "x.npy", x)
    arguments = ["train", "--data", "x.npy", "--out", "run", *SMALL, "--set", "training.evaluate_every=1", "--json"]
    assert main(arguments) == 0
    printed = capsys.readouterr()
    assert "valid_bound" not in json.loads(printed.out)
    assert "bound of validation rows is not finite" in printed.err
    for line in (here / "run" / "metrics.jsonl").read_text().splitlines():
        assert "valid_bound" not in json.loads(line, parse_constant=pytest.fail)
    assert "train_bound" in told(capsys, ["show", "run"])["metrics"]


def test_one_class_cannot_be_told_from_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "t.csv").write_text("a,labels\n" + "".join(f"{i / 3},z\n" for i in range(30)))
    assert main(["train", "--data", "t.csv", "--out", "run", *SMALL]) == 0
    refused(capsys, ["classify", "run"], "all have the same label")


def test_a_table_with_holes_comes_back_in_its_own_words(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Observed cells keep their very text; a filled cell of a level is the level's text, of a count a whole number."""
    text = 'age,town,labels,"income",member,temp\n007, "Bern" ,x,1.50e0,yes,\n,,y,,,1003\n2,"Chur, GR",z,2,NA,999.0\n'
    (here / "holes.csv").write_text(text)
    arguments = ["impute", run_of(home, "table.csv"), "--input", "holes.csv", "--output", "full.csv"]
    result = told(capsys, [*arguments, "--draws", "2", "--mean", "--steps", "20"])
    assert (result["missing"], result["method"], result["header"]) == (6, "observed", True)
    for name in ("full.csv", "full-1.csv", "full-2.csv"):
        lines = (here / name).read_text().splitlines()
        assert lines[0] == text.splitlines()[0]
        assert lines[1].startswith('007, "Bern" ,x,1.50e0,yes,')
        assert 980 < float(lines[1].rpartition(",")[2]) < 1020
        assert lines[3] in ('2,"Chur, GR",z,2,no,999.0', '2,"Chur, GR",z,2,yes,999.0')
        age, town, label, income, member, temp = next(csv.reader([lines[2]]))
        assert age == str(int(age))
        assert (town in TOWNS, label, member in ("no", "yes"), temp) == (True, "y", True, "1003")
        assert float(income) > 0
    again = read_incomplete(
        here / "full.csv", 5, (), 255, schema=read_model(Path(run_of(home, "table.csv"))).form.columns
    )
    assert not again.x.isnan().any()


def test_wrong_columns_are_refused_and_nothing_is_written(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = run_of(home, "table.csv")
    wrong = {
        "town,age,income,member\nBern,1,2,yes\n": ("no column 'temp'", "columns: town, age"),
        "town,age,income,member,temp,id\nBern,1,2,yes,,7\n": ("no column 'id'",),
        "town,age,income,member,temp\nZug,1,2,yes,\n": ("'Zug' is none of the 3 known levels", "row 1"),
        "town,age,income,member,temp\nBern,many,2,yes,\n": ("column 'age', row 1: 'many' is not a number",),
        "town,age,income,member,temp\nBern,1,-2,yes,\n": ("'income' is positive", "row 1 has -2"),
        "Bern,1,2,yes\nBern,1,2,no\n": ("too few", "the model has 5"),
    }
    for text, words in wrong.items():
        (here / "in.csv").write_text(text)
        refused(capsys, ["impute", run, "--input", "in.csv", "--output", "out.csv"], "in.csv", *words)
    refused(capsys, ["impute", run, "--input", str(home / "photos"), "--output", "out"], "no images")
    assert [path.name for path in here.iterdir()] == ["in.csv"]


def test_arrays_of_a_table_come_back_in_their_own_units(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    x = np.load(home / "array.npy")[:5]
    x[0, 2] = x[3, 1] = np.nan
    np.save(here / "in.npy", x)
    told(capsys, ["impute", run_of(home, "array.npy"), "--input", "in.npy", "--output", "out.npy"])
    out = np.load(here / "out.npy")
    np.testing.assert_array_equal(out[~np.isnan(x)], x[~np.isnan(x)])
    assert abs(out[0, 2] - 500) < 5
    assert abs(out[3, 1] - 5) < 5


def test_parquet_goes_in_and_comes_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pa = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    chance = np.random.RandomState(3)
    columns: dict[str, Any] = {
        "town": pa.array([TOWNS[i % 3] for i in range(30)]).dictionary_encode(),
        "age": pa.array(chance.poisson(3, 30).tolist(), "int32"),
        "year": pa.array((1950 + chance.randint(0, 60, 30)).tolist(), "int64"),
        "member": pa.array([bool(i % 2) for i in range(30)]),
    }
    pq.write_table(pa.table(columns), here / "table.parquet")
    assert main(["train", "--data", "table.parquet", *SMALL, "--set", "model.mask=true", "--out", "run"]) == 0
    holes = {name: [None, *column.to_pylist()[1:4]] for name, column in columns.items()}
    types = {"town": pa.string(), "age": pa.int32(), "year": pa.int64(), "member": pa.bool_()}
    pq.write_table(pa.table({n: pa.array(v, types[n]) for n, v in holes.items()}), here / "holes.parquet")
    told(capsys, ["impute", "run", "--input", "holes.parquet", "--output", "full.parquet"])
    full = pq.read_table(here / "full.parquet")
    assert [str(kind) for kind in full.schema.types] == ["string", "int32", "double", "bool"]
    for name, values in holes.items():
        assert full.column(name).to_pylist()[1:] == values[1:]
    assert full.column("town").to_pylist()[0] in TOWNS
    assert told(capsys, ["evaluate", "run", "--samples", "5"])["examples"] == 3


def test_colour_images_come_back_completed(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    whole, alpha = picture(home / "photos" / "cat" / "0.png"), np.full((6, 5), 255, np.uint8)
    alpha[:, :2] = 0
    (here / "in" / "cat").mkdir(parents=True)
    Image.fromarray(np.dstack([whole, alpha])).save(here / "in" / "cat" / "0.png")
    Image.new("L", (5, 6), 90).save(here / "in" / "grey.png")
    result = told(capsys, ["impute", run_of(home, "photos"), "--input", "in", "--output", "out"])
    assert result["missing"] == 6 * 2 * 3
    found = picture(here / "out" / "cat" / "0.png")
    assert found.shape == (6, 5, 3)
    assert (found[:, 2:] == whole[:, 2:]).all()
    assert (found[:, :2] > 0).any()
    assert (picture(here / "out" / "grey.png") == 90).all()
    refused(capsys, ["impute", run_of(home, "photos"), "--input", "in", "--output", "in/out"], "inside --input")
    Image.new("RGB", (4, 4), "red").save(here / "red.png")
    (here / "reds").mkdir()
    (here / "red.png").rename(here / "reds" / "red.png")
    refused(capsys, ["impute", run_of(home, "scans.npz"), "--input", "reds", "--output", "o"], "is a colour image")


def test_patterns_hide_all_channels_of_a_pixel(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for pattern in ("rect-2", "rand-0.4", "half-top"):
        missing = missing_entries(pattern, (6, 5, 3), 90, 7).view(7, 30, 3)
        assert (missing == missing[..., :1]).all()
        assert missing[..., 0].equal(missing_entries(pattern, (6, 5), 30, 7))
    result = told(capsys, ["impute", run_of(home, "photos"), "--pattern", "half", "--steps", "10", "-o", "half.png"])
    assert result["missing"] == 2 * 6 * 2 * 3
    drawn = picture(here / "half.png")
    assert len(np.unique(drawn[..., 0].astype(int) - drawn[..., 2])) > 20  # colours


def test_patterns_on_a_table_leave_its_own_holes_out_of_the_error(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["impute", run_of(home, "table.csv"), "--pattern", "rand-0.5", "--split", "train", "--steps", "20"]
    result = told(capsys, arguments)
    x = read_own(home / "table.csv").rows("train")
    hidden = missing_entries("rand-0.5", (), 5, len(x))
    assert x.isnan().any()
    assert result["missing"] == int((hidden & ~x.isnan()).sum())
    assert 0 < result["mse"] < 10  # in standard deviations, though temperatures are near 1000
    assert math.isfinite(result["log_likelihood_missing"])
    assert list(here.iterdir()) == []  # a table has no picture
    refused(capsys, [*arguments, "--pattern", "half"], "pattern for images")


# ---- drawing, looking, reporting


def test_new_rows_of_a_table_are_the_users_values(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = run_of(home, "table.csv")
    result = told(capsys, ["sample", run, "-n", "50", "--csv", "new.csv"])
    assert (result["samples"], result["csv"], result["draw"]) == (50, "new.csv", True)
    schema = read_model(Path(run)).form.columns
    assert schema is not None
    again = read_own(here / "new.csv", columns=schema)  # by a schema that refuses what it does not know
    assert sum(len(again.rows(split)) for split in ("train", "valid", "test")) == 50
    rows = list(csv.DictReader((here / "new.csv").read_text().splitlines()))
    assert {row["town"] for row in rows} <= set(TOWNS)
    assert all(
        row["age"].isdigit() and float(row["income"]) > 0 and abs(float(row["temp"]) - 1000) < 100 for row in rows
    )
    refused(capsys, ["sample", run, "--csv", "new.csv"], "exists already", "--overwrite")
    assert main(["sample", run, "-n", "3", "--csv", "new.csv", "--overwrite"]) == 0
    refused(capsys, ["sample", run], "no images to draw", "--csv")
    refused(capsys, ["sample", run, "--npy", "x.npy"], "'town' holds text", "--csv")
    refused(capsys, ["sample", run_of(home, "photos"), "--csv", "x.csv"], "for models of tables")
    refused(capsys, ["sample", run, "--both", "--csv", "x.csv"], "--both is a figure")
    assert main(["sample", run_of(home, "array.npy"), "-n", "20", "--npy", "x.npy"]) == 0
    assert abs(np.load("x.npy")[:, 2].mean() - 500) < 5


def test_every_figure_of_images_has_colours(home: Path, here: Path) -> None:
    run = run_of(home, "photos")
    for more in ([], ["--both"], ["--reconstruct"], ["--interpolate", "0", "1"], ["--walk", "0"]):
        assert main(["sample", run, "-n", "6", "-o", "s.png", *more]) == 0
        drawn = picture(here / "s.png").astype(int)
        assert drawn.ndim == 3
        assert (drawn[..., 0] != drawn[..., 2]).any()


@pytest.mark.parametrize("name", ["table.csv", "photos"])
def test_inspect_and_report(name: str, home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run, images = run_of(home, name), name == "photos"
    result = told(capsys, ["inspect", run, "--out", "look", "--split", "train", "--rows", "3", "--samples", "3"])
    assert result["labels"] == (["cat", "dog"] if images else ["high", "low"])
    stems = {path.stem for path in (here / "look").glob("*.png")}
    assert stems >= {"usage-layer-1", "ablation-layer-1", "preference-layer-1", "class-correlation"}
    assert ("slot-neighbours-layer-1" in stems) == ("memory-disabled" in stems) == images
    result = told(capsys, ["report", run, "-o", "r.html", "--samples", "5", "--limit", "3"])
    page = (here / "r.html").read_text()
    assert (">Samples</h2>" in page) == images
    assert (f">Columns of {name}</h2>" in page) != images
    assert ("bits per dimension" in page) == (result["runs"][0]["bits_per_dimension"] is not None) == images
    assert ("method importance" if images else "method observed") in page  # the images have no holes to learn from
    for words in ("Log-likelihood", "Training", "Missing values", "Inside the memory"):
        assert f">{words}</h2>" in page
    assert not re.search(r"\bnan\b", re.sub(r'src="[^"]*"', "", page))


def test_classify_and_features_read_own_data(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, ["features", run_of(home, "table.csv"), "-o", "f.npz"])["arrays"]
    assert found["train_mean"] == [32, 2]
    with np.load("f.npz") as arrays:
        assert np.isfinite(arrays["train_last"]).all()
    assert 0 <= told(capsys, ["classify", run_of(home, "table.csv")])["accuracy"] <= 1


def test_auto_and_own_runs_are_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "auto"]) == 0
    assert main(["recipes"]) == 0
    assert capsys.readouterr().out.count("made from the data") == 2
    run = run_of(home, "table.csv")
    assert told(capsys, ["show", run])["parameters"] == memgen.count_parameters(memgen.load(run))


# ---- resuming


def test_a_training_that_was_stopped_goes_on_to_the_same_end(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It dies after an epoch and a step: the checkpoint is all that it leaves."""
    arguments = ["train", "--data", str(home / "table.csv"), *SMALL, "--set", "training.batch_size=10"]
    assert main([*arguments, "--out", "whole"]) == 0
    save = Session._checkpoint

    def dying(self: Session) -> None:
        save(self)
        if (self.state.epoch, self.state.step) == (1, 1):
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Session, "_checkpoint", dying)
        assert main([*arguments, "--out", "run", "--checkpoint-every", "0"]) == 130
    assert not (here / "run" / WEIGHTS).exists()
    capsys.readouterr()
    assert main(["train", "--resume", "--out", "run"]) == 0
    assert "after 1 of 2 epochs and 1 steps" in capsys.readouterr().out
    ours, theirs = (load_tensors(here / name / WEIGHTS)[0] for name in ("run", "whole"))
    assert all(ours[name].equal(theirs[name]) for name in theirs)
    assert main([*arguments, "--out", "run", "--resume"]) == 0  # the whole command once more
    refused(capsys, [*arguments, "--kind", "age=real", "--out", "run", "--resume"], "data.kinds")


def test_a_start_without_its_note_of_the_data_is_repaired(home: Path, here: Path) -> None:
    """A kill may fall between recipe.toml and data.json."""
    shutil.copytree(run_of(home, "array.npy"), here / "run")
    (here / "run" / "data.json").unlink()
    assert main(["train", "--resume", "--out", "run"]) == 0
    assert Run.open(here / "run").origin == Run.open(Path(run_of(home, "array.npy"))).origin


# ---- what a model carries


def test_a_model_file_alone_fills_in_and_draws(home: Path, here: Path) -> None:
    """Without its run folder, and without the data."""
    shutil.copy(Path(run_of(home, "table.csv")) / WEIGHTS, here / "m.safetensors")
    assert main(["sample", "m.safetensors", "-n", "3", "--csv", "new.csv"]) == 0
    (here / "holes.csv").write_text("town,age,income,member,temp\n,1,2,yes,\n")
    assert main(["impute", "m.safetensors", "--input", "holes.csv", "--output", "full.csv"]) == 0
    model = memgen.load("m.safetensors")
    with pytest.raises(memgen.MemgenError, match="likelihood mixed is for tables"):
        memgen.save(model, "x.safetensors", read_model(here / "m.safetensors").recipe)


@pytest.mark.parametrize(
    "text", ["", "[]", '{"shape": [], "columns": null, "levels": 0, "classes": []}', '{"shape": [3]}']
)
def test_a_form_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(memgen.MemgenError, match="here"):
        Form.from_json(text, "here")
    with pytest.raises(memgen.MemgenError, match="here"):
        Origin.from_json(text, "here")


def test_texts_of_values_are_read_back_as_they_were() -> None:
    """Whatever the kind of a column: text -> schema -> numbers -> text -> numbers."""
    rows = [row[:5] for row in table_rows() if "" not in row]
    town, member = (np.array([row[i] for row in rows], dtype=object) for i in (0, 3))
    age, income, temp = (np.array([float(row[i]) for row in rows]) for i in (1, 2, 4))
    columns = Columns.infer([town, age, income, member, temp], NAMES[:5])
    texts = as_texts(columns, columns.encode([town, age, income, member, temp]))
    assert texts == [[row[0], row[1], f"{float(row[2]):g}", row[3], f"{float(row[4]):g}"] for row in rows]


# ---- bad input


def test_bad_input_to_train_is_one_line_and_leaves_nothing(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table, photos = str(home / "table.csv"), str(home / "photos")
    bad = ["train", "--out", "run"]
    refused(capsys, [*bad, "--data", "none.csv"], "no file or folder none.csv")
    refused(capsys, [*bad, "--data", "nothing"], "unknown data set 'nothing'", "path of your own data")
    refused(capsys, [*bad, "--data", photos, "--size", "3by4"], "HEIGHTxWIDTH", "'3by4'")
    refused(capsys, [*bad, "--data", photos, "--size", "0x4"], "HEIGHTxWIDTH")
    refused(capsys, [*bad, "--data", table, "--size", "3x4"], "table.csv", "a size is for images")
    refused(capsys, [*bad, "--data", table, "--kind", "age=conut"], "did you mean 'count'")
    refused(capsys, [*bad, "--data", table, "--kind", "agee=count"], "did you mean 'age'")
    refused(capsys, [*bad, "--data", table, "--kind", "age"], "COLUMN=KIND")
    refused(capsys, [*bad, "--data", table, "--kind", "age=real", "--kind", "age=count"], "two kinds")
    refused(capsys, [*bad, "--data", photos, "--kind", "age=real"], "for tables")
    refused(capsys, [*bad, "--data", table, "--likelihood", "mixd"], "did you mean 'mixed'")
    refused(capsys, [*bad, "--data", photos, "--likelihood", "mixed"], "mixed is for tables")
    refused(capsys, [*bad, "--data", table, "--likelihood", "bernoulli"], "needs values in [0, 1]")
    refused(capsys, [*bad, "--data", "digits", "--size", "4x4"], "for your own data")
    refused(capsys, [*bad, "auto"], "made from the data", "--data")
    refused(capsys, bad, "which recipe?", "--data PATH")
    shutil.copytree(photos, here / "photos")
    (here / "photos" / "dog" / "torn.png").write_bytes(b"\x89PNG\r\n\x1a\n and nothing more")
    refused(capsys, [*bad, "--data", "photos"], "cannot read the image photos/dog/torn.png")
    assert [path.name for path in here.iterdir()] == ["photos"]
