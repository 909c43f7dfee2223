"""scikit-learn estimators on tables: MemDensity, and MemImputer for tables with holes.

Columns may be real, positive, counts, binary or categorical (see data/kinds.py), NaN is missing, in training too, and
every log-density is in the units of the table. The keywords are the recipe's; what is "auto" is chosen by the numbers
of rows and columns, and `recipe_` says how.

    >>> import numpy as np
    >>> from memgen.estimators import MemDensity
    >>> X = np.random.default_rng(0).normal(size=(40, 3))
    >>> density = MemDensity(epochs=5, random_state=0).fit(X)
    >>> density.score_samples(X[:2]).shape, density.sample(3).shape, density.transform(X).shape
    ((2,), (3, 3), (40, 2))
"""

from __future__ import annotations

import copy
import inspect
import json
import math
from collections.abc import Callable, Sequence
from contextlib import closing, nullcontext
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
from sklearn.impute import MissingIndicator
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from memgen.auto import auto_recipe
from memgen.data.columns import Columns
from memgen.data.dataset import Dataset
from memgen.errors import MemgenError
from memgen.layers import batch_norms
from memgen.model import DGM, Batch
from memgen.objective import importance
from memgen.progress import Progress
from memgen.recipe import Model, Objective, Recipe, Training, build
from memgen.seeds import Purpose, generator, row_keys
from memgen.start import start_linear
from memgen.storage import load_tensors, save_tensors
from memgen.tasks.density import log_likelihood, standard_error
from memgen.tasks.features import features
from memgen.tasks.imputation import impute
from memgen.tasks.sampling import sample
from memgen.train import State, adapt, begin, collect_statistics, fit

AUTO = "auto"
FIXED = {
    "model": {"likelihood", "categories", "mask"},
    "objective": set(),
    "training": {"seed", "drop_incomplete", "evaluate_every", "evaluate_rows", "evaluate_samples"},
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
CHECKS = 40
"""How often validation rows are scored during a training, at most."""
VALIDATION_SAMPLES = 100
FEWEST = 10
"""Rows with which some can be held out."""

Self = TypeVar("Self", bound="TableEstimator")


def keywords(**own: Any) -> Callable[..., None]:
    """An `__init__` with these keywords, the common ones and those of a recipe: scikit-learn reads them from its
    signature, and it must do nothing but keep them.
    """
    defaults = {**own, **COMMON, **dict.fromkeys(SETTINGS, AUTO)}

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
        """Learn from the rows of X, a table or a DataFrame; NaN, None and pandas.NA are missing values."""
        values, names = self._read(X, reset=True)
        rows = len(values[0])
        if rows < 2:
            raise MemgenError(f"{type(self).__name__} needs at least 2 rows to learn from, this has n_samples={rows}")
        self._check()
        again = self.warm_start and hasattr(self, "model_")
        if not again:
            self.columns_ = Columns.infer(values, names, None if self.kinds == AUTO else self.kinds)
        if self.verbose:
            print("\n".join(self.columns_.describe()))
        x = torch.from_numpy(self.columns_.encode(values, unseen=self.unseen))
        self.seed_ = int(check_random_state(self.random_state).randint(2**31))
        train, valid = self._split(x)
        self.recipe_ = self._recipe(len(train))
        model = self.model_.float() if again else build(self.recipe_, x.shape[1], self._kinds())
        # In float64 a row's answer does not depend on the rows beside it, not even in its last digits.
        self.model_ = self._train(model, Dataset("table", train, valid), again).double()
        return self

    def save(self, path: str | Path) -> None:
        """Write all that was learnt, with the settings, into one safetensors file; nothing is pickled."""
        check_is_fitted(self)
        settings = {name: value for name, value in self.get_params().items() if name != "random_state"}
        about = {
            "estimator": type(self).__name__,
            "settings": json.dumps(settings, default=_plain),
            "recipe": self.recipe_.to_toml(),
            "columns": self.columns_.to_json(),
            "seed": str(self.seed_),
            "fit": json.dumps({"n_iter_": self.n_iter_, "linear_": self.linear_}),
            "named": json.dumps(hasattr(self, "feature_names_in_")),
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
        self.seed_ = int(about["seed"])
        for name, value in json.loads(about["fit"]).items():
            setattr(self, name, value)
        self.n_features_in_ = len(self.columns_)
        if json.loads(about["named"]):
            self.feature_names_in_ = np.array(self.columns_.names, dtype=object)
        self.model_ = build(self.recipe_, len(self.columns_), self._kinds()).double().eval()
        self.model_.load_state_dict(tensors)
        return self

    def _read(self, X: Any, reset: bool = False) -> tuple[list[Shaped[NDArray[Any], " N"]], list[str]]:
        """The columns of X, each with its own type, and their names."""
        frame = X if hasattr(X, "columns") and hasattr(X, "dtypes") else None
        array = validate_data(self, X, dtype=None, ensure_all_finite="allow-nan", reset=reset)
        if frame is None:
            names = [f"x{i}" for i in range(array.shape[1])]
            return [_checked(array[:, i]) for i in range(array.shape[1])], names
        return [_column(frame.iloc[:, i]) for i in range(frame.shape[1])], [str(name) for name in frame.columns]

    def _encoded(self, X: Any) -> Float64[Tensor, "N D"]:
        """New rows as the model reads them."""
        check_is_fitted(self)
        return torch.from_numpy(self.columns_.encode(self._read(X)[0], unseen=self.unseen))

    def _decoded(self, x: Float[Tensor, "N D"]) -> Shaped[NDArray[Any], "N D"]:
        """In the user's own values: numbers, or objects where a column is text."""
        columns = self.columns_.decode(x.double().numpy())
        text = any(column.dtype == object for column in columns)
        return np.stack([column.astype(object if text else np.float64) for column in columns], 1)

    def _kinds(self) -> list[tuple[str, int]]:
        return [(column.kind, len(column.levels)) for column in self.columns_]

    def _check(self) -> None:
        if not 0 < self.validation_fraction < 1:
            raise MemgenError(f"validation_fraction must lie between 0 and 1, not {self.validation_fraction!r}")
        if self.unseen not in ("error", "missing"):
            raise MemgenError(f"unseen must be 'error' or 'missing', not {self.unseen!r}")
        if not isinstance(self.n_samples, (int, np.integer)) or self.n_samples < 1:
            raise MemgenError(f"n_samples must be a whole number from 1 on, not {self.n_samples!r}")

    def _split(self, x: Float64[Tensor, "N D"]) -> tuple[Float[Tensor, "n D"], Float[Tensor, "m D"] | None]:
        """Training rows, and validation rows if there are enough and they are wanted."""
        if not self.early_stopping or len(x) < FEWEST:
            return x.float(), None
        order = np.random.RandomState(self.seed_).permutation(len(x))
        held = max(1, round(self.validation_fraction * len(x)))
        return x[order[held:]].float(), x[order[:held]].float()

    def _recipe(self, rows: int) -> Recipe:
        """What suits so many rows, with the given settings in place of it."""
        encoded = sum(levels if kind == "categorical" else 1 for kind, levels in self._kinds())
        table = auto_recipe(rows, len(self.columns_), encoded).to_dict()
        given = {name: getattr(self, name) for name in SETTINGS if not _is_auto(getattr(self, name))}
        for name, value in given.items():
            table[SETTINGS[name]][name] = _plain(value)
        if "hidden" in given and "slots" not in given:
            table["model"]["slots"] = []
        table["model"]["likelihood"] = "mixed"
        table["training"]["seed"] = self.seed_
        return Recipe.from_dict(table, type(self).__name__)

    def _train(self, model: DGM, data: Dataset, again: bool) -> DGM:
        """Train to the end or until validation rows are scored no better; the best weights are the result, or a linear
        model if they are no better than that."""
        recipe, epochs = self.recipe_, self.recipe_.training.epochs
        if not again:
            adapt(model, data, recipe)
        state = begin(model, recipe)
        watch = _Watch(data, self.seed_, self._patience(epochs))
        linear = None if again or not recipe.model.skip else watch.bounds(linear_of(model, data.train))
        watch.look(state)
        shown = Progress(type(self).__name__, epochs, "epoch") if self.verbose else nullcontext()
        with shown as progress, closing(fit(model, data, recipe, state=state)) as stream:
            for epoch in stream:
                if progress is not None:
                    progress.to(epoch.epoch, watch.note)
                due = epoch.epoch % max(1, epochs // CHECKS) == 0 or epoch.epoch == epochs
                if due and watch.look(state):
                    break
        self.n_iter_, self.validation_scores_ = state.epoch, watch.scores
        if watch.best is not None:
            model.load_state_dict(watch.best)
        self.linear_ = linear is not None and not is_better(watch.best_bounds, linear)
        if self.linear_:  # a closed form, for which nothing need be held out
            assert data.valid is not None
            rows = torch.cat([data.train, data.valid])
            model.likelihood.adapt(rows)
            start_linear(model, rows)
        return model.eval()

    def _patience(self, epochs: int) -> int:
        return max(20, epochs // 3) if self.n_iter_no_change == AUTO else int(self.n_iter_no_change)


def linear_of(model: DGM, rows: Float[Tensor, "n D"]) -> DGM:
    """The same model as probabilistic PCA of the rows, all layers silent."""
    linear = copy.deepcopy(model)
    start_linear(linear, rows)
    return linear


def is_better(bounds: Float64[Tensor, " m"], linear: Float64[Tensor, " m"]) -> bool:
    """By more than the standard error over the rows: a few of them should not talk us out of a linear model."""
    gain = bounds - linear
    return len(gain) < 2 or float(gain.mean()) > standard_error(gain)


class _Watch:
    """The bound of validation rows, always with the same noise, and the weights that scored best."""

    def __init__(self, data: Dataset, seed: int, patience: int) -> None:
        self.data, self.seed, self.patience = data, seed, patience
        self.scores: dict[int, float] = {}
        """Epoch -> mean bound."""
        self.best: dict[str, Tensor] | None = None
        self.best_bounds = torch.zeros(0, dtype=torch.float64)

    @torch.no_grad()
    def bounds(self, model: DGM) -> Float64[Tensor, " m"] | None:
        """Of every validation row; None if there are none."""
        valid = self.data.valid
        if valid is None:
            return None
        if batch_norms(model):
            collect_statistics(model, self.data.train, seed=self.seed)
        noise = model.noise(VALIDATION_SAMPLES, len(valid), generator(self.seed, Purpose.EVALUATION))
        model.eval()
        found = importance(model(Batch.of(valid), noise).log_w).double()
        model.train()
        return found.nan_to_num(nan=-math.inf)

    def look(self, state: State) -> bool:
        """Score the present weights; whether it is time to stop."""
        bounds = self.bounds(state.result)
        if bounds is None:
            return False
        score = float(bounds.mean())
        if self.best is None or score > max(self.scores.values()):
            self.best, self.best_bounds = copy.deepcopy(state.result.state_dict()), bounds
        self.scores[state.epoch] = score
        return state.epoch - max(self.scores, key=lambda epoch: self.scores[epoch]) >= self.patience

    @property
    def note(self) -> str:
        return f"(held out: {max(self.scores.values()):.2f})" if self.scores else ""


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
        The settings of a recipe (`memgen recipes` explains them), "auto": by the numbers of rows and columns.

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
        x = self._encoded(X)
        found = log_likelihood(self.model_, x, int(self.n_samples), seed=self.seed_, batch_size=64, keys=row_keys(x))
        return found.log_p.numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """The mean of score_samples."""
        return float(self.score_samples(X).mean())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Shaped[NDArray[Any], "n D"]:
        """New rows, in the table's own values."""
        check_is_fitted(self)
        seed = self.seed_ if random_state is None else int(check_random_state(random_state).randint(2**31))
        return self._decoded(sample(self.model_, n_samples, seed=seed, draw=True))

    def transform(self, X: Any) -> Float64[NDArray[np.float64], "N d"]:
        """The mean of q(z|x): a code for each row."""
        return features(self.model_, self._encoded(X)).mean.numpy()

    def inverse_transform(self, X: Any) -> Shaped[NDArray[Any], "N D"]:
        """The mean of p(x|z) of codes z; of a binary or categorical column the likeliest level."""
        check_is_fitted(self)
        z = torch.from_numpy(check_array(X, dtype=np.float64))
        if z.shape[1] != self._n_features_out:
            raise MemgenError(f"X has {z.shape[1]} features, but codes have {self._n_features_out}")
        head = self.model_.likelihood
        with torch.no_grad():
            return self._decoded(head.decide(head.expected(self.model_.decode(z))))

    @property
    def _n_features_out(self) -> int:
        return self.model_.latent[0]


class MemImputer(OneToOneFeatureMixin, TransformerMixin, TableEstimator):  # type: ignore[misc]
    """Fills in missing values, like `IterativeImputer`: fitted to rows with holes, it completes them and unseen ones.

    Numbers become their conditional mean, counts the whole number next to it, categories the likeliest.

    Parameters
    ----------
    sample_posterior : bool
        Draw from p(missing | observed) instead.
    add_indicator : bool
        Append a column for every column that had holes in training: whether the value was missing.
    n_samples : int
        Importance samples of each row.

    All others are those of MemDensity.
    """

    __init__ = keywords(sample_posterior=False, add_indicator=False, n_samples=200)

    def fit(self, X: Any, y: Any = None) -> MemImputer:
        """Learn from the rows of X, a table or a DataFrame with holes: NaN, None or pandas.NA."""
        super().fit(X, y)
        self.indicator_ = None
        if self.add_indicator:
            self.indicator_ = MissingIndicator(error_on_new=False).fit(self._encoded(X).numpy())
        return self

    def transform(self, X: Any) -> Shaped[NDArray[Any], "N D"]:
        """X without holes. A row's answer depends on nothing but the row and random_state."""
        x = self._encoded(X)
        observed = ~x.isnan()
        completed = x
        holes = (~observed).any(1)
        if bool(holes.any()):
            completed = x.clone()
            completed[holes] = self._filled(x[holes], observed[holes])
        out = self._with_observed(X, self._decoded(completed), observed.numpy())
        if self.indicator_ is None:
            return out
        return np.hstack([out, self.indicator_.transform(x.numpy()).astype(out.dtype)])

    def get_feature_names_out(self, input_features: Any = None) -> Shaped[NDArray[Any], " D"]:
        """Names of the columns that `transform` returns."""
        names: NDArray[Any] = super().get_feature_names_out(input_features)
        if self.indicator_ is None:
            return names
        return np.concatenate([names, self.indicator_.get_feature_names_out(names)])

    def _filled(self, x: Float64[Tensor, "n D"], observed: Tensor) -> Float64[Tensor, "n D"]:
        draws = int(bool(self.sample_posterior))
        steps = max(2, int(self.n_samples))
        result = impute(self.model_, x, observed, steps=steps, draws=draws, seed=self.seed_, keys=row_keys(x))
        return result.draws[0] if draws else result.mean

    def _with_observed(self, X: Any, out: NDArray[Any], observed: NDArray[np.bool_]) -> NDArray[Any]:
        """What was there goes out bit by bit as it came in."""
        for i, values in enumerate(self._read(X)[0]):
            out[observed[:, i], i] = values[observed[:, i]]
        return out


def _is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def _plain(value: Any) -> Any:
    """NumPy's numbers and tuples as TOML and JSON have them."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [_plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


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
