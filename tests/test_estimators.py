"""The estimators are scikit-learn's in every way that its own checks know, and what they promise beyond that."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.base import clone
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import memgen
from memgen.errors import MemgenError
from memgen.estimators.table import MemDensity, MemImputer

pd = pytest.importorskip("pandas", reason="tables with text come as DataFrames: pip install pandas")

QUICK: dict[str, Any] = {"epochs": 3, "hidden": (4,), "slots": (3,), "latent": 2, "n_samples": 5, "batch_size": 64}


def test_a_level_that_was_never_seen_is_not_drawn() -> None:
    X = np.column_stack([np.zeros(40), np.random.RandomState(0).randn(40)])
    drawn = MemDensity(**QUICK, kinds=["binary", "real"]).fit(X).sample(500)
    assert (drawn[:, 0] == 0).all()


@parametrize_with_checks([MemDensity(**QUICK), MemImputer(**QUICK)])  # type: ignore[untyped-decorator]
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    """Not one is declared as expected to fail."""
    check(estimator)


def numbers(n: int = 80, d: int = 4, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 10


def people(n: int = 80, seed: int = 0) -> Any:
    """Columns of every kind, with holes."""
    rng = np.random.default_rng(seed)
    t = rng.normal(size=n)
    frame = pd.DataFrame(
        {
            "town": np.where(t > 0.5, "Bern", np.where(t > -0.5, "Basel", "Chur")),
            "height": 170 + 8 * t + rng.normal(size=n),
            "income": np.exp(8 + t),
            "visits": rng.poisson(np.exp(1 + t)).astype(float),
            "member": rng.random(n) < 1 / (1 + np.exp(-2 * t)),
        }
    )
    return frame.astype({"member": object}).mask(rng.random(frame.shape) < 0.15)


@pytest.fixture(scope="module")
def density() -> MemDensity:
    return MemDensity(epochs=40, n_samples=50, random_state=0).fit(people())


@pytest.fixture(scope="module")
def imputer() -> MemImputer:
    return MemImputer(epochs=40, n_samples=30, random_state=0).fit(people())


def test_they_are_names_of_the_package() -> None:
    assert memgen.MemDensity is MemDensity
    assert memgen.MemImputer is MemImputer


def test_keywords_are_the_recipes_and_nothing_else() -> None:
    recipe = MemDensity(epochs=2, latent=3, hidden=[7, 5], rate=0.5, random_state=0).fit(numbers()).recipe_
    assert (recipe.training.epochs, recipe.model.latent, recipe.model.hidden) == (2, (3,), ((7, 5),))
    assert recipe.training.rate == 0.5
    assert recipe.model.slots == ((20, 10),)  # another size of layers does not take the memory away
    assert (MemDensity().n_samples, MemImputer().n_samples) == (1000, 200)
    with pytest.raises(TypeError, match="'epoch'"):
        MemDensity(epoch=3)
    with pytest.raises(MemgenError, match=r"norm.*Choices"):
        MemDensity(norm="bach").fit(numbers())


def test_kinds_are_seen_and_can_be_given(density: MemDensity) -> None:
    assert density.columns_.kinds == ("categorical", "real", "positive", "count", "binary")
    given = MemDensity(kinds={"visits": "real"}, **QUICK).fit(people())
    assert given.columns_.kinds[3] == "real"
    with pytest.raises(MemgenError, match="Choices: real"):
        MemDensity(kinds="natural", **QUICK).fit(people())


@pytest.mark.parametrize("holes", [False, True])
def test_a_rows_answer_does_not_depend_on_the_rows_beside_it(density: MemDensity, holes: bool) -> None:
    X = people() if holes else people().dropna()
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


def test_pandas_output_keeps_the_types_of_the_columns() -> None:
    X = people().astype({"visits": "Int64", "town": "category"})
    imputer = MemImputer(**QUICK, add_indicator=True, random_state=0).set_output(transform="pandas").fit(X)
    out = imputer.transform(X)
    assert list(out) == list(imputer.get_feature_names_out())
    assert list(out)[5:] == [f"missingindicator_{name}" for name in X]
    assert out["height"].dtype == np.float64
    assert out["town"].dtype == X["town"].dtype
    assert out.index.equals(X.index)
    assert (out["missingindicator_town"].to_numpy() == X["town"].isna()).all()


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
    assert (rows == density.sample(40, random_state=3)).all()
    assert (rows[:3] == density.sample(3, random_state=3)).all()
    assert set(rows[:, 0]) <= {"Bern", "Basel", "Chur"}
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
    holes = X[:20].copy()
    holes[:, [1, 3]] = np.nan
    mean, covariance = X.mean(0)[[0, 2]], np.cov(X.T, bias=True)[np.ix_([0, 2], [0, 2])]
    truth = multivariate_normal(mean, covariance).logpdf(X[:20][:, [0, 2]])
    assert np.abs(density.score_samples(holes) - truth).mean() < 1


def test_missing_numbers_become_their_conditional_mean() -> None:
    X = numbers(300, 4)
    imputer = MemImputer(random_state=0, n_samples=400, epochs=3).fit(X)
    holes = X[:20].copy()
    holes[:, 3] = np.nan
    S, m = np.cov(X.T, bias=True), X.mean(0)
    truth = m[3] + (X[:20, :3] - m[:3]) @ np.linalg.solve(S[:3, :3], S[:3, 3])
    spread = np.sqrt(S[3, 3] - S[3, :3] @ np.linalg.solve(S[:3, :3], S[:3, 3]))
    assert np.abs(imputer.transform(holes)[:, 3] - truth).mean() < 0.7 * spread


@pytest.mark.parametrize("kind", [MemDensity, MemImputer])
def test_saved_and_pickled_estimators_answer_the_same(kind: Any, tmp_path: Path) -> None:
    X = people()
    more = {"add_indicator": True} if kind is MemImputer else {}
    fitted = kind(**QUICK, **more, random_state=3, kinds={"visits": "count"}).fit(X)
    answer = fitted.transform(X)
    fitted.save(tmp_path / "it.safetensors")
    loaded = kind.load(tmp_path / "it.safetensors")
    joblib.dump(fitted, buffer := io.BytesIO())
    buffer.seek(0)
    for other in (loaded, joblib.load(buffer)):
        assert (other.transform(X) == answer).all()
        assert other.get_params()["random_state"] == 3
        assert list(other.get_feature_names_out()) == list(fitted.get_feature_names_out())
        assert other.validation_scores_ == fitted.validation_scores_
    wrong: Any = MemDensity if kind is MemImputer else MemImputer
    with pytest.raises(MemgenError, match=f"holds '{kind.__name__}', not a {wrong.__name__}"):
        wrong.load(tmp_path / "it.safetensors")


def test_pipeline_and_grid_search() -> None:
    X = numbers(60)
    pipeline = make_pipeline(MemImputer(**QUICK, random_state=0), StandardScaler(), MemDensity(**QUICK, random_state=0))
    search = GridSearchCV(pipeline, {"memdensity__latent": [1, 3]}, cv=2).fit(X)
    assert np.isfinite(search.cv_results_["mean_test_score"]).all()
    assert search.best_estimator_.score_samples(X).shape == (60,)


def test_warm_start_goes_on_and_refuses_another_model() -> None:
    X = numbers(100)
    density = MemDensity(warm_start=True, random_state=0, epochs=15, early_stopping=False).fit(X)
    before = density.score(X)
    density.fit(X)
    assert density.score(X) > before
    with pytest.raises(MemgenError, match="warm_start"):
        density.set_params(hidden=[5]).fit(X)
    assert density.set_params(hidden="auto").score(X) > before  # and nothing was lost


def test_early_stopping_holds_rows_out_and_keeps_the_best() -> None:
    X = numbers(60)
    stopped = MemDensity(random_state=0, n_iter_no_change=3, epochs=400, rate=0.05).fit(X)
    assert stopped.n_iter_ < 400
    whole = MemDensity(random_state=0, epochs=4, early_stopping=False).fit(X)
    assert (whole.n_iter_, whole.validation_scores_) == (4, {})


def test_few_rows_get_a_linear_model() -> None:
    density = MemDensity(random_state=0).fit(numbers(6, 2))
    assert density.linear_
    assert np.isfinite(density.score_samples(numbers(6, 2))).all()


@pytest.mark.parametrize(
    ("X", "settings", "message"),
    [
        (numbers(1), {}, "n_samples=1"),
        (numbers(), {"validation_fraction": 1.5}, "validation_fraction"),
        (numbers(), {"n_samples": 0}, "n_samples"),
        (numbers(), {"unseen": "ignore"}, "unseen"),
        (np.full((20, 2), np.nan), {}, "not one value"),
    ],
)
def test_bad_input_is_refused_in_one_line(X: NDArray[np.float64], settings: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message) as found:
        MemDensity(**settings).fit(X)
    assert "\n" not in str(found.value)
