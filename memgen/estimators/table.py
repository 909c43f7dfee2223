"""scikit-learn estimators on tables: MemDensity, and MemImputer (imputer.py) for tables with missing values.

Columns may be real, positive, counts, binary or categorical (see data/kinds.py), NaN is missing, in training too, and
every log-density is in the units of the table. The keywords are the recipe's; what is "auto" is chosen by the numbers
of rows and columns, and `recipe_` holds the result.

    >>> import numpy as np
    >>> from memgen.estimators.table import MemDensity
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> density = MemDensity(epochs=5, random_state=0).fit(X)
    >>> density.score_samples(X[:2]).shape, density.sample(3).shape, density.transform(X).shape
    ((2,), (3, 3), (40, 2))
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Int, Shaped
from numpy.typing import NDArray
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils.metaestimators import available_if
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import factorised
from memgen.core.noise import row_keys
from memgen.data.conditions import given as as_given
from memgen.data.conditions import places
from memgen.errors import MemgenError
from memgen.estimators.base import TableEstimator, keywords
from memgen.estimators.imputer import MemImputer
from memgen.estimators.training import ROWS
from memgen.estimators.values import framed, joined, shown
from memgen.tasks.conditional import conditional_sample
from memgen.tasks.density import log_likelihoods
from memgen.tasks.features import features
from memgen.tasks.sampling import sample
from memgen.tasks.scoring import column_scores

OFFSET_ROWS = 2000
"""The most training rows from which the threshold of outliers is computed."""


def _has_contamination(estimator: Any) -> bool:
    return estimator.contamination is not None


class MemDensity(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DensityMixin, TableEstimator):  # type: ignore[misc]
    """The density of a table's rows, as `KernelDensity` and `GaussianMixture` estimate it, and a code for each row.

    Parameters
    ----------
    kinds : "auto", a kind for all columns, one per column, or {name: kind}
        Of the columns: real, positive, heavy_tailed, zero_inflated, count, integer, date, time, ordinal, binary,
        categorical, code.
    ignore : names of columns, or None
        That are not modelled, and that `transform` of the imputer returns untouched; x0, x1, ... of an array.
    unseen : "error" or "missing"
        What becomes of a category that was not seen in training: an error, or a missing value.
    n_samples : int
        Importance samples of `score_samples`.
    contamination : None or a number in (0, 0.5]
        The fraction of training rows that `predict` calls outliers. With None there is no `predict`.
    early_stopping, validation_fraction, n_iter_no_change
        Whether rows are held out, how many of them, and after how many epochs without a better score of them training
        stops; the weights that scored best are kept.
    warm_start, verbose, random_state
        As everywhere in scikit-learn.
    hidden, latent, slots, ..., rate, ema
        The settings of a recipe (memgen/recipes/settings.py explains them), "auto": by the numbers of rows and columns.

    Attributes
    ----------
    columns_ : the kinds of the columns and why; print(*density.columns_.describe(), sep="\\n")
    recipe_ : all settings.   model_ : the model.   n_iter_ : epochs trained.   validation_scores_ : epoch -> bound.
    linear_ : whether training was no better than probabilistic PCA, which was kept then.
    offset_ : with `contamination` the log p below which a row is an outlier, of OFFSET_ROWS training rows at most.
    """

    __init__ = keywords(contamination=None)
    _fitted = (*TableEstimator._fitted, "offset_")

    def fit(self, X: Any, y: Any = None) -> MemDensity:
        """Learn from the rows of X, an array or a DataFrame; NaN, None and pandas.NA are missing values."""
        if self.contamination is not None and not 0 < self.contamination <= 0.5:
            raise MemgenError(f"contamination must be None or lie in (0, 0.5], not {self.contamination!r}")
        super().fit(X, y)
        self.offset_ = None
        if self.contamination is not None:
            x = self._encoded(X)
            some = torch.linspace(0, len(x) - 1, min(OFFSET_ROWS, len(x))).round().long()
            self.offset_ = float(np.percentile(self._scores(x[some]), 100 * self.contamination))
        return self

    @available_if(_has_contamination)  # type: ignore[untyped-decorator]
    def decision_function(self, X: Any) -> Float64[NDArray[np.float64], " N"]:
        """score_samples minus offset_: negative for outliers."""
        scores = self.score_samples(X)
        if self.offset_ is None:
            raise MemgenError("this estimator was fitted without contamination; fit it again")
        return scores - self.offset_

    @available_if(_has_contamination)  # type: ignore[untyped-decorator]
    def predict(self, X: Any) -> Int[NDArray[np.int64], " N"]:
        """-1 for outliers and 1 for all other rows."""
        return np.where(self.decision_function(X) < 0, -1, 1)

    @available_if(_has_contamination)  # type: ignore[untyped-decorator]
    def fit_predict(self, X: Any, y: Any = None) -> Int[NDArray[np.int64], " N"]:
        """`predict` of the rows that were learnt from."""
        predicted: Int[NDArray[np.int64], " N"] = self.fit(X).predict(X)
        return predicted

    def score_samples(self, X: Any) -> Float64[NDArray[np.float64], " N"]:
        """log p(x) of every row in nats, in the units of the table; of an incomplete row that of its observed values.

        It depends on nothing but the row and random_state.
        """
        return self._scores(self._encoded(X))

    def score_columns(self, X: Any) -> Float64[NDArray[np.float64], "N D"]:
        """log p of each value given the other observed values of its row: the lowest, compared with other rows, say
        what makes a row unusual. NaN where a value is missing. It takes as long as scoring a row once per column."""
        batch, keys = Batch.of(x := self._encoded(X)), row_keys(x)
        log_p, samples = torch.from_numpy(self._scores(x)), int(self.n_samples)
        return column_scores(self.model_, batch, log_p, samples, seed=self.seed_, keys=keys).numpy()

    def _scores(self, x: Float64[Tensor, "N D"]) -> Float64[NDArray[np.float64], " N"]:
        samples, parts = int(self.n_samples), []
        stream = log_likelihoods(self.model_, Batch.of(x), samples, 0, self.seed_, ROWS, keys=row_keys(x))
        with shown(self.verbose, "scoring", len(x)) as tick:
            for part in stream:
                parts.append(part.log_p)
                tick(len(part))
        return torch.cat(parts).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of score_samples."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None, *, given: Mapping[str, Any] | None = None) -> Any:
        """New rows, in the table's own values; other rows with every call, unless a random_state is set or given.

        `given` has conditions by column: a value, or a range (low, high), open at a None. The rows are then drawn from
        the model's distribution of the other columns given these. An estimator that was fitted on a DataFrame returns
        one, any other an array.

        >>> import numpy as np
        >>> density = MemDensity(epochs=5, random_state=0).fit(np.random.default_rng(0).normal(size=(40, 3)))
        >>> x = density.sample(5, given={"x0": 0.5, "x1": (0, None)})
        >>> x[:, 0], x[:, 1].min() > 0
        (array([0.5, 0.5, 0.5, 0.5, 0.5]), np.True_)
        """
        check_is_fitted(self)
        chosen = self.random_state if random_state is None else random_state
        seed = int(check_random_state(chosen).randint(2**31))
        if given:
            condition, name = as_given(self.columns_, given), self.columns_.names.__getitem__
            x = conditional_sample(self.model_, condition, n_samples, seed=seed, name=name).x
        else:
            x = sample(self.model_, n_samples, seed=seed, draw=True)
        columns = self._decoded(x, places(self.columns_, given or {}))
        return framed(columns, self.columns_.names) if hasattr(self, "feature_names_in_") else joined(columns)

    def transform(self, X: Any) -> Float64[NDArray[np.float64], "N d"]:
        """The mean of q(z|x): a code for each row."""
        return features(self.model_, Batch.of(self._encoded(X))).mean.numpy()

    def inverse_transform(self, X: Any) -> Shaped[NDArray[Any], "N D"]:
        """The mean of p(x|z) of codes z, of counts rounded; of a binary or categorical column the likeliest level."""
        check_is_fitted(self)
        z = torch.from_numpy(check_array(X, dtype=np.float64))
        if z.shape[1] != self._n_features_out:
            raise MemgenError(f"X has {z.shape[1]} features, but codes have {self._n_features_out}")
        likelihood = self.model_.likelihood
        with torch.no_grad():
            p = self.model_.decode((z,), Batch.unobserved(len(z), likelihood.columns))
            expected = likelihood.expected(factorised(p, "inverse_transform"))
            return joined(self._decoded(likelihood.decide(expected)))

    @property
    def _n_features_out(self) -> int:
        return self.model_.latent[0]


__all__: Sequence[str] = ["MemDensity", "MemImputer"]
