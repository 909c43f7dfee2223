"""Recipes, models and trainings in words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tabulate import tabulate

from memgen.cli.reading import load
from memgen.core.layers import MemoryLayer
from memgen.core.model import DGM, count_parameters
from memgen.data import DATASETS
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs.run import WEIGHTS, Run, read_model
from memgen.training.prepare import with_likelihood

AUTO = "auto"
"""The name of the recipe that is made from the data."""
ABOUT_AUTO = "made from the data, sizes by its rows and columns: memgen train --data table.csv --out RUN"


def about_auto() -> str:
    return f"{AUTO}: {ABOUT_AUTO}"


def parts(model: DGM) -> dict[str, int]:
    """Number of parameters by part: the nets, and the memory of the layers of P."""
    layers = [module for module in model.p.modules() if isinstance(module, MemoryLayer)]
    memory = {
        "attention": sum(count_parameters(layer.attention) for layer in layers),
        "memory": sum(count_parameters(layer.memory) for layer in layers),
        "composition": sum(count_parameters(layer.composition) for layer in layers),
    }
    p = count_parameters(model.p) - sum(memory.values())
    return {"recognition net Q": count_parameters(model.q), "generative net P": p, **memory}


def parts_table(model: DGM) -> str:
    rows = [*parts(model).items(), ("parameters", count_parameters(model))]
    return tabulate(rows, tablefmt="plain", intfmt=",", colalign=("right", "right"))


def described(path: Path, run: Run | None) -> tuple[Recipe, DGM]:
    """The recipe of a run, a model file, a TOML file or by name, and the model that it makes."""
    if run is None and path.suffix == ".safetensors":
        saved = read_model(path)
        return saved.recipe, saved.model
    recipe = Recipe.read(str(path)) if run is None else run.recipe
    if recipe.data.name in DATASETS:
        return recipe, build(recipe)
    if run is not None and (run.folder / WEIGHTS).exists():
        return recipe, read_model(run.folder).model
    loaded = load(recipe.data, recipe.model.likelihood)
    recipe = with_likelihood(recipe, loaded.data.likelihood)
    return recipe, build(recipe, loaded.data.train.shape[1], loaded.form.kinds)


def describe(metrics: dict[str, Any]) -> str:
    """The last bounds of a training, in one sentence."""
    text = f"training bound {metrics['bound']:.2f} nats"
    if "train_bound" in metrics:
        text += f"; on fixed rows: train {metrics['train_bound']:.2f}"
    if "valid_bound" in metrics:
        text += f", valid {metrics['valid_bound']:.2f}"
    return text
