"""Drawing, looking and reporting on the user's own data; what a model file alone can do."""

from __future__ import annotations

import csv
import re
import shutil
from pathlib import Path

import numpy as np
import pytest

import memgen
from memgen.cli.main import main
from memgen.data.columns import Columns
from memgen.data.form import Form, Origin
from memgen.data.own import read_own
from memgen.data.texts import as_texts
from memgen.runs.run import WEIGHTS, read_model
from tests.command import refused, told
from tests.own.tables import NAMES, SMALL, TOWNS, run_of, table_rows, write_table
from tests.pictures import picture


def test_a_report_on_ten_rows_has_one_to_test_on(here: Path) -> None:
    """Whose mean has no standard error."""
    write_table(here / "ten.csv", table_rows(10))
    assert main(["train", "--data", "ten.csv", *SMALL, "--set", "model.slots=[]", "--out", "run"]) == 0
    assert main(["report", "run", "-o", "r.html", "--samples", "5"]) == 0
    assert not re.search(r"\bnan\b", re.sub(r'src="[^"]*"', "", (here / "r.html").read_text()))


def test_one_class_cannot_be_told_from_others(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "t.csv").write_text("a,labels\n" + "".join(f"{i / 3},z\n" for i in range(30)))
    assert main(["train", "--data", "t.csv", "--out", "run", *SMALL]) == 0
    refused(capsys, ["classify", "run"], "all have the same label")


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
    assert ("method importance" if images else "method observed") in page  # the images have no missing values
    for words in ("Log-likelihood", "Training", "Missing values", "Inside the memory"):
        assert f">{words}</h2>" in page
    assert not re.search(r"\bnan\b", re.sub(r'src="[^"]*"', "", page))


def test_classify_and_features_read_own_data(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = told(capsys, ["features", run_of(home, "table.csv"), "-o", "f.npz"])["arrays"]
    assert found["train_mean"] == [32, 2]
    with np.load("f.npz") as arrays:
        assert np.isfinite(arrays["train_last"]).all()
    assert 0 <= told(capsys, ["classify", run_of(home, "table.csv")])["accuracy"] <= 1


def test_a_model_file_alone_fills_in_and_draws(home: Path, here: Path) -> None:
    """Without its run folder, and without the data."""
    shutil.copy(Path(run_of(home, "table.csv")) / WEIGHTS, here / "m.safetensors")
    assert main(["sample", "m.safetensors", "-n", "3", "--csv", "new.csv"]) == 0
    (here / "incomplete.csv").write_text("town,age,income,member,temp\n,1,2,yes,\n")
    assert main(["impute", "m.safetensors", "--input", "incomplete.csv", "--output", "full.csv"]) == 0
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
