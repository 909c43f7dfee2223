"""Model files: safetensors with the weights, and the metadata from which the model is built."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

import memgen
from memgen.core.model import DGM
from memgen.data.documents import parse_whole
from memgen.data.form import Form, Origin
from memgen.errors import MemgenError
from memgen.recipes.build import build, form_of
from memgen.recipes.settings import Recipe
from memgen.runs.storage import CHECKSUM, load_tensors, save_tensors

NEEDED = {"recipe", "columns", "epoch", "stage", "stages", "weights", "form"}
"""Required entries of the metadata."""


class Reached(NamedTuple):
    """The progress of a training."""

    epoch: int
    """Epochs of the weights, counted through all stages."""
    stage: str
    """The name of the last stage that was begun."""
    stages: int
    """The number of finished stages."""

    @staticmethod
    def end(recipe: Recipe) -> Reached:
        return Reached(recipe.epochs, recipe.stages[-1].name, len(recipe.stages))


@dataclass(frozen=True)
class Saved:
    """A model file."""

    model: DGM
    recipe: Recipe
    reached: Reached
    weights: str
    """Which weights it holds: "raw" or "averaged"."""
    sha256: str
    """The checksum of tensors and metadata."""
    form: Form
    """The form of the training rows."""
    origin: Origin | None = None
    """The user's own data, if the run folder has a data.json."""
    trained_on: str = ""
    """The fingerprint of the user's own data; "" for data sets."""

    @property
    def epoch(self) -> int:
        """Of the weights, counted through all stages."""
        return self.reached.epoch


def save(
    model: DGM,
    path: str | Path,
    recipe: Recipe,
    *,
    reached: Reached | None = None,
    form: Form | None = None,
    trained_on: str = "",
) -> None:
    """Write a model with its recipe as one safetensors file; `reached`: how far it was trained, if not to the end;
    `form`: of its rows, if they are not those of a data set (`Form.of(data)`); `trained_on`: the fingerprint of their
    file.

    >>> import tempfile
    >>> recipe = Recipe().override(["model.hidden=[8]", "model.latent=2"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(build(recipe), Path(folder) / "model.safetensors", recipe)
    ...     read_file(Path(folder) / "model.safetensors").model.latent
    (2,)
    """
    if form is None:
        form = form_of(recipe)
        form = form if math.prod(form.shape) == model.likelihood.columns else Form()  # rows of the user's own
    reached = Reached.end(recipe) if reached is None else reached
    check_shapes(recipe, model.likelihood.columns, form, model.state_dict(), "the model")
    about = {
        "memgen": memgen.__version__,
        "recipe": recipe.to_toml(),
        "columns": str(model.likelihood.columns),
        "epoch": str(reached.epoch),
        "stage": reached.stage,
        "stages": str(reached.stages),
        "weights": kind_of_weights(recipe, reached.stage),
        "form": form.to_json(),
        **({"trained_on": trained_on} if trained_on else {}),
    }
    save_tensors(Path(path), model.state_dict(), about)


def kind_of_weights(recipe: Recipe, stage: str) -> str:
    """Which weights a stage results in."""
    ema = next(entry.training.ema for entry in recipe.stages if entry.name == stage)
    return "averaged" if ema else "raw"


def read_file(file: Path, device: str = "cpu") -> Saved:
    """A model and the metadata of its file."""
    tensors, about = load_tensors(file)
    if not about.keys() >= NEEDED:
        raise MemgenError(f"{file} is not a memgen model: it has no recipe inside")
    recipe = Recipe.from_toml(about["recipe"], f"{file} (recipe inside)")
    form = Form.from_json(about["form"], f"{file} (form inside)")
    columns = parse_whole(about["columns"], f"{file} (columns inside)", 1)
    check_columns(form, columns, file)
    check_shapes(recipe, columns, form, tensors, file)
    model = build(recipe, columns, form.kinds).eval()
    model.load_state_dict(tensors)
    epoch, stages = (parse_whole(about[key], f"{file} ({key} inside)") for key in ("epoch", "stages"))
    reached = Reached(epoch, about["stage"], stages)
    check_reached(reached, about["weights"], recipe, file)
    sha256, trained_on = about[CHECKSUM], about.get("trained_on", "")
    return Saved(model.to(device), recipe, reached, about["weights"], sha256, form, trained_on=trained_on)


def check_reached(reached: Reached, weights: str, recipe: Recipe, what: object) -> None:
    """The progress in a file must be one that its recipe allows."""
    possible = {
        "epoch": reached.epoch <= recipe.epochs,
        "stage": reached.stage in {stage.name for stage in recipe.stages},
        "stages": reached.stages <= len(recipe.stages),
        "weights": weights in ("raw", "averaged"),
    }
    for key in (key for key, holds in possible.items() if not holds):
        raise MemgenError(f"{what} is damaged: its entry {key} does not fit the recipe inside")


def check_columns(form: Form, columns: int, what: object) -> None:
    """The form in a file and the number of columns must agree."""
    expected = len(form.columns) if form.columns is not None else math.prod(form.shape) if form.shape else columns
    if expected != columns:
        raise MemgenError(f"{what} is damaged: its form has {expected:,} columns, its model {columns:,}")


def check_shapes(recipe: Recipe, columns: int, form: Form, tensors: Mapping[str, Tensor], what: object) -> None:
    """Refuse tensors that do not fit the model of a recipe, before memory is allocated for that model."""
    with torch.device("meta"):
        expected = build(recipe, columns, form.kinds).state_dict()
    for name in sorted(expected.keys() ^ tensors.keys()):
        state = "lacks" if name in expected else "has an unknown"
        raise MemgenError(f"{what} does not fit its recipe: it {state} tensor {name}")
    for name, value in expected.items():
        if value.shape != tensors[name].shape:
            actual, needed = tuple(tensors[name].shape), tuple(value.shape)
            raise MemgenError(f"{what} does not fit its recipe: {name} has shape {actual}, not {needed}")


def warm_start(model: DGM, start: Saved, recipe: Recipe) -> int:
    """Load the weights of another model of the same form. Returns how many stages of the recipe these weights have
    completed: those are not trained again."""
    columns, tensors = start.model.likelihood.columns, start.model.state_dict()
    check_shapes(recipe, columns, start.form, tensors, "the model to start from")
    if changed := [text for text in start.recipe.differences(recipe) if _function(text)]:
        raise MemgenError(f"the model to start from is another ({'; '.join(changed)})")
    model.load_state_dict(tensors)
    return stages_before(start, recipe)


def stages_before(start: Saved, recipe: Recipe) -> int:
    """How many of the first stages of a recipe these weights have completed."""
    n, theirs = start.reached.stages, start.recipe
    alike = (theirs.data, theirs.model, theirs.stages[:n]) == (recipe.data, recipe.model, recipe.stages[:n])
    ended = 0 < n <= len(theirs.stages) and theirs.stages[n - 1].name == start.reached.stage
    return n if alike and ended and n < len(recipe.stages) else 0


def _function(difference: str) -> bool:
    """Whether a different setting changes the function that the same tensors compute."""
    return difference.startswith("model.") and not difference.startswith("model.start ")
