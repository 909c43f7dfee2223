"""`memgen train --data`: what it says about the user's own data, and which model it makes of them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import memgen
from memgen.cli.main import main
from memgen.runs.run import WEIGHTS, Run, read_model
from memgen.runs.session import Session
from memgen.runs.storage import load_tensors
from tests.command import refused, told
from tests.own.tables import SMALL, TOWNS, run_of


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


def test_images_are_made_to_have_one_size(home: Path, here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copytree(home / "photos", here / "photos")
    Image.new("RGB", (9, 7), "green").save(here / "photos" / "cat" / "large.png")
    refused(capsys, ["train", "--data", "photos", "--out", "run"], "large.png", "--size")
    assert not (here / "run").exists()
    assert main(["train", "--data", "photos", "--size", "4x3", *SMALL, "--out", "run"]) == 0
    assert memgen.Recipe.read("run/recipe.toml").data.name == "./photos"  # known as a path, also elsewhere
    assert told(capsys, ["evaluate", "run", "--samples", "5"])["examples"] == 2
    assert read_model(here / "run").form.shape == (4, 3, 3)


def test_delimiters_inside_quotes_are_none(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "t.csv").write_text('"a,1,2";"b,2"\n' + "".join(f"{i / 3};{i}\n" for i in range(30)))
    assert told(capsys, ["train", "--data", "t.csv", "--out", "run", *SMALL])["epochs"] == 2
    schema = read_model(Path("run")).form.columns
    assert schema is not None
    assert schema.names == ("a,1,2", "b,2")


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
    incomplete = {name: [None, *column.to_pylist()[1:4]] for name, column in columns.items()}
    types = {"town": pa.string(), "age": pa.int32(), "year": pa.int64(), "member": pa.bool_()}
    pq.write_table(pa.table({n: pa.array(v, types[n]) for n, v in incomplete.items()}), here / "incomplete.parquet")
    told(capsys, ["impute", "run", "--input", "incomplete.parquet", "--output", "full.parquet"])
    full = pq.read_table(here / "full.parquet")
    assert [str(kind) for kind in full.schema.types] == ["string", "int32", "int64", "bool"]
    for name, values in incomplete.items():
        assert full.column(name).to_pylist()[1:] == values[1:]
    assert full.column("town").to_pylist()[0] in TOWNS
    assert told(capsys, ["evaluate", "run", "--samples", "5"])["examples"] == 3


def test_auto_and_own_runs_are_shown(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["show", "auto"]) == 0
    assert main(["recipes"]) == 0
    assert capsys.readouterr().out.count("made from the data") == 2
    run = run_of(home, "table.csv")
    assert told(capsys, ["show", run])["parameters"] == memgen.count_parameters(memgen.load(run))


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
