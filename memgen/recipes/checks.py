"""What is wrong with a recipe: every problem is reported at once, one line each."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from pydantic import AfterValidator, ValidationError

from memgen.core.objective import CHOOSING
from memgen.core.specification import LAYERS
from memgen.data import DATASETS
from memgen.data.own import is_path
from memgen.data.words import parse_kinds, parse_size
from memgen.errors import MemgenError, unknown

if TYPE_CHECKING:
    from memgen.recipes.settings import Data, Model, Recipe, Stage

WORDS = {
    "string_type": "must be a text",
    "bool_type": "must be true or false",
    "int_type": "must be a whole number",
    "float_type": "must be a number",
    "finite_number": "must be a number",
    "greater_than_equal": "must be at least {ge:g}",
    "greater_than": "must be above {gt:g}",
    "less_than_equal": "must be at most {le:,}",
    "less_than": "must be below {lt:g}",
    "tuple_type": "must be a list of whole numbers",
    "model_attributes_type": "must be a table",
}
"""Type of a pydantic error -> what the setting must be."""
MISSING = {"missing": "is missing", "union_tag_not_found": f"needs a kind: {', '.join(LAYERS)}"}

Section = TypeVar("Section")


class ExpectedError(ValueError):
    """What a setting must be; the message goes on with its value."""


def choice(*choices: str) -> AfterValidator:
    """A text that is one of these."""

    def check(value: str) -> str:
        if value not in choices:
            raise unknown("choice", value, choices)
        return value

    return AfterValidator(check)


def list_of(what: str, single: type | None = None) -> Callable[[Any], Any]:
    """A list as a tuple; with `single` one value of that type stands for a list of one."""

    def convert(value: Any) -> Any:
        if single is not None and isinstance(value, single) and not isinstance(value, bool):
            return (value,)
        if not isinstance(value, list | tuple):
            raise ExpectedError(f"must be {what}")
        return tuple(value)

    return convert


def list_of_lists(what: str, none: tuple[tuple[Any, ...], ...]) -> Callable[[Any], Any]:
    """[a, b] is one level, [[a, b], [c]] are two; `none` is what [] stands for."""

    def convert(value: Any) -> Any:
        if isinstance(value, tuple):
            return value
        if value == []:
            return none
        levels = value if isinstance(value, list) and value and all(isinstance(v, list) for v in value) else [value]
        if not all(isinstance(level, list) and not any(isinstance(v, list) for v in level) for level in levels):
            raise ExpectedError(f"must be {what}, or a list of such lists with one per level")
        return tuple(map(tuple, levels))

    return convert


def made(kind: type[Section], table: dict[str, Any], where: str, problems: list[str]) -> Section:
    """A section from its table. What is wrong is added to `problems`, and the defaults stand in its place, so that the
    settings that must agree with others can be checked too."""
    try:
        return kind(**table)
    except ValidationError as error:
        wrong = {str(detail["loc"][0]): None for detail in error.errors()}
        problems += [f"{where}{line}" for line in _lines(kind, error)]
        return kind(**{key: value for key, value in table.items() if key not in wrong})


def _lines(kind: type, error: ValidationError) -> Iterator[str]:
    """One line per problem. The place of a problem in a layer is model.decoder.NUMBER.KIND.SETTING, counted from 1."""
    for detail in error.errors(include_url=False):
        setting, *inside = detail["loc"]
        place = [str(setting), *(str(part + 1) if isinstance(part, int) else part for part in inside)]
        if setting not in ("encoder", "decoder"):
            place = place[:1]
        yield _line(LAYERS[place[2]] if len(place) > 2 else kind, place, dict(detail))


def _line(kind: type, place: list[str], detail: dict[str, Any]) -> str:
    key, value, context = ".".join(place), detail["input"], detail.get("ctx", {})
    cause = context.get("error")
    if detail["type"] == "unexpected_keyword_argument":
        names = [entry.name for entry in fields(kind)]
        return f"{'.'.join(['', *place[:-1]])}: {unknown('key', place[-1], names)}"
    if detail["type"] == "union_tag_invalid":
        return f".{key}: {unknown('kind of layer', context['tag'], LAYERS)}"
    if detail["type"] in MISSING:
        return f".{key} {MISSING[detail['type']]}"
    if isinstance(cause, MemgenError):
        return f".{key}: {cause}"
    requirement = str(cause) if cause is not None else WORDS[detail["type"]].format(**context)
    return f".{key} {requirement}, not {_short(value)}"


def _short(value: Any) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a whole number of more than 4,300 digits
        return "a value that long"
    return text if len(text) <= 200 else text[:200] + " ..."


def contradictions(recipe: Recipe) -> list[str]:
    """Conflicts between settings: lengths that must agree, estimators that do not fit the bound."""
    problems = [*_of_data(recipe.data), *_of_model(recipe.model)]
    names = [stage.name for stage in recipe.stages]
    if not names or len(set(names)) < len(names):
        problems.append(f"every stage needs a name of its own, and these are {', '.join(names) or 'none'}")
    for stage in recipe.stages:
        place = "" if len(recipe.stages) == 1 else f"stage {stage.name}: "
        problems += [place + line for line in _of_stage(stage, recipe)]
    return problems


def _of_data(data: Data) -> Iterator[str]:
    if data.name not in DATASETS and not is_path(data.name):
        yield f"data.name: {unknown('data set', data.name, DATASETS)}; or the path of your own data"
    try:
        parse_size(data.size)
        parse_kinds(data.kinds)
    except MemgenError as error:
        yield f"data: {error}"
    if data.name in DATASETS and (data.size or data.kinds or data.levels or data.ignore or data.test):
        own = "data.size, levels, kinds, ignore and test are"
        yield f"{own} for your own data, and {data.name} is a data set that has its own"
    if both := sorted({*parse_kinds(data.kinds)} & {*data.ignore}):
        yield f"data: the column {both[0]!r} has a kind, and is ignored"


def _of_model(model: Model) -> Iterator[str]:
    if len(model.hidden) != len(model.latent):
        yield f"model.hidden has {len(model.hidden)} level(s) and model.latent {len(model.latent)}; they must agree"
    yield from _per_layer("model.slots", model.slots, model)
    slots = [n for level in model.slots for n in level] + [getattr(layer, "slots", 0) for layer in model.decoder]
    if model.attention == "product" and any(math.isqrt(n) ** 2 != n for n in slots):
        yield f"model.attention product needs square numbers of slots, not {slots}"
    if model.start == "linear" and not (model.skip and (all(model.hidden) or (model.encoder and model.decoder))):
        yield "model.start linear needs model.skip=true and a layer around which to skip"
    if model.encoder or model.decoder:
        yield from _of_layers(model)


def _of_layers(model: Model) -> Iterator[str]:
    if any(model.hidden) or any(model.slots) or len(model.latent) > 1:
        yield (
            "model.encoder and model.decoder describe one level in place of model.hidden and model.slots: set these "
            "to [], and model.latent to one number"
        )
    if any(getattr(layer, "slots", 0) for layer in model.encoder):
        yield "model.encoder: only layers of P have a memory; set slots in model.decoder"


def _per_layer(name: str, value: Sequence[Sequence[Any]], model: Model) -> Iterator[str]:
    expected, actual = [len(level) for level in model.hidden], [len(level) for level in value]
    if any(value) and actual != expected:
        yield (
            f"{name} must have one entry per layer of model.hidden, from the data upwards: {expected} per level, not "
            f"{actual}"
        )


def _of_stage(stage: Stage, recipe: Recipe) -> Iterator[str]:
    objective, training = stage.objective, stage.training
    yield from _per_layer("objective.local_reconstruction", objective.local_reconstruction, recipe.model)
    if objective.estimator in ("dreg", *CHOOSING) and objective.bound != "importance":
        yield f"objective.estimator {objective.estimator} is for the importance bound; use stl for the elbo"
    if training.keep == "best" and (recipe.data.train_on != "train" or not training.evaluate_every):
        yield "training.keep best needs validation rows: data.train_on=train and training.evaluate_every above 0"
    if training.optimizer == "adam" and training.weight_decay:
        yield "training.weight_decay is for the optimizer adamw"


def warn_of_bias(recipe: Recipe) -> None:
    """Warn where an estimator is known to be biased."""
    for stage in recipe.stages:
        objective = stage.objective
        if objective.estimator == "stl" and objective.bound == "importance" and objective.samples > 1:
            warnings.warn("stl is biased for the importance bound with more than one sample; dreg is not", stacklevel=3)
