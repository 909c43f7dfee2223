"""Schemas of tables: which kind a column is, and that its values come back from numbers as they were."""

from __future__ import annotations

import json
import math
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from memgen.data.columns import Column, Columns
from memgen.data.kinds import skewness
from memgen.data.values import LARGEST, tidy
from memgen.errors import MemgenError

NAN = float("nan")
RANDOM = np.random.default_rng(0)


def objects(*values: object) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out


def kind(values: np.ndarray[Any, Any], given: str | None = None) -> str:
    return Columns.infer([values], ["a"], given).kinds[0]


INFERRED = {
    "two texts": (objects("m", "f", None, "m"), "binary"),
    "truth values": (np.array([True, True]), "binary"),
    "truth values with holes": (objects(True, None, False), "binary"),
    "texts": (objects(*"abcabcabc"), "categorical"),
    "numpy texts": (np.array(list("abcabcabc")), "categorical"),
    "one text": (objects("a", "a", None), "categorical"),
    "one number": (np.array([4.5, NAN, 4.5]), "real"),
    "two numbers": (np.array([3.5, 7.25, 3.5, NAN] * 8), "binary"),
    "two numbers of perhaps many": (np.array([3.5, 7.25, 3.5, NAN]), "real"),
    "zero and one": (np.array([1.0, 0.0, NAN]), "binary"),
    "counts": (np.array([0, 3, 51]), "count"),
    "ratings, which vary less than events at random": (np.array([1.0, 5.0, 3.0, NAN]), "real"),
    "years": (np.array([1990, 2001, 2020]), "real"),
    "whole, large": (np.array([0, 5, 1001]), "real"),
    "whole, negative": (np.array([-1, 0, 5]), "real"),
    "incomes": (np.exp(RANDOM.normal(size=500)), "positive"),
    "heights": (170 + 7 * RANDOM.normal(size=500), "real"),
    "normal": (RANDOM.normal(size=500), "real"),
    "skewed to the left": (10 - np.exp(RANDOM.normal(size=500).clip(-2, 2)), "real"),
    "too few to tell": (np.array([0.1, 0.2, 100.5]), "real"),
    "numbers as objects": (objects(1, 2.5, Decimal("-3"), np.float32(4), None, NAN), "real"),
}


@pytest.mark.parametrize("name", INFERRED)
def test_kinds_are_seen_from_the_values(name: str) -> None:
    values, expected = INFERRED[name]
    columns = Columns.infer([values], ["a"])
    assert columns.kinds == (expected,)
    assert columns.columns[0].why != "given"
    assert kind(values[::-1].copy()) == expected  # whatever the order of the rows


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


@pytest.mark.parametrize(
    ("values", "given", "words"),
    [
        (objects("x", "1"), "real", "is real, which text cannot be: row 1 has 'x'"),
        (objects(None, "x"), "count", "row 2 has 'x'"),
        (np.array([1.0, -2.0]), "count", "is count, so it needs whole numbers from 0 up; row 2 has -2"),
        (np.array([1.0, 2.5]), "count", "row 2 has 2.5"),
        (np.array([NAN, 0.0, 1.0]), "positive", "needs numbers above 0; row 2 has 0"),
        (np.array([-1.0, 1.0]), "positive", "row 1 has -1"),
        (np.array([0, 1, 2]), "binary", r"cannot be binary: it has 3 levels \(0, 1, 2\)"),
        (np.array([0, 1]), "integer", "unknown kind of column 'integer'.*Choices: real, positive"),
        (np.array([0.0, np.inf]), None, "'a' has an infinity in row 2"),
        (np.array([0.0, 2 * LARGEST]), None, "too large"),
        (objects(1, 10**400), None, "infinity in row 2"),
        (np.array([NAN, NAN]), None, "'a' has not one value"),
        (objects(None, None), "categorical", "not one value"),
        (objects("x", 3.0), None, "mixes text and numbers: row 1 has 'x', row 2 has 3.0"),
        (objects(True, 3.0), None, "mixes truth values and numbers"),
        (objects([1], [2]), None, "type list in row 1"),
        (objects(1.0, np.datetime64("NaT")), None, "type datetime64 in row 2"),
        (np.array(["2020-01-01"], dtype="datetime64[D]"), None, "dates or durations"),
        (np.array([1j]), None, "complex128"),
        (np.zeros((2, 2)), None, "one value per row"),
        (objects(*map(str, range(50))), None, "50 levels of text in 50 values, such as '0': an identifier"),
        (objects(*[f"{i % 1001}" for i in range(5005)]), None, "1001 levels of text.*categorical"),
    ],
)
def test_columns_that_cannot_be_are_refused(values: np.ndarray[Any, Any], given: str | None, words: str) -> None:
    with pytest.raises(MemgenError, match=words):
        kind(values, given)


def test_given_kinds_override() -> None:
    counts, names = np.array([0, 3, 51]), objects("x", "y", "z")
    assert [kind(counts, given) for given in ("real", "count", "categorical", "auto")] == [
        "real",
        "count",
        "categorical",
        "count",
    ]
    assert kind(names, "categorical") == "categorical"
    assert kind(np.array([True, False]), "real") == "real"
    by_name = Columns.infer([counts, names], ["n", "t"], {"t": "categorical"})
    assert (by_name.kinds, by_name.columns[1].why) == (("count", "categorical"), "given")
    assert Columns.infer([counts, names], ["n", "t"], ["real", "categorical"]).kinds == ("real", "categorical")
    for kinds, words in (({"T": "real"}, "unknown column 'T'.*n, t"), (["real"], "1 kinds for 2 columns")):
        with pytest.raises(MemgenError, match=words):
            Columns.infer([counts, names], ["n", "t"], kinds)


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


def test_a_mean_is_no_level_and_a_count_is_whole() -> None:
    columns = Columns((Column("b", "binary", ("no", "yes")), Column("n", "count")))
    with pytest.raises(MemgenError, match=r"'b': 0\.4 is not the code of one of its 2 levels"):
        columns.decode(np.array([[0.4, 1.0]]))
    for code in (-1.0, 2.0):
        with pytest.raises(MemgenError, match="is not the code"):
            columns.decode(np.array([[code, 1.0]]))
    assert columns.decode(np.array([[1.0, 2.4]]))[1].tolist() == [2.0]


def test_skewness_is_that_of_the_books() -> None:
    from scipy.stats import skew

    x = np.exp(RANDOM.normal(size=100))
    assert skewness(x) == pytest.approx(skew(x))
    assert skewness(x * 1e200) == pytest.approx(skew(x))
    assert skewness(np.full(9, 0.1)) == 0


def test_columns_of_pandas() -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is not installed (it is in the extra dev)")
    frame = pandas.DataFrame(
        {
            "whole": pandas.array([1, None, 300], dtype="Int64"),
            "text": pandas.array(["a", None, "b"], dtype="string"),
            "truth": pandas.array([True, None, False], dtype="boolean"),
            "category": pandas.Categorical(["u", "v", None]),
        }
    )
    values = [frame[name].to_numpy(dtype=object) for name in frame]
    columns = Columns.infer(values, list(frame), {"whole": "count"})
    assert columns.kinds == ("count", "binary", "binary", "binary")
    assert columns.encode(values)[0].tolist() == [1, 0, 1, 0]
    assert np.isnan(columns.encode(values)).sum() == 4
    with pytest.raises(MemgenError, match="type NaTType in row 2"):
        kind(objects(1.0, pandas.NaT))
