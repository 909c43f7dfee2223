"""`memgen show`, `memgen recipes`, `memgen data`, `memgen zoo`"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from memgen.cli.choosing import AUTO
from memgen.cli.common import say
from memgen.cli.reading import fetch, load
from memgen.cli.training import describe
from memgen.core.layers import MemoryLayer
from memgen.core.model import DGM, count_parameters
from memgen.data import DATASETS, source
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.listing import recipe_groups
from memgen.recipes.settings import Recipe
from memgen.runs import zoo as models
from memgen.runs.run import WEIGHTS, Run, read_model
from memgen.runs.zoo import resolve
from memgen.training.prepare import with_likelihood

ABOUT_AUTO = "made from the data, sizes by its rows and columns: memgen train --data table.csv --out RUN"


def parts(model: DGM) -> dict[str, int]:
    """Parameters by part: the nets, and what P's layers have for their memory."""
    layers = [module for module in model.p.modules() if isinstance(module, MemoryLayer)]
    memory = {
        "attention": sum(count_parameters(layer.attention) for layer in layers),
        "memory": sum(count_parameters(layer.memory) for layer in layers),
        "composition": sum(count_parameters(layer.composition) for layer in layers),
    }
    p = count_parameters(model.p) - sum(memory.values())
    return {"recognition net Q": count_parameters(model.q), "generative net P": p, **memory}


def show(options: argparse.Namespace) -> dict[str, Any]:
    folder = resolve(options.what)
    run = Run.open(folder) if folder.is_dir() else None
    if options.what == AUTO and run is None:
        say(options, f"{AUTO}: {ABOUT_AUTO}")
        return {"parameters": None, "parts": None, "recipe": None, "metrics": None}
    recipe, model = described(folder, run)
    metrics = [] if run is None else run.metrics()
    counts = parts(model)
    say(options, recipe.to_toml().rstrip())
    say(options)
    for name, count in counts.items():
        say(options, f"{name:>20}  {count:>9,}")
    say(options, f"{'parameters':>20}  {count_parameters(model):>9,}")
    if metrics:
        evaluated = {key: line[key] for line in metrics for key in ("train_bound", "valid_bound") if key in line}
        say(options, f"\nepoch {metrics[-1]['epoch']} of {recipe.epochs}: {describe(metrics[-1] | evaluated)}")
    elif run is not None:
        say(options, "\nnot one epoch finished yet")
    return {
        "parameters": count_parameters(model),
        "parts": counts,
        "recipe": recipe.to_dict(),
        "metrics": metrics[-1] if metrics else None,
    }


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


def recipes(options: argparse.Namespace) -> dict[str, Any]:
    groups = recipe_groups()
    width = max(len(name) for group in groups for name in group.entries)
    for group in groups:
        say(options, f"{group.title}:")
        for name, about in group.entries.items():
            say(options, f"  {name:<{width}}  {about}")
    say(options, f"  {AUTO:<{width}}  {ABOUT_AUTO}")
    *recipes, schedules = groups
    return {
        "recipes": [{"name": name, "about": about} for group in recipes for name, about in group.entries.items()],
        "schedules": [{"name": name, "about": about} for name, about in schedules.entries.items()],
    }


def data_list(options: argparse.Namespace) -> dict[str, Any]:
    rows = []
    for name, home in DATASETS.items():
        found = home.find() if home.files else None
        where = str(found) if found else f"not here yet: memgen data fetch {name}"
        where = where if home.files else "comes with scikit-learn"
        rows.append({"name": name, "about": home.about, "where": where, "available": not home.files or bool(found)})
    for row in rows:
        say(options, f"{row['name']:<12} {row['about']}\n{'':<12} {row['where']}")
    return {"datasets": rows}


def data_fetch(options: argparse.Namespace) -> dict[str, Any]:
    folder = fetch(options.name, source(options.name), options.origin)
    say(options, f"{options.name} is in {folder}, its content checked")
    return {"name": options.name, "folder": str(folder)}


def data_check(options: argparse.Namespace) -> dict[str, Any]:
    home = source(options.name)
    if home.files and home.find() is None:
        raise MemgenError(f"{options.name} is not on this machine; bring it with: memgen data fetch {options.name}")
    data = home.load()
    counts = {split: len(data.rows(split)) for split in ("train", "valid", "test")}
    sizes = ", ".join(f"{count:,} {split}" for split, count in counts.items())
    say(
        options,
        f"{options.name}: {sizes} rows of {data.train.shape[1]} columns, scale {data.scale}, {data.binarisation}; good",
    )
    return {"name": options.name, **counts, "columns": data.train.shape[1], "scale": data.scale, "good": True}


def zoo(options: argparse.Namespace) -> dict[str, Any]:
    """The models that come with the package, and their numbers."""
    rows = []
    for name in models.names():
        told = models.result(name)
        rows.append(told | {"name": name})
        ours = f"{told['log_likelihood']:.2f} ± {told['standard_error']:.2f}"
        epochs = told["epochs"] + sum(leg["epochs"] for leg in told["before"])
        how = f"K = {told['samples']:,}, {told['examples']:,} test examples of {told['data']}, {told['scale']}"
        say(options, f"{models.PREFIX + name:<24} {told['model']}, {told['table']}")
        say(options, f"{'':<24} log p(x) {ours} nats, {how}")
        say(options, f"{'':<24} {told['parameters']:,} parameters, {told['recipe']}, {epochs:,} epochs")
    if not rows:
        say(options, "the zoo is empty")
    return {"models": rows}
