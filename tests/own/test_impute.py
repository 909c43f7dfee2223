"""`memgen impute` on the user's own data: what was observed comes back as it was, or one line says why not."""

from __future__ import annotations

import csv
import io
import math
import random
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from memgen.cli.main import main
from memgen.data.cells import split_rows
from memgen.data.incomplete import read_incomplete
from memgen.data.own import read_own
from memgen.runs.run import read_model
from memgen.tasks.patterns import missing_entries
from tests.command import refused, told
from tests.own.tables import SMALL, TOWNS, run_of
from tests.pictures import picture

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


def test_a_table_with_holes_comes_back_in_its_own_words(
    home: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Observed cells keep their very text; a filled cell of a level is the level's text, of a count a whole number."""
    text = 'age,town,labels,"income",member,temp\n007, "Bern" ,x,1.50e0,yes,\n,,y,,,1003\n2,"Chur, GR",z,2,NA,999.0\n'
    (here / "incomplete.csv").write_text(text)
    arguments = ["impute", run_of(home, "table.csv"), "--input", "incomplete.csv", "--output", "full.csv"]
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
