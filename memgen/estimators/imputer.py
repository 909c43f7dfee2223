"""MemImputer, the scikit-learn transformer that fills in missing values."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64, Shaped
from numpy.typing import NDArray
from sklearn.base import OneToOneFeatureMixin, TransformerMixin
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.noise import row_keys
from memgen.data.values import tidy
from memgen.errors import MemgenError
from memgen.estimators.base import TableEstimator, keywords
from memgen.estimators.values import joined, modelled, shown, where_missing
from memgen.tasks.imputation import imputations
from memgen.tasks.imputation.filling import Settings


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
        return self._completed(X, int(bool(self.sample_posterior)))[0]

    def impute(self, X: Any, n_imputations: int = 5) -> list[Any]:
        """Several completions of X, each drawn from p(missing | observed), for multiple imputation: analyse each, then
        combine the results by `memgen.estimators.pool`.

        >>> import numpy as np
        >>> X = np.random.default_rng(0).normal(size=(40, 3))
        >>> X[0, 0] = np.nan
        >>> tables = MemImputer(epochs=5, random_state=0).fit(X).impute(X, 3)
        >>> len(tables), len({table[0, 0] for table in tables})
        (3, 3)
        """
        if not isinstance(n_imputations, (int, np.integer)) or n_imputations < 1:
            raise MemgenError(f"n_imputations must be a whole number from 1 on, not {n_imputations!r}")
        return self._completed(X, int(n_imputations))

    def _completed(self, X: Any, draws: int) -> list[Any]:
        """X completed by as many draws; by conditional means if there are none."""
        check_is_fitted(self)
        everything, names = self._read(X)
        values, _ = modelled(everything, names, self.columns_.ignored)
        x = torch.from_numpy(self.columns_.encode(values, unseen=self.unseen))
        observed = ~x.isnan()
        completed, incomplete = x.repeat(max(1, draws), 1, 1), (~observed).any(1)
        if bool(incomplete.any()):
            completed[:, incomplete] = self._filled(x[incomplete], observed[incomplete], draws)
        missing = [tidy(name, column).missing for name, column in zip(self.columns_.names, values, strict=True)]
        ignored = {name: old for name, old in zip(names, everything, strict=True) if name in self.columns_.ignored}
        filled = [self._merged(table, values, missing) for table in completed]
        return [self._table([{**ignored, **done}[name] for name in names], missing, X) for done in filled]

    def _merged(
        self, x: Float64[Tensor, "n D"], values: list[NDArray[Any]], missing: list[NDArray[np.bool_]]
    ) -> dict[str, NDArray[Any]]:
        """The observed values bit by bit, also levels that were not seen in training, and x where they are missing."""
        merged = zip(missing, self._decoded(x), values, strict=True)
        columns = [where_missing(absent, new, old) for absent, new, old in merged]
        return dict(zip(self.columns_.names, columns, strict=True))

    def _table(self, columns: list[NDArray[Any]], missing: list[NDArray[np.bool_]], X: Any) -> Any:
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

    def _filled(self, x: Float64[Tensor, "n D"], observed: Tensor, draws: int) -> Float64[Tensor, "M n D"]:
        steps, method = max(2, int(self.n_samples), 2 * draws), "importance" if self._blind else None
        settings = Settings(steps, draws=draws, seed=self._seed())
        stream = imputations(self.model_, Batch(x, observed), method, settings, keys=row_keys(x))
        parts = []
        with shown(self.verbose, "imputing", len(x)) as tick:
            for part in stream:
                parts.append(part.draws if draws else part.mean.unsqueeze(0))
                tick(len(part))
        return torch.cat(parts, 1)

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
