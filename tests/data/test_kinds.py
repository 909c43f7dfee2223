"""Which kind a column is."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import numpy as np
import pytest

from memgen.data.columns import Column, Columns
from memgen.data.guessing import skewness
from memgen.data.values import LARGEST
from memgen.errors import MemgenError
from tests.data.objects import NAN, objects

RANDOM = np.random.default_rng(0)


def kind(values: np.ndarray[Any, Any], given: str | None = None) -> str:
    return Columns.infer([values], ["a"], given).kinds[0]


INFERRED = {
    "two texts": (objects("m", "f", None, "m"), "binary"),
    "truth values": (np.array([True, True]), "binary"),
    "truth values with missing ones": (objects(True, None, False), "binary"),
    "texts": (objects(*"abcabcabc"), "categorical"),
    "numpy texts": (np.array(list("abcabcabc")), "categorical"),
    "one text": (objects("a", "a", None), "categorical"),
    "one number": (np.array([4.5, NAN, 4.5]), "real"),
    "two numbers": (np.array([3.5, 7.25, 3.5, NAN] * 8), "binary"),
    "two numbers of perhaps many": (np.array([3.5, 7.25, 3.5, NAN]), "real"),
    "zero and one": (np.array([1.0, 0.0, NAN]), "binary"),
    "counts": (np.array([0, 3, 51]), "count"),
    "ratings, which vary less than events at random": (np.array([1.0, 5.0, 3.0, NAN]), "integer"),
    "years": (np.array([1990, 2001, 2020]), "integer"),
    "whole, large": (np.array([0, 5, 1001]), "integer"),
    "whole, negative": (np.array([-1, 0, 5]), "integer"),
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
        (np.array([0, 1]), "whole", "unknown kind of column 'whole'.*Choices: real, positive"),
        (np.array([0.0, np.inf]), None, "'a' has an infinity in row 2"),
        (np.array([0.0, 2 * LARGEST]), None, "too large"),
        (objects(1, 10**400), None, "infinity in row 2"),
        (np.array([NAN, NAN]), None, "'a' has not one value"),
        (objects(None, None), "categorical", "not one value"),
        (objects("x", 3.0), None, "mixes text and numbers: row 1 has 'x', row 2 has 3.0"),
        (objects(True, 3.0), None, "mixes truth values and numbers"),
        (objects([1], [2]), None, "type list in row 1"),
        (objects(1.0, np.datetime64("2020-01-01")), None, "mixes numbers and dates"),
        (np.array([3], dtype="timedelta64[D]"), None, "holds durations"),
        (np.array([1j]), None, "complex128"),
        (np.zeros((2, 2)), None, "one value per row"),
        (objects(*map(str, range(50))), None, "50 levels of text in 50 values, such as '0': an identifier"),
        (objects(*[f"{i % 1001}" for i in range(5005)]), None, "1001 levels of text.*--ignore a, or .*--kind a=KIND"),
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
    with pytest.raises(MemgenError, match="type Timedelta in row 2"):
        kind(objects(1.0, pandas.Timedelta(days=1)))
