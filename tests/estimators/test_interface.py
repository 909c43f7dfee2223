"""The estimators are scikit-learn's in every way that its own checks know."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import joblib
import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.utils.estimator_checks import parametrize_with_checks

import memgen
from memgen.errors import MemgenError
from memgen.estimators.table import MemDensity, MemImputer
from tests.estimators.frames import QUICK, numbers, people


@parametrize_with_checks([MemDensity(**QUICK), MemImputer(**QUICK)])  # type: ignore[untyped-decorator]
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    """Not one is declared as expected to fail."""
    check(estimator)


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
