"""Several completions of a table, and what is concluded from them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from scipy.stats import norm

from memgen.errors import MemgenError
from memgen.estimators import MemImputer, pool
from tests.estimators.frames import people


def test_rubins_rules_on_numbers_worked_by_hand() -> None:
    """Three tables, two parameters; the second is not affected by missing values."""
    pooled = pool([[1.0, 5.0], [2.0, 5.0], [3.0, 5.0]], [[0.5, 0.1], [0.6, 0.1], [0.7, 0.1]])
    np.testing.assert_allclose(pooled.estimate, [2, 5])
    np.testing.assert_allclose(pooled.within, [0.6, 0.1])
    np.testing.assert_allclose(pooled.between, [1, 0])
    np.testing.assert_allclose(pooled.variance, [0.6 + 4 / 3, 0.1])
    np.testing.assert_allclose(pooled.missing, [(4 / 3) / (0.6 + 4 / 3), 0])
    np.testing.assert_allclose(pooled.freedom, [2 * (1 + 0.6 / (4 / 3)) ** 2, np.inf])
    low, high = pooled.interval(0.9)[:, 1]
    assert (high - low) / 2 == pytest.approx(norm.ppf(0.95) * 0.1**0.5)


def test_few_rows_widen_the_interval() -> None:
    """Barnard and Rubin: the degrees of freedom stay below those of the complete table."""
    many, few = (pool([1.0, 1.1, 0.9], [0.5, 0.5, 0.5], freedom) for freedom in (np.inf, 9.0))
    assert few.freedom < 9 < many.freedom
    assert np.diff(few.interval()) > np.diff(many.interval())


@pytest.mark.parametrize(
    ("estimates", "variances"), [([1.0], [1.0]), ([1.0, 2.0], [1.0]), ([1.0, 2.0], [1.0, -1.0]), ([1, np.nan], [1, 1])]
)
def test_what_cannot_be_pooled_is_refused(estimates: Any, variances: Any) -> None:
    with pytest.raises(MemgenError):
        pool(estimates, variances)


def test_intervals_from_several_completions_cover_the_mean() -> None:
    """x2 = x1 + noise, and x2 is missing completely at random: the pooled interval of its mean has the variance that
    theory gives for the missing part, and the spread of the completions is that of p(missing | observed)."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 2)) @ np.array([[1.0, 1.0], [0.0, 0.5]])
    incomplete = np.zeros(x.shape, dtype=bool)
    incomplete[:, 1] = rng.random(200) < 0.5
    tables = (
        MemImputer(random_state=0, epochs=30, n_samples=40)
        .fit(np.where(incomplete, np.nan, x))
        .impute(np.where(incomplete, np.nan, x), 8)
    )
    means = [table[:, 1].mean() for table in tables]
    pooled = pool(means, [table[:, 1].var(ddof=1) / 200 for table in tables])
    assert pooled.interval()[0] < x[:, 1].mean() < pooled.interval()[1]
    draws = np.stack([table[incomplete[:, 1], 1] for table in tables])
    assert draws.std(0, ddof=1).mean() == pytest.approx(0.5, rel=0.2)
    for table in tables:
        np.testing.assert_array_equal(table[~incomplete], x[~incomplete])


def test_completions_are_frames_with_the_observed_cells(capsys: pytest.CaptureFixture[str]) -> None:
    frame = people(40)
    imputer = MemImputer(epochs=2, n_samples=5, random_state=0, verbose=1).set_output(transform="pandas").fit(frame)
    first, second = imputer.impute(frame, 2)
    present = frame.notna()
    assert (first.astype(object)[present].fillna("") == frame.astype(object)[present].fillna("")).all().all()
    assert not first.isna().any().any()
    assert not first.equals(second)
    assert imputer.impute(frame, 2)[0].equals(first)
    assert "imputing" in capsys.readouterr().err
    with pytest.raises(MemgenError, match="n_imputations"):
        imputer.impute(frame, 0)
