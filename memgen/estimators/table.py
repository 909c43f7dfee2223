"""scikit-learn estimators on tables: MemDensity, and MemImputer for tables with missing values.

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
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Shaped
from numpy.typing import NDArray
from sklearn.base import (
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_array, check_is_fitted
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import factorised
from memgen.core.noise import row_keys
from memgen.data.conditions import given as as_given
from memgen.data.conditions import places
from memgen.data.values import tidy
from memgen.errors import MemgenError
from memgen.estimators.base import TableEstimator, keywords
from memgen.estimators.training import ROWS, log_p
from memgen.estimators.values import framed, joined, modelled, where_missing
from memgen.tasks.conditional import conditional_sample
from memgen.tasks.density import log_likelihood
from memgen.tasks.features import features
from memgen.tasks.imputation import impute
from memgen.tasks.sampling import sample


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
    """

    __init__ = keywords()

    def score_samples(self, X: Any) -> Float64[NDArray[np.float64], " N"]:
        """log p(x) of every row in nats, in the units of the table; of an incomplete row that of its observed values.

        It depends on nothing but the row and random_state.
        """
        x, samples = self._encoded(X), int(self.n_samples)
        if self._blind and bool(x.isnan().any()):
            return log_p(self.model_, x, samples, self.seed_).numpy()
        result = log_likelihood(self.model_, Batch.of(x), samples, seed=self.seed_, batch_size=ROWS, keys=row_keys(x))
        return result.log_p.numpy()

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


class MemImputer(OneToOneFeatureMixin, TransformerMixin, TableEstimator):  # type: ignore[misc]
    """Fills in missing values, like `IterativeImputer`: fitted to incomplete rows, it completes them and new ones.

    Numbers become their conditional mean, counts rounded; of binary and categorical columns it is the likeliest level.
    Observed values are returned unchanged. With `set_output(transform="pandas")` columns keep their own types.

    Parameters
    ----------
    sample_posterior : bool
        Draw from p(missing | observed) instead. A draw is a function of random_state and the row's content, so equal
        rows get equal draws; `set_params(random_state=...)` gives others, without another fit.
    add_indicator : bool
        Append an indicator of missing values for every column that had any in training.
    n_samples : int
        Importance samples of each row.

    All others are those of MemDensity.
    """

    __init__ = keywords(sample_posterior=False, add_indicator=False, n_samples=200)
    _fitted = (*TableEstimator._fitted, "missing_")

    def fit(self, X: Any, y: Any = None) -> MemImputer:
        """Learn from the rows of X, an array or a DataFrame; missing values are NaN, None or pandas.NA."""
        super().fit(X, y)
        self.missing_ = np.flatnonzero(self._encoded(X).isnan().any(0).numpy()).tolist()  # among the modelled ones
        return self

    def transform(self, X: Any) -> Any:
        """X with its missing values filled in. A row's result depends on nothing but the row and random_state."""
        check_is_fitted(self)
        everything, names = self._read(X)
        values, _ = modelled(everything, names, self.columns_.ignored)
        x = torch.from_numpy(self.columns_.encode(values, unseen=self.unseen))
        observed = ~x.isnan()
        completed, incomplete = x.clone(), (~observed).any(1)
        if bool(incomplete.any()):
            completed[incomplete] = self._filled(x[incomplete], observed[incomplete])
        missing = [tidy(name, column).missing for name, column in zip(self.columns_.names, values, strict=True)]
        # Observed values are returned bit by bit, also levels that were not seen in training.
        merged = zip(missing, self._decoded(completed), values, strict=True)
        done = iter([where_missing(absent, new, old) for absent, new, old in merged])
        columns = [
            old if name in self.columns_.ignored else next(done) for name, old in zip(names, everything, strict=True)
        ]
        if self.add_indicator:
            columns += [missing[i].astype(np.float64) for i in self.missing_]
        if _get_output_config("transform", self)["dense"] == "pandas":
            return self._frame(columns, X)
        return joined(columns)

    def get_feature_names_out(self, input_features: Any = None) -> Shaped[NDArray[Any], " D"]:
        """Names of the columns that `transform` returns."""
        names: NDArray[Any] = super().get_feature_names_out(input_features)
        if not self.add_indicator:
            return names
        modelled_names = [
            name for name, own in zip(names, self.names_, strict=True) if own not in self.columns_.ignored
        ]
        indicators = [f"missingindicator_{modelled_names[i]}" for i in self.missing_]
        return np.concatenate([names, np.array(indicators, dtype=object)])

    def _filled(self, x: Float64[Tensor, "n D"], observed: Tensor) -> Float64[Tensor, "n D"]:
        draws, steps = int(bool(self.sample_posterior)), max(2, int(self.n_samples))
        method = "importance" if self._blind else None
        keys = row_keys(x)
        result = impute(self.model_, Batch(x, observed), method, steps=steps, draws=draws, seed=self._seed(), keys=keys)
        return result.draws[0] if draws else result.mean

    def _frame(self, columns: list[NDArray[Any]], X: Any) -> Any:
        """A DataFrame whose columns have the types that X has, where these can hold what was filled in."""
        import pandas as pd

        names = self.get_feature_names_out()
        index, types = (X.index, list(X.dtypes)) if hasattr(X, "iloc") else (None, [])
        frame = pd.DataFrame(dict(zip(names, columns, strict=True)), index=index)
        for name, dtype in zip(names, types, strict=False):
            with suppress(TypeError, ValueError):
                frame[name] = frame[name].astype(dtype)
        return frame


__all__: Sequence[str] = ["MemDensity", "MemImputer"]
