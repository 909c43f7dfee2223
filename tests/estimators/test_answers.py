"""What the estimators answer: densities, draws and imputations."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone
from sklearn.mixture import GaussianMixture

import memgen
from memgen.errors import MemgenError
from memgen.estimators.table import MemDensity, MemImputer
from tests.estimators.frames import QUICK, numbers, people

pytestmark = pytest.mark.usefixtures("long_loop")


@pytest.fixture(scope="module")
def density() -> MemDensity:
    return MemDensity(epochs=40, n_samples=50, random_state=0).fit(people())


@pytest.fixture(scope="module")
def imputer() -> MemImputer:
    return MemImputer(epochs=40, n_samples=30, random_state=0).fit(people())


def test_a_level_that_was_never_seen_is_not_drawn() -> None:
    X = np.column_stack([np.zeros(40), np.random.RandomState(0).randn(40)])
    drawn = MemDensity(**QUICK, kinds=["binary", "real"]).fit(X).sample(500)
    assert (drawn[:, 0] == 0).all()


def test_kinds_are_seen_and_can_be_given(density: MemDensity) -> None:
    assert density.columns_.kinds == ("categorical", "real", "positive", "count", "binary")
    given = MemDensity(kinds={"visits": "real"}, **QUICK).fit(people())
    assert given.columns_.kinds[3] == "real"
    with pytest.raises(MemgenError, match="Choices: real"):
        MemDensity(kinds="natural", **QUICK).fit(people())


@pytest.mark.parametrize("incomplete", [False, True])
def test_a_rows_answer_does_not_depend_on_the_rows_beside_it(density: MemDensity, incomplete: bool) -> None:
    X = people() if incomplete else people().dropna()
    order = np.random.default_rng(1).permutation(len(X))
    for method in (density.score_samples, density.transform):
        whole = method(X)
        np.testing.assert_allclose(method(X.iloc[order]), whole[order], rtol=1e-9, atol=1e-9)
        np.testing.assert_allclose(method(X.iloc[7:8]), whole[7:8], rtol=1e-9, atol=1e-9)


def test_the_imputers_answer_neither(imputer: MemImputer) -> None:
    X = people()
    whole, few = imputer.transform(X), imputer.transform(X.iloc[[30, 3]])
    levels, others = [0, 4], [1, 2, 3]
    assert (few[:, levels] == whole[[30, 3]][:, levels]).all()
    np.testing.assert_allclose(few[:, others].astype(float), whole[[30, 3]][:, others].astype(float), rtol=1e-9)


def test_what_was_there_goes_out_as_it_came_in_and_text_as_text(imputer: MemImputer) -> None:
    X = people()
    out = imputer.transform(X)
    there = X.notna().to_numpy()
    assert (out[there] == X.to_numpy(dtype=object)[there]).all()
    assert set(out[:, 0]) <= {"Bern", "Basel", "Chur"}
    assert set(out[:, 4]) <= {True, False}
    assert not pd.isna(pd.DataFrame(out)).any(axis=None)


def test_unseen_levels_are_an_error_or_missing() -> None:
    X = people()
    strange = X.iloc[:3].copy()
    strange.loc[0, "town"] = "Thun"
    density = MemDensity(**QUICK, random_state=0).fit(X)
    with pytest.raises(MemgenError, match="'Thun' is none of the 3 known levels"):
        density.score_samples(strange)
    lenient = density.set_params(unseen="missing")
    gone = strange.copy()
    gone.loc[0, "town"] = None
    np.testing.assert_allclose(lenient.score_samples(strange), lenient.score_samples(gone))
    imputer = MemImputer(**QUICK, unseen="missing", random_state=0).fit(X)
    assert imputer.transform(strange)[0, 0] == "Thun"


def test_draws_change_with_random_state_alone(imputer: MemImputer) -> None:
    X = people()
    drawing = clone(imputer).set_params(sample_posterior=True, epochs=5).fit(X)
    first, again = drawing.transform(X), drawing.transform(X)
    other = drawing.set_params(random_state=1).transform(X)
    assert (first == again).all()
    assert (first != other).any()
    assert all(float(v).is_integer() for v in first[:, 3])  # a drawn count is a count


def test_samples_are_rows_of_the_table(density: MemDensity) -> None:
    rows = density.sample(40, random_state=3)
    assert rows.shape == (40, 5)
    assert rows.equals(density.sample(40, random_state=3))
    assert rows[:3].equals(density.sample(3, random_state=3))
    assert set(rows["town"]) <= {"Bern", "Basel", "Chur"}
    free = MemDensity(**QUICK).fit(numbers())
    assert (free.sample(2) != free.sample(2)).any()


def test_codes_go_there_and_back() -> None:
    X = numbers(200, 3)
    density = MemDensity(random_state=0, epochs=30).fit(X)
    codes = density.transform(X)
    assert codes.shape == (200, 2)
    assert list(density.get_feature_names_out()) == ["memdensity0", "memdensity1"]
    back = density.inverse_transform(codes)
    assert ((X - back) ** 2).mean() < 0.5 * X.var()
    with pytest.raises(MemgenError, match="codes have 2"):
        density.inverse_transform(X)


def test_log_densities_are_in_the_users_units() -> None:
    """From femto to exa: log p of c*x is log p of x less log c per column."""
    X = numbers(60, 3)
    scores = [MemDensity(**QUICK, random_state=0).fit(c * X).score_samples(c * X) for c in (1.0, 1e-15, 1e18)]
    for c, score in zip((1e-15, 1e18), scores[1:], strict=True):
        np.testing.assert_allclose(score, scores[0] - 3 * np.log(c), atol=0.02)


@pytest.mark.parametrize("seed", [0, 1])
def test_the_default_is_no_worse_than_a_gaussian_with_full_covariance(seed: int) -> None:
    """On rows that really are such a Gaussian's, where nothing can be better; and by few passes over small rows."""
    train, test = numbers(500, 10, seed), numbers(700, 10, seed)[500:]
    density = MemDensity(random_state=seed).fit(train)
    assert density.n_iter_ <= 200
    assert memgen.count_parameters(density.model_) < 20_000
    gauss = GaussianMixture(1, reg_covar=1e-9).fit(train)
    assert density.score(test) > gauss.score(test) - 0.02


def test_it_beats_a_gaussian_where_the_rows_are_none() -> None:
    rng = np.random.default_rng(0)
    t = rng.uniform(0, 6, 400)
    X = np.c_[np.sin(t), np.cos(t)] + 0.1 * rng.normal(size=(400, 2))
    density = MemDensity(random_state=0, n_samples=200).fit(X[:300])
    assert not density.linear_
    assert density.score(X[300:]) > GaussianMixture(1).fit(X[:300]).score(X[300:]) + 0.3


def test_incomplete_rows_are_scored_rightly_by_a_model_of_complete_ones() -> None:
    """Of Gaussian rows the marginal is known. Q alone, which knows complete rows, is 44 nats off here."""
    from scipy.stats import multivariate_normal

    X = numbers(300, 4)
    density = MemDensity(random_state=0, n_samples=1000, epochs=3).fit(X)
    assert density.linear_
    incomplete = X[:20].copy()
    incomplete[:, [1, 3]] = np.nan
    mean, covariance = X.mean(0)[[0, 2]], np.cov(X.T, bias=True)[np.ix_([0, 2], [0, 2])]
    truth = multivariate_normal(mean, covariance).logpdf(X[:20][:, [0, 2]])
    assert np.abs(density.score_samples(incomplete) - truth).mean() < 1


def test_missing_numbers_become_their_conditional_mean() -> None:
    X = numbers(300, 4)
    imputer = MemImputer(random_state=0, n_samples=400, epochs=3).fit(X)
    incomplete = X[:20].copy()
    incomplete[:, 3] = np.nan
    S, m = np.cov(X.T, bias=True), X.mean(0)
    truth = m[3] + (X[:20, :3] - m[:3]) @ np.linalg.solve(S[:3, :3], S[:3, 3])
    spread = np.sqrt(S[3, 3] - S[3, :3] @ np.linalg.solve(S[:3, :3], S[:3, 3]))
    assert np.abs(imputer.transform(incomplete)[:, 3] - truth).mean() < 0.7 * spread


def test_few_rows_get_a_linear_model() -> None:
    density = MemDensity(random_state=0).fit(numbers(6, 2))
    assert density.linear_
    assert np.isfinite(density.score_samples(numbers(6, 2))).all()
