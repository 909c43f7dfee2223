"""scikit-learn estimators on tables: MemDensity, and MemImputer for tables with holes.

Columns may be real, positive, counts, binary or categorical (see data/kinds.py), NaN is missing, in training too, and
every log-density is in the units of the table. The keywords are the recipe's; what is "auto" is chosen by the numbers
of rows and columns, and `recipe_` says how.

    >>> import numpy as np
    >>> from memgen.estimators.table import MemDensity
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> density = MemDensity(epochs=5, random_state=0).fit(X)
    >>> density.score_samples(X[:2]).shape, density.sample(3).shape, density.transform(X).shape
    ((2,), (3, 3), (40, 2))
"""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Shaped
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    DensityMixin,
    OneToOneFeatureMixin,
    TransformerMixin,
)
from sklearn.utils import check_random_state
from sklearn.utils._set_output import _get_output_config
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import factorised
from memgen.core.model import DGM
from memgen.core.noise import row_keys
from memgen.data.columns import Columns
from memgen.data.dataset import Dataset
from memgen.data.texts import as_values
from memgen.data.values import tidy
from memgen.errors import MemgenError
from memgen.estimators.training import ROWS, log_p, train_table
from memgen.recipes.auto import auto_recipe, default_slots
from memgen.recipes.build import build
from memgen.recipes.settings import Model, Objective, Recipe, Training
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import log_likelihood
from memgen.tasks.features import features
from memgen.tasks.imputation import impute
from memgen.tasks.sampling import sample

AUTO = "auto"
FIXED = {
    "model": {"likelihood", "categories", "mask"},
    "objective": set(),
    "training": {"seed", "drop_incomplete", "keep", "evaluate_every", "evaluate_rows", "evaluate_samples"},
}
"""Settings of a recipe that an estimator decides itself."""
SETTINGS = {
    entry.name: section
    for section, kind in (("model", Model), ("objective", Objective), ("training", Training))
    for entry in fields(kind)
    if entry.name not in FIXED[section]
}
"""Keyword -> its section of the recipe."""
COMMON: dict[str, Any] = {
    "kinds": AUTO,
    "unseen": "error",
    "n_samples": 1000,
    "early_stopping": True,
    "validation_fraction": 0.1,
    "n_iter_no_change": AUTO,
    "warm_start": False,
    "verbose": 0,
    "random_state": None,
}
"""Keywords of both estimators that are no settings of a recipe, with their defaults."""
FEWEST = 10
"""Rows with which some can be held out; with fewer the result is a linear model."""

Self = TypeVar("Self", bound="TableEstimator")


def keywords(**own: Any) -> Callable[..., None]:
    """An `__init__` with these keywords, the common ones and those of a recipe: scikit-learn reads them from its
    signature, and it must do nothing but keep them.
    """
    defaults = {**COMMON, **own, **dict.fromkeys(SETTINGS, AUTO)}

    def __init__(self: Any, **given: Any) -> None:  # noqa: N807
        for name in given:
            if name not in defaults:
                raise TypeError(f"{type(self).__name__}() got an unexpected keyword argument {name!r}")
        for name, value in {**defaults, **given}.items():
            setattr(self, name, value)

    places = [inspect.Parameter("self", inspect.Parameter.POSITIONAL_ONLY)]
    places += [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=v) for name, v in defaults.items()]
    __init__.__signature__ = inspect.Signature(places)  # type: ignore[attr-defined]
    return __init__


class TableEstimator(BaseEstimator):  # type: ignore[misc]
    """What both estimators do: read a table, fit a model to what is there of it, keep it."""

    seed_: int
    model_: DGM
    recipe_: Recipe
    columns_: Columns

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.input_tags.categorical = True
        return tags

    def fit(self: Self, X: Any, y: Any = None) -> Self:
        """Learn from the rows of X, an array or a DataFrame; NaN, None and pandas.NA are missing values."""
        again = bool(self.warm_start) and hasattr(self, "model_")
        values, names = self._read(X, reset=not again)
        self._check(len(values[0]))
        kinds = None if _is_auto(self.kinds) else _plain(self.kinds)
        columns = self.columns_ if again else Columns.infer(values, names, kinds)
        if self.verbose:
            print("\n".join(columns.describe()))
        x = torch.from_numpy(columns.encode(values, unseen=self.unseen))
        # With warm_start the same rows stay held out.
        seed = self.seed_ if again else self._seed(fresh=True)
        train, valid = self._split(x, seed)
        recipe = self._recipe(columns, len(train), seed)
        if again and recipe.model != self.recipe_.model:
            raise MemgenError("warm_start goes on with the model that is there; its settings cannot change")
        model = copy.deepcopy(self.model_).float() if again else build(recipe, len(columns), columns.modelled)
        found = train_table(model, Dataset("table", train, valid), recipe, again, self._patience, bool(self.verbose))
        self.columns_, self.seed_, self.recipe_ = columns, seed, recipe
        self.n_iter_, self.validation_scores_, self.linear_ = found.epochs, found.scores, found.linear
        self.complete_ = not bool(x.isnan().any())
        # In float64 a row's answer depends on the rows beside it in its last digits at most.
        self.model_ = found.model.double().eval()
        return self

    def save(self, path: str | Path) -> None:
        """Write all that was learnt, with the settings, into one safetensors file; nothing is pickled."""
        check_is_fitted(self)
        settings = self.get_params()
        if not isinstance(settings["random_state"], (int, np.integer, type(None))):
            settings["random_state"] = None  # a generator has no text; what it gave is in seed_
        about = {
            "estimator": type(self).__name__,
            "settings": json.dumps(settings, default=_json),
            "recipe": self.recipe_.to_toml(),
            "columns": self.columns_.to_json(),
            "named": json.dumps(hasattr(self, "feature_names_in_")),
            "fitted": json.dumps({name: getattr(self, name) for name in self._fitted}),
        }
        save_tensors(Path(path), self.model_.state_dict(), about)

    @classmethod
    def load(cls: type[Self], path: str | Path) -> Self:
        """The estimator that `save` wrote."""
        tensors, about = load_tensors(Path(path))
        if about.get("estimator") != cls.__name__:
            raise MemgenError(f"{path} holds {about.get('estimator', 'no estimator')}, not a {cls.__name__}")
        self = cls(**json.loads(about["settings"]))
        self.recipe_ = Recipe.from_toml(about["recipe"], str(path))
        self.columns_ = Columns.from_json(about["columns"], str(path))
        for name, value in json.loads(about["fitted"]).items():
            setattr(self, name, value)
        self.validation_scores_ = {int(epoch): score for epoch, score in self.validation_scores_.items()}
        self.n_features_in_ = len(self.columns_)
        if json.loads(about["named"]):
            self.feature_names_in_ = np.array(self.columns_.names, dtype=object)
        self.model_ = build(self.recipe_, len(self.columns_), self.columns_.modelled).double().eval()
        self.model_.load_state_dict(tensors)
        return self

    _fitted: tuple[str, ...] = ("seed_", "n_iter_", "linear_", "complete_", "validation_scores_")
    """Attributes that are saved as they are."""

    def _read(self, X: Any, reset: bool = False) -> tuple[list[Shaped[NDArray[Any], " N"]], list[str]]:
        """The columns of X, each with its own type, and their names."""
        if hasattr(X, "iloc") and hasattr(X, "columns"):  # a frame of pandas: an array would lose the columns' types
            validate_data(self, X, skip_check_array=True, reset=reset)
            if len(X) == 0:
                raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
            return [_column(X.iloc[:, i]) for i in range(X.shape[1])], [str(name) for name in X.columns]
        array = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)
        return [_checked(array[:, i]) for i in range(array.shape[1])], [f"x{i}" for i in range(array.shape[1])]

    def _encoded(self, X: Any) -> Float64[Tensor, "N D"]:
        """New rows as the model reads them."""
        check_is_fitted(self)
        return torch.from_numpy(self.columns_.encode(self._read(X)[0], unseen=self.unseen))

    def _decoded(self, x: Float[Tensor, "N D"]) -> list[Shaped[NDArray[Any], " N"]]:
        """In the user's own values, column by column."""
        return as_values(self.columns_, x.double().numpy())

    def _seed(self, fresh: bool = False) -> int:
        """Of random_state, if it is a number; else the one of the fit."""
        if fresh or isinstance(self.random_state, (int, np.integer)):
            return int(check_random_state(self.random_state).randint(2**31))
        return int(self.seed_)

    @property
    def _blind(self) -> bool:
        """Whether Q has never seen a row with holes: then completed rows propose z."""
        return bool(self.linear_ or self.complete_)

    def _check(self, rows: int) -> None:
        if rows < 2:
            raise MemgenError(f"{type(self).__name__} needs at least 2 rows to learn from, this has n_samples={rows}")
        if not 0 < self.validation_fraction < 1:
            raise MemgenError(f"validation_fraction must lie between 0 and 1, not {self.validation_fraction!r}")
        if self.unseen not in ("error", "missing"):
            raise MemgenError(f"unseen must be 'error' or 'missing', not {self.unseen!r}")
        if not isinstance(self.n_samples, (int, np.integer)) or self.n_samples < 1:
            raise MemgenError(f"n_samples must be a whole number from 1 on, not {self.n_samples!r}")

    def _split(self, x: Float64[Tensor, "N D"], seed: int) -> tuple[Float[Tensor, "n D"], Float[Tensor, "m D"] | None]:
        """Training rows, and validation rows if they are wanted; none of them if there are too few to judge by."""
        if not self.early_stopping:
            return x.float(), None
        order = np.random.RandomState(seed).permutation(len(x))
        held = min(len(x) - 2, max(1, round(self.validation_fraction * len(x)))) if len(x) >= FEWEST else 0
        return x[order[held:]].float(), x[order[:held]].float()

    def _recipe(self, columns: Columns, rows: int, seed: int) -> Recipe:
        """What suits so many rows, with the given settings in place of it."""
        table = auto_recipe(rows, len(columns), columns.encoded).to_dict()
        given = {name: getattr(self, name) for name in SETTINGS if not _is_auto(getattr(self, name))}
        for name, value in given.items():
            table[SETTINGS[name]][name] = _plain(value)
        hidden = table["model"]["hidden"]
        if "slots" not in given and isinstance(hidden, list) and not any(isinstance(level, list) for level in hidden):
            table["model"]["slots"] = default_slots(len(hidden))
        table["model"] |= {"likelihood": "mixed", "mask": True}
        table["data"]["name"] = "./table"
        table["training"] |= {"seed": seed, "keep": "last", "evaluate_every": 0}  # train_table sees to it
        return Recipe.from_dict(table, type(self).__name__)

    def _patience(self, epochs: int) -> int:
        return max(20, epochs // 3) if _is_auto(self.n_iter_no_change) else int(self.n_iter_no_change)


class MemDensity(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DensityMixin, TableEstimator):  # type: ignore[misc]
    """The density of a table's rows, as `KernelDensity` and `GaussianMixture` estimate it, and a code for each row.

    Parameters
    ----------
    kinds : "auto", a kind for all columns, one per column, or {name: kind}
        Of the columns: real, positive, count, binary, categorical.
    unseen : "error" or "missing"
        What a category that was not there in training is taken for.
    n_samples : int
        Importance samples of `score_samples`.
    early_stopping, validation_fraction, n_iter_no_change
        Whether rows are held out, how many of them, and after how many epochs without a better score of them training
        stops; the weights that scored best are kept.
    warm_start, verbose, random_state
        As everywhere in scikit-learn.
    hidden, latent, slots, ..., rate, ema
        The settings of a recipe (memgen/recipe.py explains them), "auto": by the numbers of rows and columns.

    Attributes
    ----------
    columns_ : the kinds of the columns and why; print(*density.columns_.describe(), sep="\\n")
    recipe_ : all settings.   model_ : the model.   n_iter_ : epochs trained.   validation_scores_ : epoch -> bound.
    linear_ : whether training was no better than probabilistic PCA, which was kept then.
    """

    __init__ = keywords()

    def score_samples(self, X: Any) -> Float64[NDArray[np.float64], " N"]:
        """log p(x) of every row in nats, in the units of the table; of a row with holes that of what is there. It
        depends on nothing but the row and random_state.
        """
        x, samples = self._encoded(X), int(self.n_samples)
        if self._blind and bool(x.isnan().any()):
            return log_p(self.model_, x, samples, self.seed_).numpy()
        found = log_likelihood(self.model_, Batch.of(x), samples, seed=self.seed_, batch_size=ROWS, keys=row_keys(x))
        return found.log_p.numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of score_samples."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Shaped[NDArray[Any], "n D"]:
        """New rows, in the table's own values; others with every call, unless a random_state is given here or there."""
        check_is_fitted(self)
        chosen = self.random_state if random_state is None else random_state
        seed = int(check_random_state(chosen).randint(2**31))
        return _joined(self._decoded(sample(self.model_, n_samples, seed=seed, draw=True)))

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
            return _joined(self._decoded(likelihood.decide(expected)))

    @property
    def _n_features_out(self) -> int:
        return self.model_.latent[0]


class MemImputer(OneToOneFeatureMixin, TransformerMixin, TableEstimator):  # type: ignore[misc]
    """Fills in missing values, like `IterativeImputer`: fitted to rows with holes, it completes them and unseen ones.

    Numbers become their conditional mean, counts rounded; of binary and categorical columns it is the likeliest level.
    What was observed goes out as it came in. With `set_output(transform="pandas")` columns keep their own types.

    Parameters
    ----------
    sample_posterior : bool
        Draw from p(missing | observed) instead. A draw is a function of random_state and the row's content, so equal
        rows get equal draws; `set_params(random_state=...)` gives others, without another fit.
    add_indicator : bool
        Append a column for every column that had holes in training: whether the value was missing.
    n_samples : int
        Importance samples of each row.

    All others are those of MemDensity.
    """

    __init__ = keywords(sample_posterior=False, add_indicator=False, n_samples=200)
    _fitted = (*TableEstimator._fitted, "missing_")

    def fit(self, X: Any, y: Any = None) -> MemImputer:
        """Learn from the rows of X, an array or a DataFrame with holes: NaN, None or pandas.NA."""
        super().fit(X, y)
        self.missing_ = np.flatnonzero(self._encoded(X).isnan().any(0).numpy()).tolist()
        return self

    def transform(self, X: Any) -> Any:
        """X without holes. A row's answer depends on nothing but the row and random_state."""
        check_is_fitted(self)
        values = self._read(X)[0]
        x = torch.from_numpy(self.columns_.encode(values, unseen=self.unseen))
        observed = ~x.isnan()
        completed, holes = x.clone(), (~observed).any(1)
        if bool(holes.any()):
            completed[holes] = self._filled(x[holes], observed[holes])
        gone = [tidy(name, column).missing for name, column in zip(self.columns_.names, values, strict=True)]
        # What was there goes out bit by bit as it came in, a level that training never met too.
        columns = [_where(g, new, old) for g, new, old in zip(gone, self._decoded(completed), values, strict=True)]
        if self.add_indicator:
            columns += [gone[i].astype(np.float64) for i in self.missing_]
        if _get_output_config("transform", self)["dense"] == "pandas":
            return self._frame(columns, X)
        return _joined(columns)

    def get_feature_names_out(self, input_features: Any = None) -> Shaped[NDArray[Any], " D"]:
        """Names of the columns that `transform` returns."""
        names: NDArray[Any] = super().get_feature_names_out(input_features)
        if not self.add_indicator:
            return names
        return np.concatenate([names, np.array([f"missingindicator_{names[i]}" for i in self.missing_], dtype=object)])

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
        found = pd.DataFrame(dict(zip(names, columns, strict=True)), index=index)
        for name, own in zip(names, types, strict=False):
            with suppress(TypeError, ValueError):
                found[name] = found[name].astype(own)
        return found


def _joined(columns: list[NDArray[Any]]) -> Shaped[NDArray[Any], "N D"]:
    """One array: of numbers, or of objects where a column is text."""
    text = any(column.dtype == object for column in columns)
    return np.stack([column.astype(object if text else np.float64) for column in columns], 1)


def _where(gone: NDArray[np.bool_], new: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
    """The new value where the old one is gone."""
    if new.dtype == object or old.dtype == object:
        if new.dtype != object:
            old = np.where(gone, np.nan, old).astype(np.float64)
            return np.where(gone, new.astype(np.float64), old)
        return np.where(gone, new, old.astype(object))
    return np.where(gone, new.astype(np.float64), old.astype(np.float64)) if gone.any() else old


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def _plain(value: Any) -> Any:
    """NumPy's numbers and tuples as TOML and JSON have them."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def _json(value: Any) -> Any:
    plain = _plain(value)
    if plain is value:
        raise MemgenError(f"the setting {value!r} has no text, so it cannot be saved")
    return plain


def _checked(column: NDArray[Any]) -> NDArray[Any]:
    """scikit-learn wants a TypeError for objects that are neither numbers nor text."""
    if column.dtype == object:
        for value in column:
            if isinstance(value, (dict, list, tuple, set)):
                raise TypeError(f"argument must be a string or a number, not {type(value).__name__!r}")
    return column


def _column(series: Any) -> NDArray[Any]:
    """A column of a DataFrame: numbers and truth values as they are, all else as objects."""
    kind = getattr(series.dtype, "kind", "O")
    plain = isinstance(series.dtype, np.dtype) and kind in "biufMmc"
    return np.asarray(series) if plain else np.asarray(series.astype(object), dtype=object)


__all__: Sequence[str] = ["MemDensity", "MemImputer"]
