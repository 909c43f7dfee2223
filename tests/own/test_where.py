"""Conditions on columns as the user writes them: `memgen sample --where`, and `MemDensity.sample(given=...)`."""

from __future__ import annotations

import csv
import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from memgen.cli.main import main
from memgen.data.columns import Column, Columns
from memgen.data.conditions import given, parse_conditions
from memgen.errors import MemgenError
from memgen.estimators import MemDensity
from tests.command import refused, told
from tests.own.tables import SMALL, table_rows, write_table

COLUMNS = Columns(
    (
        Column("town", "categorical", ("<50K", "Basel", "Bern")),
        Column("a=b", "real", offset=3.0),
        Column("a", "count"),
        Column("size", "categorical", (1, 2, 5, 9)),
        Column("member", "binary", (False, True)),
        Column("income", "positive"),
    )
)
INF = math.inf


@pytest.mark.parametrize(
    ("text", "column", "value", "low", "high"),
    [
        ("town=Bern", 0, 2, -INF, INF),
        ("town=<50K", 0, 0, -INF, INF),
        ("a=b=4.5", 1, 1.5, -INF, INF),
        ("a=b>4", 1, None, 1, INF),
        ("a>30", 2, None, 30.5, INF),
        ("a>=30", 2, None, 29.5, INF),
        ("a=<30", 2, None, -INF, 29.5),
        ("a <= 30", 2, None, -INF, 30.5),
        ("a=20..30", 2, None, 19.5, 30.5),
        ("size>2", 3, None, 1.5, 3.5),
        ("size<9", 3, None, -0.5, 2.5),
        ("member=true", 4, 1, -INF, INF),
        ("income=>50", 5, None, 50, INF),
        ("income=..7.5", 5, None, -INF, 7.5),
    ],
)
def test_a_condition_is_read(text: str, column: int, value: float | None, low: float, high: float) -> None:
    condition = given(COLUMNS, parse_conditions([text], COLUMNS))
    assert condition.fixed.tolist() == [i == column and value is not None for i in range(len(COLUMNS))]
    assert value is None or float(condition.x[column]) == value
    assert (float(condition.low[column]), float(condition.high[column])) == (low, high)


@pytest.mark.parametrize(
    ("texts", "words"),
    [
        (["twn=Bern"], "unknown column 'twn'; did you mean 'town'?"),
        (["town=Bonn"], "unknown level of column 'town': 'Bonn'"),
        (["town>Bern"], "levels of text, which have no ranges"),
        (["income>5,5"], "'5,5' is not a number; decimals need a point"),
        (["income>9", "income<3"], "no value lies in the range"),
        (["size>9"], "no value lies in the range"),
        (["a=2", "a=3"], "two different values"),
        (["a=2", "a>3"], "outside of the range"),
        (["a=-1"], "is count and cannot be -1"),
        (["labels=few"], "train with --kind labels=categorical"),
        (["Bern"], "a condition is COLUMN=VALUE or a range"),
    ],
)
def test_a_bad_condition_is_one_line(texts: list[str], words: str) -> None:
    with pytest.raises(MemgenError) as error:
        given(COLUMNS, parse_conditions(texts, COLUMNS))
    assert words in str(error.value)


def test_conditions_on_one_column_are_cut() -> None:
    condition = given(COLUMNS, [("income", ">10"), ("income", (None, 20)), ("income", (5, 30))])
    assert (float(condition.low[5]), float(condition.high[5])) == (10, 20)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("where")
    write_table(folder / "table.csv", table_rows())
    kind = ["--kind", "labels=categorical"]
    assert main(["train", "--data", str(folder / "table.csv"), "--out", str(folder / "run"), *kind, *SMALL]) == 0
    return folder / "run"


def test_rows_given_columns(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Labels are a column like any other, a value keeps its text, a range holds in every row."""
    output = tmp_path / "rows.csv"
    conditions = ["labels=high", "temp=1004.1234567890", "income=>3", "age=1..4"]
    where = [part for condition in conditions for part in ("--where", condition)]
    about = told(capsys, ["sample", str(run), "-n", "20", "--csv", str(output), *where])
    assert about["effective_states"] > 100
    assert math.isfinite(about["log_p"])
    rows = list(csv.DictReader(output.read_text().splitlines()))
    assert len(rows) == 20
    assert {(row["labels"], row["temp"]) for row in rows} == {("high", "1004.1234567890")}
    assert all(float(row["income"]) >= 3 and int(row["age"]) in range(1, 5) for row in rows)
    assert len({row["income"] for row in rows}) == 20


def test_bad_conditions_on_the_command_line_are_one_line(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "rows.csv"
    sample = ["sample", str(run), "--csv", str(output), "--where"]
    assert "unknown level of column 'town'" in refused(capsys, [*sample, "town=Paris"])
    assert "'temp': what is given has a probability below" in refused(capsys, [*sample, "temp>1e6"])
    assert "--both and --where" in refused(capsys, ["sample", str(run), "--both", "--where", "town=Bern"])
    assert "--hold does not go with" in refused(capsys, [*sample, "town=Bern", "--hold", "1"])
    assert "models of tables" in refused(capsys, ["sample", "zoo:ocr-vae", "--csv", str(output), "--where", "x=1"])
    assert not output.exists()


@pytest.mark.usefixtures("long_loop")
def test_an_estimator_draws_rows_given_columns(tmp_path: Path) -> None:
    """The draws follow the data: y = 2 x, so that y given x, and x given a range of y, are known."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=400)
    frame = pd.DataFrame({"x": x, "y": 2 * x + 0.1 * rng.normal(size=400), "town": np.where(x > 0, "Bern", "Basel")})
    density = MemDensity(random_state=0, epochs=1).fit(frame)
    rows = density.sample(300, given={"x": 1.0, "town": "Bern"})
    assert list(rows.columns) == ["x", "y", "town"]
    assert set(rows["town"]) == {"Bern"}
    assert set(rows["x"]) == {1.0}
    assert rows["y"].mean() == pytest.approx(2, abs=0.3)
    above = density.sample(300, given={"y": (1, None)})
    assert above["y"].min() >= 1
    assert above["x"].mean() == pytest.approx(x[frame["y"] > 1].mean(), abs=0.2)
    assert isinstance(density.sample(2), pd.DataFrame)
    density.save(tmp_path / "density.safetensors")
    again = MemDensity.load(tmp_path / "density.safetensors").sample(3, given={"x": ">1"})
    pd.testing.assert_frame_equal(again, density.sample(3, given={"x": ">1"}))
    assert isinstance(MemDensity(random_state=0, epochs=1).fit(frame[["x", "y"]].to_numpy()).sample(2), np.ndarray)
    with pytest.raises(MemgenError, match="unknown column 'z'"):
        density.sample(1, given={"z": 1})
