"""Schemas of tables: values come back from numbers as they were."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest

from memgen.data.columns import Column, Columns
from memgen.data.values import tidy
from memgen.errors import MemgenError
from tests.data.objects import NAN, objects

COLUMNS: dict[str, tuple[np.ndarray[Any, Any], str]] = {
    "real": (np.array([1.5, NAN, -3.25, 7.125]), "real"),
    "positive": (np.array([0.5, 3.25, NAN, 1e6]), "positive"),
    "count": (np.array([0, 7, NAN, 2]), "count"),
    "binary text": (objects("no", "yes", None, "no"), "binary"),
    "binary number": (np.array([2.5, -1.5, NAN, 2.5]), "binary"),
    "categorical text": (objects("ä", "b", None, "Z"), "categorical"),
    "categorical number": (np.array([3.0, 1.0, 2.5, NAN]), "categorical"),
    "truth": (objects(True, None, False, True), "binary"),
    "all missing but one": (objects(None, None, "x", None), "categorical"),
}


def equal(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> bool:
    return all(x == y or ((x is None or x != x) and (y is None or y != y)) for x, y in zip(a, b, strict=True))


@pytest.fixture
def table() -> Columns:
    return Columns.infer(
        [values for values, _ in COLUMNS.values()], list(COLUMNS), [given for _, given in COLUMNS.values()]
    )


def test_values_come_back_and_missing_stays_missing(table: Columns) -> None:
    given = [values for values, _ in COLUMNS.values()]
    x = table.encode(given)
    assert x.dtype == np.float64
    for i, (values, back) in enumerate(zip(given, table.decode(x), strict=True)):
        assert equal(values, back), table.names[i]
        assert np.array_equal(np.isnan(x[:, i]), tidy("a", values).missing)
    again = table.encode(table.decode(x))
    assert np.array_equal(again, x, equal_nan=True)
    assert table.decode(np.zeros((1, len(table))))[3].tolist() == ["no"]


def test_codes_are_positions_of_sorted_levels(table: Columns) -> None:
    levels = {column.name: column.levels for column in table if column.levels}
    assert levels["categorical text"] == ("Z", "b", "ä")
    assert levels["categorical number"] == (1.0, 2.5, 3.0)
    assert levels["truth"] == (False, True)
    x = table.encode([values for values, _ in COLUMNS.values()])
    assert x[:2, list(COLUMNS).index("categorical text")].tolist() == [2, 1]
    assert Columns.infer([np.array([5, 3, 5] * 7)], ["a"]).columns[0].levels == (3, 5)
    assert Columns.infer([np.array([True, True])], ["a"]).columns[0].levels == (False, True)  # the other may come


def test_offsets_keep_the_digits_that_float32_would_lose() -> None:
    values = 1e9 + np.arange(1000) * 0.125 + 0.0625
    columns = Columns.infer([values], ["time"])
    assert columns.kinds == ("real",)
    x = columns.encode([values]).astype(np.float32)
    assert np.abs(columns.decode(x)[0] - values).max() < 1e-4
    assert np.abs(values.astype(np.float32).astype(np.float64) - values).max() > 1
    assert abs(x.mean()) < 1e-3


def test_offsets_come_from_the_training_rows_and_levels_from_all() -> None:
    numbers, texts = np.array([1.5, 2.5, 3.5, 100.25]), objects("a", "b", "a", "c")
    columns = Columns.infer([numbers, texts], ["x", "t"], {"t": "categorical"}, train=np.array([0, 1]))
    assert columns.columns[0].offset == 2.0
    assert columns.columns[1].levels == ("a", "b", "c")
    with pytest.raises(MemgenError, match="'x' has not one value in the training rows"):
        Columns.infer([np.array([NAN, 1.5, 2.5, -3.5])], ["x"], train=np.array([0]))


def test_a_schema_survives_json(table: Columns) -> None:
    found = Columns.from_json(table.to_json())
    assert found == table
    types = [[type(level) for level in column.levels] for column in table]
    assert [[type(level) for level in column.levels] for column in found] == types
    x = table.encode([values for values, _ in COLUMNS.values()])
    assert [equal(a, b) for a, b in zip(found.decode(x), table.decode(x), strict=True)] == [True] * len(table)


ENTRY = {"name": "a", "kind": "binary", "levels": [0, 1], "offset": 0.0, "why": "given"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"kind": "colour"}, "unknown kind of column 'colour'"),
        ({"name": 3}, "name and why must be text"),
        ({"levels": [0, 1, 2]}, "cannot have 3 levels"),
        ({"levels": [1, 0]}, "sorted"),
        ({"levels": [0, "a"]}, "one type"),
        ({"levels": [0, True]}, "one type"),
        ({"levels": [[0], [1]]}, "one type"),
        ({"levels": [0, math.nan]}, "one type"),
        ({"levels": "ab"}, "no list"),
        ({"levels": []}, "cannot have 0 levels"),
        ({"kind": "real"}, "is real and cannot have 2 levels"),
        ({"offset": "1"}, "offset is no number"),
        ({"offset": math.inf}, "offset is no number"),
        ({"offset": 1.0}, "cannot have an offset"),
        ({"more": 1}, "is not an entry"),
    ],
)
def test_nonsense_in_a_schema_is_refused(change: dict[str, object], words: str) -> None:
    text = json.dumps({"columns": [ENTRY | change]})
    with pytest.raises(MemgenError, match=f"schema.json: .*{words}"):
        Columns.from_json(text, "schema.json")


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"columns": 3}', '{"columns": []}', '{"columns": [3]}', "\x00"])
def test_what_is_no_schema_is_refused(text: str) -> None:
    with pytest.raises(MemgenError, match=r"schema\.json"):
        Columns.from_json(text, "schema.json")


def test_the_description_is_a_small_aligned_table(table: Columns) -> None:
    lines = table.describe()
    assert len(lines) == len(table)
    starts = {line.index(column.kind, len(column.name)) for line, column in zip(lines, table, strict=True)}
    assert len(starts) == 1
    many = Columns.infer([objects(*[f"town {i % 12}" for i in range(48)])], ["t"])
    assert many.describe() == ["t  categorical  12 levels of text: town 0, town 1, town 10, town 11, town 2 and 7 more"]
    assert Columns.infer([np.array([0, 51, 3])], ["n"]).describe() == ["n  count  whole numbers from 0 to 51"]


def test_tables_must_fit_together(table: Columns) -> None:
    one, two = np.array([1.0, 2.0]), np.array([1.0, 2.0, 3.0])
    with pytest.raises(MemgenError, match="two columns are named 'a'"):
        Columns.infer([one, one], ["a", "a"])
    with pytest.raises(MemgenError, match="'b' has 3 rows, column 'a' has 2"):
        Columns.infer([one, two], ["a", "b"])
    with pytest.raises(MemgenError, match="1 names for 2 columns"):
        Columns.infer([one, one], ["a"])
    with pytest.raises(MemgenError, match="at least one column"):
        Columns(())
    with pytest.raises(MemgenError, match="has 1 columns, the model has 9"):
        table.encode([one])
    with pytest.raises(MemgenError, match="has 2 columns, the model has 9"):
        table.decode(np.zeros((1, 2)))


def test_new_data_may_have_other_values_and_not_other_levels() -> None:
    town = Column("town", "categorical", ("Basel", "Bern", "Chur"))
    columns = Columns((town, Column("n", "count"), Column("b", "binary", (1, 2))))
    counts, binary = np.array([5, 7]), np.array([1.0, 2.0])
    unseen = [objects("Bern", "Rome"), counts, binary]
    with pytest.raises(MemgenError, match=r"'town', row 2: 'Rome' is none of the 3 known levels \(Basel, Bern, Chur\)"):
        columns.encode(unseen)
    expected = np.array([[1, 5, 0], [NAN, 7, 1]])
    assert np.array_equal(columns.encode(unseen, unseen="missing"), expected, equal_nan=True)
    with pytest.raises(MemgenError, match=r"'b', row 1: 1\.5 is none of"):
        columns.encode([objects("Bern", None), counts, np.array([1.5, 2.0])])
    with pytest.raises(MemgenError, match=r"'n' is count.*row 2 has -1"):
        columns.encode([objects("Bern", None), np.array([1, -1]), binary])
    lenient = columns.encode([objects("Bern", None), np.array([1, -1]), binary], unseen="missing")
    assert np.isnan(lenient[:, 1]).tolist() == [False, True]
    with pytest.raises(MemgenError, match="'town' is categorical with levels of text, which numbers cannot be: row 1"):
        columns.encode([binary, counts, binary])
    with pytest.raises(MemgenError, match="'b' is binary, which text cannot be: row 2 has 'x'"):
        columns.encode([objects("Bern", None), counts, objects(None, "x")])
    with pytest.raises(MemgenError, match="unknown way with unseen levels"):
        columns.encode(unseen, unseen="ignore")
    nothing = np.array([NAN, NAN])
    assert np.isnan(columns.encode([nothing, nothing, objects(None, None)])).all()
