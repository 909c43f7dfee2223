"""The recipe, data and run of `memgen train`, chosen from its options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from memgen.cli.command import say
from memgen.cli.describing import AUTO
from memgen.cli.reading import Loaded, as_trained, load, locate
from memgen.data import DATASETS
from memgen.data.dataset import SPLITS
from memgen.data.own import as_path, is_path
from memgen.data.words import parse_locale
from memgen.errors import MemgenError
from memgen.recipes.auto import auto_recipe
from memgen.recipes.settings import Data, Recipe, recipe_names
from memgen.runs.run import CHECKPOINT, RECIPE, Run, read_model
from memgen.runs.session import Start
from memgen.training.prepare import with_likelihood


class Wishes(NamedTuple):
    """The options of `memgen train` about recipe, data and run."""

    recipe: str | None
    out: Path
    data: str | None
    size: str | None
    levels: int | None
    likelihood: str | None
    kinds: tuple[str, ...]
    changes: tuple[str, ...]
    """Settings, as KEY=VALUE."""
    start: Path | None
    schedule: str | None
    resume: bool
    ignore: tuple[str, ...] = ()
    locale: str | None = None
    test: str | None = None
    """A file of test rows."""
    stream: bool | None = None
    """Whether rows stay in the file and are read while they are used; None: if it is large."""


class Choice(NamedTuple):
    recipe: Recipe
    loaded: Loaded
    run: Run | None
    """The run to resume; None for a new one."""


def choose(wishes: Wishes) -> Choice:
    """The recipe to train, its data, and the run to resume, if there is one."""
    run = run_to_resume(wishes)
    base = base_recipe(wishes, run)
    settings = data_settings(wishes, base)
    if run is not None and wishes.data is None:
        settings = replace(settings, name=locate(settings.name, run.origin))
    loaded = load(settings if run is None else as_trained(settings), likelihood_for(wishes, base, run))
    if run is not None:
        refuse_changed_data(run, loaded)
    recipe = complete(wishes, base, settings, loaded, run)
    if run is not None:
        recipe = same_recipe(run, recipe)
    return Choice(recipe, loaded, run)


def run_to_resume(wishes: Wishes) -> Run | None:
    if wishes.resume and (wishes.out / RECIPE).is_file():
        return Run.open(wishes.out)
    if wishes.recipe is None and wishes.data is None:
        if wishes.resume:
            return Run.open(wishes.out)  # which says what is wrong with it
        raise MemgenError(
            f"which recipe? Choices: {', '.join(recipe_names())}; or a TOML file; or your own data: --data PATH"
        )
    if wishes.recipe == AUTO and wishes.data is None:
        raise MemgenError("the recipe auto is made from the data: say which, --data NAME_OR_PATH")
    Run.refuse_taken(wishes.out)
    if wishes.resume:
        say(f"nothing to resume in {wishes.out}: starting anew")
    return None


def base_recipe(wishes: Wishes, run: Run | None) -> Recipe | None:
    """The recipe by name or file, or that of the run. None if it is to be made from the data."""
    if wishes.schedule is not None and wishes.recipe in (None, AUTO):
        raise MemgenError("--schedule goes with the recipe that it is for")
    if wishes.recipe is None and run is not None:
        return run.recipe
    return None if wishes.recipe in (None, AUTO) else Recipe.read(wishes.recipe, wishes.schedule)


def data_settings(wishes: Wishes, base: Recipe | None) -> Data:
    """[data] of the recipe, with --data, --size, --kind and --set data.KEY=VALUE."""
    settings = Data() if base is None else base.data
    if wishes.data is not None:
        settings = replace(settings, name=wishes.data)
        if is_path(wishes.data):
            settings = replace(settings, name=as_path(wishes.data))
        elif wishes.data in DATASETS:
            settings = replace(settings, size="", levels=0, kinds=(), ignore=(), test="")
    if wishes.size is not None:
        settings = replace(settings, size=wishes.size)
    if wishes.levels is not None:
        settings = replace(settings, levels=wishes.levels)
    if wishes.kinds:
        settings = replace(settings, kinds=wishes.kinds)
    if wishes.ignore:
        settings = replace(settings, ignore=wishes.ignore)
    if wishes.test is not None:
        settings = replace(settings, test=as_path(wishes.test))
    if wishes.locale is not None:
        settings = replace(settings, locale=parse_locale(wishes.locale))
    if wishes.stream is not None:
        settings = replace(settings, stream="yes" if wishes.stream else "no")
    return Recipe(data=settings).override([text for text in wishes.changes if _key(text).startswith("data.")]).data


def _key(text: str) -> str:
    return text.partition("=")[0].strip()


def likelihood_for(wishes: Wishes, base: Recipe | None, run: Run | None) -> str:
    """The likelihood that the user names, else that of the recipe, unless the user names other data ("auto")."""
    names = [text.partition("=")[2].strip().strip("'\"") for text in wishes.changes if _key(text) == "model.likelihood"]
    if names or wishes.likelihood:
        return Recipe().override(f"model.likelihood={names[-1] if names else wishes.likelihood}").model.likelihood
    return "auto" if base is None or (wishes.data is not None and run is None) else base.model.likelihood


def complete(wishes: Wishes, base: Recipe | None, settings: Data, loaded: Loaded, run: Run | None) -> Recipe:
    """Every setting: those of the recipe, then those that the data need, then the user's changes."""
    if run is None and loaded.data.is_streamed:  # the run remembers it, because the splits depend on it
        settings = replace(settings, stream="yes")
    recipe = replace(made_for(loaded, settings.train_on) if base is None else base, data=settings)
    if wishes.data is not None and not (run is not None and wishes.recipe is None):
        if base is not None and base.data.name != settings.name:
            about = f"a model of {loaded.data.name}, with the settings of {wishes.recipe}"
            recipe = replace(recipe, about=about)  # not the recipe's own words about its data
        mask = recipe.model.mask or has_missing(loaded)
        recipe = replace(recipe, model=replace(recipe.model, likelihood="auto", mask=mask))
    if wishes.likelihood:
        recipe = recipe.override(f"model.likelihood={wishes.likelihood}")
    return with_likelihood(recipe.override(wishes.changes), loaded.data.likelihood)


def has_missing(loaded: Loaded) -> bool:
    data = loaded.data
    return any(getattr(data, split) is not None and data.missing(split) > 0 for split in SPLITS)


def made_for(loaded: Loaded, train_on: str) -> Recipe:
    """The recipe `auto`, for the rows of these splits."""
    rows, columns = loaded.data.count(train_on), loaded.data.train.shape[1]
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
    """The run's recipe; an error if the requested recipe differs. The path of the user's data may differ."""
    if run.origin is not None:
        recipe = replace(recipe, data=replace(recipe.data, name=run.recipe.data.name))
    if changed := run.recipe.differences(recipe):
        raise MemgenError(
            f"{run.folder} was started with other settings ({'; '.join(changed)}); a resumed run keeps its settings: "
            "leave them out, or choose another --out"
        )
    return run.recipe


def choose_start(wishes: Wishes, run: Run | None) -> Start | None:
    """The initial weights, if they are those of another run. A run with a checkpoint needs none."""
    begun = run is not None and (run.folder / CHECKPOINT).exists()
    if begun and wishes.start is not None:
        raise MemgenError(f"{wishes.out} has begun, and goes on from where it is; leave out --start")
    previous = None if run is None or begun or run.start is None else run.start["name"]
    name = wishes.start or previous
    return None if name is None else Start(read_model(Path(name)), str(name))
