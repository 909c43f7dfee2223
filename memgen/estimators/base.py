"""What both estimators share: reading a table, fitting a model to its observed values, saving."""

from __future__ import annotations

import copy
import inspect
import json
from collections.abc import Callable, Collection
from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Float, Float64, Shaped
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
)
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Tensor

from memgen.core.model import DGM
from memgen.data.columns import Columns
from memgen.data.dataset import Dataset
from memgen.data.own_tables import check_ignored
from memgen.errors import MemgenError
from memgen.estimators.saved import read_estimator
from memgen.estimators.training import CHECKS, train_table
from memgen.estimators.values import AUTO, as_text, checked, column_of, is_auto, modelled, plain
from memgen.recipes.auto import auto_recipe, default_slots
from memgen.recipes.build import build
from memgen.recipes.settings import Model, Objective, Recipe, Training
from memgen.runs.storage import save_tensors

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
    "ignore": None,
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


def keywords(**specific: Any) -> Callable[..., None]:
    """An `__init__` with these keywords, the common ones and those of a recipe: scikit-learn reads them from its
    signature, and requires that it only stores them.
    """
    defaults = {**COMMON, **specific, **dict.fromkeys(SETTINGS, AUTO)}

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
    """What both estimators share: reading a table, fitting a model to its observed values, saving."""

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
        kinds = None if is_auto(self.kinds) else plain(self.kinds)
        ignored = tuple(self.ignore or ())
        check_ignored(ignored, names)
        self.names_ = names
        values, names = modelled(values, names, ignored)
        columns = self.columns_ if again else Columns.infer(values, names, kinds, ignored=ignored)
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
        trained = train_table(model, Dataset("table", train, valid), recipe, again, self._patience, bool(self.verbose))
        self.columns_, self.seed_, self.recipe_ = columns, seed, recipe
        self.n_iter_, self.validation_scores_, self.linear_ = trained.epochs, trained.scores, trained.linear
        self.complete_ = not bool(x.isnan().any())
        # In float64 a row's answer depends on the rows beside it in its last digits at most.
        self.model_ = trained.model.double().eval()
        return self

    def save(self, path: str | Path) -> None:
        """Write all that was learnt, with the settings, into one safetensors file; nothing is pickled."""
        check_is_fitted(self)
        settings = self.get_params()
        if not isinstance(settings["random_state"], (int, np.integer, type(None))):
            settings["random_state"] = None  # a generator cannot be saved; the seed that it gave is in seed_
        about = {
            "estimator": type(self).__name__,
            "settings": json.dumps(settings, default=as_text),
            "recipe": self.recipe_.to_toml(),
            "columns": self.columns_.to_json(),
            "named": json.dumps(hasattr(self, "feature_names_in_")),
            "names": json.dumps(self.names_),
            "fitted": json.dumps({name: getattr(self, name) for name in self._fitted}),
        }
        save_tensors(Path(path), self.model_.state_dict(), about)

    @classmethod
    def load(cls: type[Self], path: str | Path) -> Self:
        """The estimator that `save` wrote."""
        saved = read_estimator(Path(path), cls.__name__, cls().get_params(), cls._fitted)
        self = cls(**saved.settings)
        self.recipe_, self.columns_, self.model_ = saved.recipe, saved.columns, saved.model
        for name in cls._fitted:
            setattr(self, name, saved.fitted[name])
        self.names_ = list(saved.names)
        self.n_features_in_ = len(self.names_)
        if saved.named:
            self.feature_names_in_ = np.array(self.names_, dtype=object)
        return self

    _fitted: tuple[str, ...] = ("seed_", "n_iter_", "linear_", "complete_", "validation_scores_")
    """Attributes that are saved as they are."""

    def _read(self, X: Any, reset: bool = False) -> tuple[list[Shaped[NDArray[Any], " N"]], list[str]]:
        """The columns of X, each with its own type, and their names."""
        if hasattr(X, "iloc") and hasattr(X, "columns"):  # a DataFrame: an array would lose the columns' types
            validate_data(self, X, skip_check_array=True, reset=reset)
            if len(X) == 0:
                raise ValueError("Found array with 0 sample(s) while a minimum of 1 is required.")
            return [column_of(X.iloc[:, i]) for i in range(X.shape[1])], [str(name) for name in X.columns]
        array = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)
        return [checked(array[:, i]) for i in range(array.shape[1])], [f"x{i}" for i in range(array.shape[1])]

    def _encoded(self, X: Any) -> Float64[Tensor, "N D"]:
        """New rows as the model reads them."""
        check_is_fitted(self)
        values, _ = modelled(*self._read(X), self.columns_.ignored)
        return torch.from_numpy(self.columns_.encode(values, unseen=self.unseen))

    def _decoded(self, x: Float[Tensor, "N D"], free: Collection[int] = ()) -> list[Shaped[NDArray[Any], " N"]]:
        """The rows x in the user's own values, column by column; the range of the columns `free` is not kept."""
        return self.columns_.filled(x.double().numpy(), free)

    def _seed(self, fresh: bool = False) -> int:
        """The seed of random_state, if it is a number; else the seed of the fit."""
        if fresh or isinstance(self.random_state, (int, np.integer)):
            return int(check_random_state(self.random_state).randint(2**31))
        return int(self.seed_)

    @property
    def _blind(self) -> bool:
        """Whether Q was made for complete rows alone: then z is proposed from completed rows."""
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
        """Training rows, and validation rows with early_stopping; these are empty if there are too few rows."""
        if not self.early_stopping:
            return x.float(), None
        order = np.random.RandomState(seed).permutation(len(x))
        held = min(len(x) - 2, max(1, round(self.validation_fraction * len(x)))) if len(x) >= FEWEST else 0
        return x[order[held:]].float(), x[order[:held]].float()

    def _recipe(self, columns: Columns, rows: int, seed: int) -> Recipe:
        """The recipe `auto` for this number of rows, changed by the given settings."""
        table = auto_recipe(rows, len(columns), columns.encoded).to_dict()
        given = {name: getattr(self, name) for name in SETTINGS if not is_auto(getattr(self, name))}
        for name, value in given.items():
            table[SETTINGS[name]][name] = plain(value)
        hidden = table["model"]["hidden"]
        if "slots" not in given and isinstance(hidden, list) and not any(isinstance(level, list) for level in hidden):
            table["model"]["slots"] = default_slots(len(hidden))
        table["model"] |= {"likelihood": "mixed", "mask": True}
        table["data"]["name"] = "./table"
        table["training"] |= {"seed": seed, "keep": "last", "evaluate_every": 0}
        recipe = Recipe.from_dict(table, type(self).__name__)
        if not self.early_stopping:
            return recipe
        return recipe.override(["training.keep=best", f"training.evaluate_every={max(1, recipe.epochs // CHECKS)}"])

    def _patience(self, epochs: int) -> int:
        return max(20, epochs // 3) if is_auto(self.n_iter_no_change) else int(self.n_iter_no_change)
