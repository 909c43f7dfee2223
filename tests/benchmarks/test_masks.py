"""The tables of the comparisons: which there are, their rules, and how cells are hidden."""

from __future__ import annotations

import math

import numpy as np
import pandas as pd
import pytest

from benchmarks import imputation, tables
from tests.benchmarks.tables import mixed


def test_the_sets_are_disjoint_and_have_enough_tables() -> None:
    with_levels = {
        "diabetes",
        "cars",
        "tips",
        "housing",
        "penguins",
        "heart",
        "german",
        "abalone",
        "insurance",
        "diamonds",
    }
    assert not set(tables.CHOOSING) & set(tables.REPORTING)
    assert len(tables.CHOOSING) >= 5
    assert len(tables.REPORTING) >= 8
    assert len(with_levels & set(tables.CHOOSING)) >= 2
    assert len(with_levels & set(tables.REPORTING)) >= 3


@pytest.mark.parametrize("name", list(tables.TABLES))
def test_every_table_that_is_installed_keeps_the_rules(name: str) -> None:
    try:
        x, y = tables.load(name)
    except tables.AbsentError as error:
        pytest.skip(str(error))
    assert not x.isna().any(axis=None)
    assert 100 < len(x) <= tables.LIMIT
    assert all(x[column].nunique() > 1 for column in x)
    assert {str(kind) for kind in x.dtypes} <= {"float64", "object"}
    assert all(isinstance(value, str) for column in tables.categorical_columns(x) for value in x[column])
    assert y is None or (len(y) == len(x) and np.bincount(y).min() >= 5)


def test_rules_for_a_table() -> None:
    frame = pd.DataFrame({"n": [1.0, 2, np.nan, 4, 5], "k": [1, 2, 1, 2, 1], "one": 3, "t": [1, 2, 3, 4, 100]})
    x, y = tables.complete(frame, "t", categorical=["k"])
    assert list(x) == ["n", "k"]
    assert x["k"].tolist() == ["1", "2", "2", "1"]
    assert y is not None
    assert y.tolist() == [0, 0, 1, 1]
    long = tables.complete(pd.DataFrame({"n": np.arange(5000)})).x
    assert len(long) == tables.LIMIT
    assert long["n"].is_monotonic_increasing
    with pytest.raises(tables.AbsentError, match="bench-tables"):
        tables.packaged("no_such_package", "file.csv")


@pytest.mark.parametrize(("name", "rate"), [("mcar10", 0.1), ("mcar30", 0.3), ("mcar50", 0.5), ("mnar30", 0.3)])
def test_masks_have_the_stated_rates(name: str, rate: float) -> None:
    x = mixed()
    missing = imputation.MECHANISMS[name](x, np.random.default_rng(1))
    # Five standard deviations of a mean of 4,000 coins.
    assert np.abs(missing.mean(0) - rate).max() < 5 * 0.5 / math.sqrt(len(x))


def test_mnar_depends_on_the_value_and_mcar_does_not() -> None:
    x = mixed()
    high = (x["x"] > x["x"].median()).to_numpy()
    hidden = imputation.mnar(x, np.random.default_rng(1))[:, 0]
    assert hidden[high].mean() == pytest.approx(0.5, abs=0.06)
    assert hidden[~high].mean() == pytest.approx(0.1, abs=0.04)
    by_level = pd.Series(imputation.mnar(x, np.random.default_rng(1))[:, 2]).groupby(x["word"]).mean()
    assert by_level.max() > 2.5 * by_level.min()
    plain = imputation.mcar(0.3, x, np.random.default_rng(1))[:, 0]
    assert abs(plain[high].mean() - plain[~high].mean()) < 0.08


@pytest.mark.parametrize("fraction", [0.01, 1 / 6, 0.5, 0.99])
def test_low_and_high_cells_make_the_rate_together(fraction: float) -> None:
    low, high = imputation.rates(fraction)
    assert fraction * high + (1 - fraction) * low == pytest.approx(0.3)
    assert 0 < low < high <= 0.9 + 1e-12
    assert high == pytest.approx(min(5 * low, 0.9))


def test_every_row_and_column_keeps_a_value() -> None:
    rng = np.random.default_rng(0)
    for shape in ((1, 5), (5, 1), (30, 4)):
        kept = imputation.keep_one(np.ones(shape, dtype=bool), rng)
        assert not kept.all(1).any()
        assert not kept.all(0).any()
    sparse = rng.random((50, 3)) < 0.3
    sparse[:, 0] = False
    np.testing.assert_array_equal(imputation.keep_one(sparse, rng), sparse)


def test_masks_are_a_function_of_table_mechanism_and_seed() -> None:
    a, b = (imputation.missing_cells("iris", "mcar30", 0) for _ in range(2))
    np.testing.assert_array_equal(a, b)
    assert (a != imputation.missing_cells("iris", "mcar30", 1)).any()
    assert (a != imputation.missing_cells("iris", "mcar50", 0)).any()


def test_encoding_there_and_back() -> None:
    x = mixed(200)
    encoder = imputation.Encoder.of(x)
    codes = encoder.encode(x)
    assert codes.shape == (200, 5)
    np.testing.assert_allclose(codes[:, :2].mean(0), 0, atol=1e-12)
    np.testing.assert_allclose(codes[:, :2].std(0), 1)
    np.testing.assert_array_equal(codes[:, 2:].sum(1), 1)
    short = imputation.Encoder.of(x, left_out=1)
    np.testing.assert_array_equal(short.encode(x), codes[:, :4])
    for one in (encoder, short):
        pd.testing.assert_frame_equal(one.decode(one.encode(x))[list(x)].astype(x.dtypes), x)
    missing = np.random.default_rng(0).random(x.shape) < 0.3
    incomplete = imputation.Encoder.of(x.mask(missing)).encode(x.mask(missing))
    np.testing.assert_array_equal(np.isnan(incomplete), missing[:, [0, 1, 2, 2, 2]])
