"""The estimators are scikit-learn's in every way that its own checks know."""

from __future__ import annotations

from typing import Any

from sklearn.utils.estimator_checks import parametrize_with_checks

from memgen.estimators import MemDensity, MemImputer

QUICK = {"epochs": 3, "hidden": (4,), "slots": (3,), "latent": 2, "n_samples": 5, "batch_size": 64}


@parametrize_with_checks([MemDensity(**QUICK), MemImputer(**QUICK)])
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
