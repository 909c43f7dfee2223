"""Recipe: every setting of a model and its training, validated at the door, TOML in and out.

This is the only place where names become objects: `build` turns a recipe into a model, and the tables ATTENTIONS,
SPARSE_ATTENTIONS, COMPOSITIONS, NORMS, LIKELIHOODS, BOUNDS, ESTIMATORS and DATASETS say which names exist.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import resources
from pathlib import Path
from typing import Any, TypeVar

import tomli_w

from memgen.core.layers import NORMS
from memgen.core.likelihoods import LIKELIHOODS
from memgen.core.memory import ATTENTIONS, COMPOSITIONS, SPARSE_ATTENTIONS
from memgen.core.objective import BOUNDS, CHOOSING, ESTIMATORS
from memgen.data import DATASETS
from memgen.data.own import HEADERS, is_path
from memgen.data.words import parse_kinds, parse_size
from memgen.errors import MemgenError, unknown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

Sizes = tuple[tuple[int, ...], ...]
"""One whole number per deterministic layer and level, from the data upwards."""
Weights = tuple[tuple[float, ...], ...]


def setting(default: Any, about: str, **limits: Any) -> Any:
    """A field of a recipe: default, one line of help, and limits (choices=, at_least=, above=, at_most=, below=)."""
    return field(default=default, metadata={"about": about, **limits})


@dataclass(frozen=True)
class Data:
    """[data]"""

    name: str = setting("digits", "the data set, or the path of your own data")
    train_on: str = setting(
        "train", "the rows to train on; with train+valid nothing is held out", choices=("train", "train+valid")
    )
    size: str = setting("", "own images: made to have this size, as in 28x28; empty: as they are")
    kinds: tuple[str, ...] = setting((), "own tables: kinds of columns that are given, as in age=count")
    header: str = setting("auto", "own tables: whether the first line has names", choices=HEADERS)


@dataclass(frozen=True)
class Model:
    """[model]; lists go from the data upwards, with one list per level where there are several levels."""

    hidden: Sizes = setting(((200, 200),), "units of the deterministic layers", at_least=1)
    latent: tuple[int, ...] = setting((50,), "size of z at each level", at_least=1)
    slots: Sizes = setting((), "slots of each layer's memory, 0 for none; [] for a model without memory", at_least=0)
    attention: str = setting("sigmoid", "how a layer prefers slots", choices=(*ATTENTIONS, *SPARSE_ATTENTIONS))
    top: int = setting(32, "attention top and product: how many slots an input reads", at_least=1)
    composition: str = setting("mlp", "how memory and layer are put together", choices=COMPOSITIONS)
    norm: str = setting("batch", "normalisation of the deterministic layers", choices=NORMS)
    norm_epsilon: float = setting(
        1e-5, "added to a variance before its root is taken: by the norm and the local reconstruction", above=0
    )
    likelihood: str = setting("auto", "p(x|z); auto: what the data set asks for", choices=("auto", *LIKELIHOODS))
    sigma_floor: float = setting(
        0.0,
        "least sigma of a gaussian likelihood; mixed: in units of each column's deviation, 0 stands for 0.01",
        at_least=0,
    )
    categories: int = setting(2, "number of categories of a categorical likelihood", at_least=2)
    mask: bool = setting(False, "tell Q which entries are observed, to train on incomplete rows")
    skip: bool = setting(False, "a linear path around the layers of P and Q")
    start: str = setting(
        "random",
        "random: the paper's values; mean: these, and the output's bias at the mean of the rows; linear: probabilistic "
        "PCA of the rows, with skip",
        choices=("random", "mean", "linear"),
    )


@dataclass(frozen=True)
class Objective:
    """[objective]"""

    samples: int = setting(1, "K, samples of z per row", at_least=1)
    bound: str = setting("importance", "what is maximised; the two are equal at samples = 1", choices=BOUNDS)
    estimator: str = setting("plain", "the gradient estimator", choices=ESTIMATORS)
    local_reconstruction: Weights = setting((), "lambda of each layer; [] for none", at_least=0)
    kl_warmup_epochs: float = setting(0.0, "epochs in which the weight of the KL term rises from 0 to 1", at_least=0)


@dataclass(frozen=True)
class Training:
    """[training]"""

    epochs: int = setting(100, "passes over the training rows", at_least=1)
    start_from: str = setting("", "the recipe from whose trained weights this one goes on: memgen train --start RUN")
    batch_size: int = setting(100, "rows per step", at_least=1)
    drop_incomplete: bool = setting(False, "leave out the rows that do not fill a last batch")
    seed: int = setting(0, "of starting values, order, noise and binarisation", at_least=0)
    optimizer: str = setting(
        "adamw",
        "adam: the paper's, with epsilon beside the uncorrected root; adamw: torch's",
        choices=("adam", "adamw"),
    )
    rate: float = setting(1e-3, "learning rate at the start", above=0)
    beta1: float = setting(0.9, "decay of the first moment", at_least=0, below=1)
    beta2: float = setting(0.999, "decay of the second moment", at_least=0, below=1)
    epsilon: float = setting(1e-8, "of the optimizer", above=0)
    weight_decay: float = setting(0.0, "adamw only", at_least=0)
    schedule: str = setting("cosine", "of the learning rate", choices=("constant", "step", "cosine"))
    warmup_steps: int = setting(0, "steps in which the rate rises linearly from 0", at_least=0)
    final_rate: float = setting(0.01, "cosine: the last rate, as a fraction of the first", at_least=0, at_most=1)
    decay: float = setting(1.0, "step: factor of the rate ...", above=0, at_most=1)
    decay_every: int = setting(1, "step: ... applied every so many epochs ...", at_least=1)
    decay_after: int = setting(0, "step: ... after this epoch", at_least=0)
    clip_norm: float = setting(5.0, "gradients are scaled to at most this global norm; 0 for never", at_least=0)
    clip_value: float = setting(0.0, "then each entry is cut to this size; 0 for never", at_least=0)
    ema: float = setting(
        0.0, "decay of the weights' moving average; 0: the raw weights are the result", at_least=0, below=1
    )
    keep: str = setting(
        "last",
        "which weights are the result: the last, or of the epochs that were evaluated the best on validation rows",
        choices=("last", "best"),
    )
    evaluate_every: int = setting(10, "epochs between bounds on training and validation rows; 0 for never", at_least=0)
    evaluate_rows: int = setting(1000, "rows of each that are scored then", at_least=1)
    evaluate_samples: int = setting(50, "K of these bounds", at_least=1)


@dataclass(frozen=True)
class Recipe:
    """Every setting. `Recipe()` holds the defaults. Types are checked when a recipe is read, limits when it is made.

    >>> recipe = Recipe.named("digits-mem-vae")
    >>> recipe.model.slots
    ((30, 15),)
    >>> recipe.override(["training.epochs=3"]).training.epochs
    3
    """

    about: str = ""
    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    objective: Objective = field(default_factory=Objective)
    training: Training = field(default_factory=Training)

    def __post_init__(self) -> None:
        for section in SECTIONS:
            _check_limits(section, getattr(self, section))
        _check_together(self)

    @staticmethod
    def from_dict(table: dict[str, Any], where: str = "recipe") -> Recipe:
        """A recipe from nested dictionaries; an unknown key or a wrong type is an error that names the choices."""
        sections: dict[str, Any] = {}
        for key, value in table.items():
            if key == "about":
                sections[key] = _convert(value, "str", f"{where}: about")
            elif key not in SECTIONS:
                raise MemgenError(f"{where}: {unknown('key', key, ('about', *SECTIONS))}")
            elif not isinstance(value, dict):
                raise MemgenError(f"{where}: {key} must be a table, [{key}]")
            else:
                sections[key] = _section(SECTIONS[key], value, f"{where}: {key}")
        try:
            return Recipe(**sections)
        except MemgenError as error:
            raise MemgenError(f"{where}: {error}") from None

    @staticmethod
    def from_toml(text: str, where: str = "recipe") -> Recipe:
        try:
            table = tomllib.loads(text)
        except (ValueError, RecursionError) as error:  # not TOML, or a number of more digits than Python reads
            raise MemgenError(f"{where}: not valid TOML: {error}") from None
        return Recipe.from_dict(table, where)

    @staticmethod
    def named(name: str) -> Recipe:
        """A shipped recipe."""
        if name not in recipe_names():
            raise unknown("recipe", name, recipe_names())
        return Recipe.from_toml((_shipped() / f"{name}.toml").read_text("utf-8"), name)

    @staticmethod
    def read(name_or_file: str) -> Recipe:
        """A shipped recipe by its name, or a TOML file by its path."""
        path = Path(name_or_file)
        if path.suffix != ".toml" and not path.is_file():
            return Recipe.named(name_or_file)
        try:
            return Recipe.from_toml(path.read_text("utf-8"), str(path))
        except (OSError, UnicodeDecodeError) as error:
            reason = error.strerror if isinstance(error, OSError) else "not UTF-8 text"
            raise MemgenError(f"cannot read the recipe {path}: {reason}") from None

    def to_dict(self) -> dict[str, Any]:
        """Nested dictionaries as they stand in a TOML file: a single level needs no list of levels."""
        table: dict[str, Any] = asdict(self)
        for section, key in NESTED:
            levels = table[section][key]
            table[section][key] = list(levels[0]) if len(levels) == 1 else [list(level) for level in levels]
        table["data"]["kinds"] = list(table["data"]["kinds"])
        latent = table["model"]["latent"]
        table["model"]["latent"] = latent[0] if len(latent) == 1 else list(latent)
        return table

    def to_toml(self) -> str:
        return tomli_w.dumps(self.to_dict())

    def override(self, settings: str | Iterable[str]) -> Recipe:
        """The recipe with some settings changed, given as one or several "section.key=value", values as in TOML."""
        table = self.to_dict()
        settings = [settings] if isinstance(settings, str) else list(settings)
        for text in settings:
            key, equals, value = text.partition("=")
            section, _, name = key.strip().partition(".")
            if not equals or not name:
                raise MemgenError(f"--set {text}: write it as section.key=value, for example training.epochs=10")
            if section not in SECTIONS:
                raise MemgenError(f"--set {text}: {unknown('section', section, SECTIONS)}")
            table[section][name] = _parse_value(value.strip())
        return Recipe.from_dict(table, "--set " + " ".join(settings) if settings else "recipe")

    def differences(self, other: Recipe) -> list[str]:
        """The settings in which two recipes differ, as "section.key was mine, is theirs"; `about` does not count."""
        mine, theirs = self.to_dict(), other.to_dict()
        return [
            f"{section}.{key} was {value!r}, is {theirs[section][key]!r}"
            for section in SECTIONS
            for key, value in mine[section].items()
            if value != theirs[section][key]
        ]


SECTIONS: dict[str, type] = {"data": Data, "model": Model, "objective": Objective, "training": Training}
NESTED = (("model", "hidden"), ("model", "slots"), ("objective", "local_reconstruction"))
"""Settings with one value per layer."""


def recipe_names() -> list[str]:
    """The shipped recipes."""
    return sorted(entry.name.removesuffix(".toml") for entry in _shipped().iterdir() if entry.name.endswith(".toml"))


def _shipped() -> Any:
    return resources.files("memgen.recipes")


def _parse_value(text: str) -> Any:
    """A TOML value; a bare word is a string, because nobody quotes on a command line."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (ValueError, RecursionError):  # not TOML, or too long or too deep for its parser
        return text


Section = TypeVar("Section")


def _section(kind: type[Section], table: dict[str, Any], where: str) -> Section:
    kinds = {entry.name: str(entry.type) for entry in fields(kind)}  # type: ignore[arg-type]
    for key in table:
        if key not in kinds:
            raise MemgenError(f"{where}: {unknown('key', key, kinds)}")
    return kind(**{key: _convert(value, kinds[key], f"{where}.{key}") for key, value in table.items()})


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return (_whole(value) or isinstance(value, float)) and abs(value) <= sys.float_info.max


def _levels(value: Any, item: Callable[[Any], bool]) -> tuple[tuple[Any, ...], ...] | None:
    """[a, b] is one level, [[a, b], [c]] are two, [] is one without layers; None if it is neither."""
    if not isinstance(value, list):
        return None
    levels = value if value and all(isinstance(level, list) for level in value) else [value]
    if not all(item(entry) for level in levels for entry in level):
        return None
    return tuple(tuple(level) for level in levels)


def _convert(value: Any, kind: str, where: str) -> Any:
    """A TOML value as the type of its field, or an error that says what is expected."""
    if kind == "str" and isinstance(value, str):
        return value
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "int" and _whole(value):
        return value
    if kind == "float" and _number(value):
        return float(value)
    if kind == "tuple[str, ...]" and isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return tuple(value)
    if kind == "tuple[int, ...]" and (_whole(value) or (isinstance(value, list) and all(map(_whole, value)))):
        return (value,) if _whole(value) else tuple(value)
    if kind == "Sizes" and (levels := _levels(value, _whole)) is not None:
        return levels
    if kind == "Weights" and (levels := _levels(value, _number)) is not None:
        return tuple(tuple(map(float, level)) for level in levels)
    expected = {
        "str": "a text",
        "bool": "true or false",
        "int": "a whole number",
        "float": "a number",
        "tuple[str, ...]": "a list of texts",
        "tuple[int, ...]": "a whole number, or a list of them with one per level",
        "Sizes": "a list of whole numbers, or a list of such lists with one per level",
        "Weights": "a list of numbers, or a list of such lists with one per level",
    }[kind]
    raise MemgenError(f"{where} must be {expected}, not {value!r}")


LIMITS: dict[str, tuple[Callable[[Any, Any], bool], str]] = {
    "at_least": (lambda value, limit: value >= limit, "at least"),
    "above": (lambda value, limit: value > limit, "above"),
    "at_most": (lambda value, limit: value <= limit, "at most"),
    "below": (lambda value, limit: value < limit, "below"),
}


def _flat(value: Any) -> list[Any]:
    return [entry for part in value for entry in _flat(part)] if isinstance(value, tuple) else [value]


def _check_limits(name: str, section: Any) -> None:
    for entry in fields(section):
        value = getattr(section, entry.name)
        choices = entry.metadata.get("choices")
        if choices is not None and value not in choices:
            raise MemgenError(f"{name}.{entry.name}: {unknown('choice', value, choices)}")
        for limit, (holds, words) in LIMITS.items():
            if limit in entry.metadata and not all(holds(v, entry.metadata[limit]) for v in _flat(value)):
                raise MemgenError(f"{name}.{entry.name} must be {words} {entry.metadata[limit]}, not {value!r}")


def _shape(levels: Sequence[Sequence[Any]]) -> list[int]:
    return [len(level) for level in levels]


def _check_data(data: Data) -> None:
    if data.name not in DATASETS and not is_path(data.name):
        raise MemgenError(f"data.name: {unknown('data set', data.name, DATASETS)}; or the path of your own data")
    try:
        parse_size(data.size)
        parse_kinds(data.kinds)
    except MemgenError as error:
        raise MemgenError(f"data: {error}") from None
    if data.name in DATASETS and (data.size or data.kinds):
        raise MemgenError(
            f"data.size and data.kinds are for your own data, and {data.name} is a data set that has its own"
        )


def _check_together(recipe: Recipe) -> None:
    """What no single setting shows: lengths that must agree, estimators that do not fit the bound."""
    _check_data(recipe.data)
    model, objective, training = recipe.model, recipe.objective, recipe.training
    if len(model.hidden) != len(model.latent):
        raise MemgenError(
            f"model.hidden has {len(model.hidden)} level(s) and model.latent {len(model.latent)}; they must agree"
        )
    for name, value in (
        ("model.slots", model.slots),
        ("objective.local_reconstruction", objective.local_reconstruction),
    ):
        if any(value) and _shape(value) != _shape(model.hidden):
            raise MemgenError(
                f"{name} must have one entry per layer of model.hidden, from the data upwards: "
                f"{_shape(model.hidden)} per level, not {_shape(value)}"
            )
    if objective.estimator in ("dreg", *CHOOSING) and objective.bound != "importance":
        raise MemgenError(
            f"objective.estimator {objective.estimator} is for the importance bound; use stl for the elbo"
        )
    if model.attention == "product" and any(math.isqrt(n) ** 2 != n for n in _flat(model.slots)):
        raise MemgenError(f"model.attention product needs square numbers of model.slots, not {_flat(model.slots)}")
    if model.start == "linear" and not (model.skip and all(model.hidden)):
        raise MemgenError("model.start linear needs model.skip=true and a layer around which to skip")
    if training.keep == "best" and (recipe.data.train_on != "train" or not training.evaluate_every):
        raise MemgenError(
            "training.keep best needs validation rows: data.train_on=train and training.evaluate_every above 0"
        )
    if training.optimizer == "adam" and training.weight_decay:
        raise MemgenError("training.weight_decay is for the optimizer adamw")
