"""Which recipe, on which data: what `memgen train` is asked for, put together."""

from __future__ import annotations

import argparse
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from memgen.cli.common import say
from memgen.cli.reading import Loaded, load, locate
from memgen.data import DATASETS
from memgen.data.own import as_path, is_path
from memgen.errors import MemgenError
from memgen.recipes.auto import auto_recipe
from memgen.recipes.settings import Data, Recipe, recipe_names
from memgen.runs.run import CHECKPOINT, RECIPE, Run, read_model
from memgen.runs.session import Start
from memgen.training.prepare import with_likelihood

AUTO = "auto"
"""The recipe that is made from the data."""


class Choice(NamedTuple):
    recipe: Recipe
    loaded: Loaded
    run: Run | None
    """The run to go on with; None for a new one."""


def choose(options: argparse.Namespace) -> Choice:
    """The recipe to train with its data, and the run that holds it already."""
    run = run_to_resume(options)
    base = base_recipe(options, run)
    settings = data_settings(options, base)
    if run is not None and options.data is None:
        settings = replace(settings, name=locate(settings.name, run.origin))
    loaded = load(settings, wanted_likelihood(options, base, run))
    if run is not None:
        refuse_changed_data(run, loaded)
    recipe = complete(options, base, settings, loaded, run)
    if run is not None:
        recipe = same_recipe(run, recipe)
    return Choice(recipe, loaded, run)


def run_to_resume(options: argparse.Namespace) -> Run | None:
    if options.resume and (options.out / RECIPE).is_file():
        return Run.open(options.out)
    if options.recipe is None and options.data is None:
        if options.resume:
            return Run.open(options.out)  # which says what is wrong with it
        raise MemgenError(
            f"which recipe? Choices: {', '.join(recipe_names())}; or a TOML file; or your own data: --data PATH"
        )
    if options.recipe == AUTO and options.data is None:
        raise MemgenError("the recipe auto is made from the data: say which, --data NAME_OR_PATH")
    Run.refuse_taken(options.out)
    if options.resume:
        say(options, f"nothing to resume in {options.out}: starting anew")
    return None


def base_recipe(options: argparse.Namespace, run: Run | None) -> Recipe | None:
    """The recipe by name or file, or that of the run; None: it is to be made from the data."""
    if options.schedule is not None and options.recipe in (None, AUTO):
        raise MemgenError("--schedule goes with the recipe that it is for")
    if options.recipe is None and run is not None:
        return run.recipe
    return None if options.recipe in (None, AUTO) else Recipe.read(options.recipe, options.schedule)


def data_settings(options: argparse.Namespace, base: Recipe | None) -> Data:
    """[data] of the recipe, with --data, --size, --kind and --set data.KEY=VALUE."""
    settings = Data() if base is None else base.data
    if options.data is not None:
        settings = replace(settings, name=options.data)
        if is_path(options.data):
            settings = replace(settings, name=as_path(options.data))
        elif options.data in DATASETS:
            settings = replace(settings, size="", kinds=())
    if options.size is not None:
        settings = replace(settings, size=options.size)
    if options.kind:
        settings = replace(settings, kinds=tuple(options.kind))
    return Recipe(data=settings).override([text for text in options.set if _key(text).startswith("data.")]).data


def _key(text: str) -> str:
    return text.partition("=")[0].strip()


def wanted_likelihood(options: argparse.Namespace, base: Recipe | None, run: Run | None) -> str:
    """What the user says, else what the recipe says, unless it was written for other data."""
    said = [text.partition("=")[2].strip().strip("'\"") for text in options.set if _key(text) == "model.likelihood"]
    if said or options.likelihood:
        return Recipe().override(f"model.likelihood={said[-1] if said else options.likelihood}").model.likelihood
    return "auto" if base is None or (options.data is not None and run is None) else base.model.likelihood


def complete(
    options: argparse.Namespace, base: Recipe | None, settings: Data, loaded: Loaded, run: Run | None
) -> Recipe:
    """Every setting: those of the recipe, then what the data ask for, then what the user says."""
    recipe = replace(made_for(loaded) if base is None else base, data=settings)
    if options.data is not None and not (run is not None and options.recipe is None):
        mask = recipe.model.mask or has_holes(loaded)
        recipe = replace(recipe, model=replace(recipe.model, likelihood="auto", mask=mask))
    if options.likelihood:
        recipe = recipe.override(f"model.likelihood={options.likelihood}")
    return with_likelihood(recipe.override(options.set), loaded.data.likelihood)


def has_holes(loaded: Loaded) -> bool:
    parts = (loaded.data.train, loaded.data.valid, loaded.data.test)
    return any(part is not None and bool(part.isnan().any()) for part in parts)


def made_for(loaded: Loaded) -> Recipe:
    """The recipe `auto`."""
    rows, columns = loaded.data.train.shape
    schema = loaded.form.columns if loaded.data.likelihood == "mixed" else None
    encoded = columns if schema is None else schema.encoded
    return auto_recipe(rows, columns, encoded, image=bool(loaded.form.shape))


def refuse_changed_data(run: Run, loaded: Loaded) -> None:
    if run.origin is not None and loaded.fingerprint != run.origin.fingerprint:
        raise MemgenError(
            f"{loaded.path or loaded.data.name} is not what {run.folder} was started on: the data have changed since "
            f"({run.origin.rows:,} rows then, {loaded.rows:,} now); bring them back, or choose another --out"
        )


def same_recipe(run: Run, recipe: Recipe) -> Recipe:
    """The run's own recipe, if the one that is asked for has its settings; where the data lie is none of them."""
    asked = replace(recipe, data=replace(recipe.data, name=run.recipe.data.name)) if run.origin is not None else recipe
    if changed := run.recipe.differences(asked):
        raise MemgenError(
            f"{run.folder} was started with other settings ({'; '.join(changed)}); a resumed run keeps its settings: "
            "leave them out, or choose another --out"
        )
    return run.recipe


def choose_start(options: argparse.Namespace, run: Run | None) -> Start | None:
    """The weights that the run begins with, if they are those of another. A run that has a checkpoint has begun."""
    begun = run is not None and (run.folder / CHECKPOINT).exists()
    if begun and options.start is not None:
        raise MemgenError(f"{options.out} has begun, and goes on from where it is; leave out --start")
    kept = None if run is None or begun or run.start is None else run.start["name"]
    name = options.start or kept
    return None if name is None else Start(read_model(Path(name)), str(name))
