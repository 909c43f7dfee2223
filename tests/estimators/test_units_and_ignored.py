"""Estimators do not see the units of columns, fill in values as the columns have them, and let some columns pass."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from memgen.errors import MemgenError
from memgen.estimators import MemDensity, MemImputer

SETTINGS: dict[str, Any] = {"hidden": [8], "latent": 2, "epochs": 6, "n_samples": 20, "random_state": 0}


def frame(rows: int = 80) -> pd.DataFrame:
    """Columns of many kinds that have to do with each other."""
    chance = np.random.default_rng(0)
    t = chance.normal(size=rows)
    days = pd.Timestamp("2020-01-01") + pd.to_timedelta((500 + 100 * t).round().astype(int), unit="D")
    return pd.DataFrame(
        {
            "name": [f"row {i}" for i in range(rows)],
            "height": t + 0.3 * chance.normal(size=rows),
            "income": np.exp(t + 0.3 * chance.normal(size=rows)),
            "gain": chance.standard_cauchy(size=rows),
            "gift": np.where(chance.random(rows) < 0.5, 0, np.exp(t) + 0.01 * chance.random(rows)),
            "age": (45 + 12 * t).round().astype(int),
            "day": days,
            "price": (20 + 3 * t).round(2),
        }
    )


@pytest.mark.parametrize("early_stopping", [True, False])
def test_units_of_a_column_change_log_p_by_a_constant(early_stopping: bool) -> None:
    """Four columns in units of 1/1000: log p is smaller by log 1000 for each density, and nothing else changes."""
    names = ["height", "income", "gain", "gift"]
    x = frame()[names]
    one, other = (MemDensity(early_stopping=early_stopping, **SETTINGS).fit(rows) for rows in (x, 1000 * x))
    assert one.columns_.kinds == other.columns_.kinds == ("real", "positive", "heavy_tailed", "zero_inflated")
    densities = 3 + (x["gift"] > 0)
    change = one.score_samples(x) - other.score_samples(1000 * x)
    np.testing.assert_allclose(change, densities * math.log(1000), atol=1e-6, rtol=0)
    weights = zip(one.model_.state_dict().values(), other.model_.state_dict().values(), strict=True)
    assert all(bool((a == b).all()) for a, b in weights)
    scores = zip(one.validation_scores_.values(), other.validation_scores_.values(), strict=True)
    change = np.array([a - b for a, b in scores])
    assert len(set(change.round(4))) <= 1


def test_filled_and_drawn_values_are_as_the_columns_have_them() -> None:
    x = frame()
    incomplete = x.copy().astype({"age": "Int64"})
    hidden = np.random.default_rng(1).random(x.shape) < 0.3
    hidden[:, 0] = False
    incomplete = incomplete.mask(hidden)
    imputer = MemImputer(ignore=["name"], sample_posterior=True, **SETTINGS).set_output(transform="pandas")
    filled = imputer.fit(incomplete).transform(incomplete)
    drawn = MemDensity(ignore=["name"], **SETTINGS).fit(incomplete).sample(300, random_state=1)
    assert imputer.columns_.kinds[4:6] == ("integer", "date")
    assert list(filled["name"]) == list(x["name"])
    assert list(drawn.columns) == list(x.columns)[1:]
    for rows in (filled, drawn):
        assert not rows.isna().to_numpy().any()
        assert (rows["age"].astype(float) % 1 == 0).all()
        assert (rows["day"] == rows["day"].dt.normalize()).all()
        assert np.allclose(rows["price"].astype(float), rows["price"].astype(float).round(2), atol=1e-12)
        for name in list(x.columns)[1:]:
            known = incomplete[name].dropna()
            assert known.min() <= rows[name].min(), name
            assert rows[name].max() <= known.max(), name
    for name in x.columns:
        seen = ~incomplete[name].isna()
        assert (filled[name][seen] == incomplete[name][seen]).all()


def test_ignored_columns_of_an_array_and_of_a_saved_estimator(tmp_path: Path) -> None:
    x = frame()[["height", "income", "gain"]].to_numpy()
    incomplete = x.copy()
    incomplete[:10, 2] = np.nan
    incomplete[5, 1] = np.nan
    imputer = MemImputer(ignore=["x1"], add_indicator=True, **SETTINGS).fit(incomplete)
    filled = imputer.transform(incomplete)
    np.testing.assert_array_equal(filled[:, 1], incomplete[:, 1])
    assert not np.isnan(filled[:, [0, 2]]).any()
    assert list(imputer.get_feature_names_out()) == ["x0", "x1", "x2", "missingindicator_x2"]
    np.testing.assert_array_equal(filled[:, 3], np.isnan(incomplete[:, 2]))
    imputer.save(tmp_path / "imputer.safetensors")
    again = MemImputer.load(tmp_path / "imputer.safetensors")
    np.testing.assert_array_equal(again.transform(incomplete), filled)
    with pytest.raises(MemgenError, match="unknown column to ignore: 'x7'"):
        MemImputer(ignore=["x7"], **SETTINGS).fit(incomplete)
