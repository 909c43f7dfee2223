"""What `memgen train` does."""

from __future__ import annotations

import shlex
from typing import Any, NamedTuple

from memgen.cli.choosing import Wishes, choose, choose_start
from memgen.cli.command import count, say
from memgen.cli.describing import describe
from memgen.cli.reading import Loaded
from memgen.data.dataset import SPLITS
from memgen.recipes.build import likelihood_name
from memgen.recipes.settings import Recipe
from memgen.runs.run import Run
from memgen.runs.session import Session, choose_device, prepared


class Manner(NamedTuple):
    """How it is trained; nothing of it changes the result."""

    checkpoint_every: int
    tensorboard: bool
    compiled: bool
    device: str


def train(wishes: Wishes, manner: Manner) -> dict[str, Any]:
    choose_device(manner.device)
    recipe, loaded, run = choose(wishes)
    recipe, start = choose_start(wishes, recipe, run)
    model = prepared(recipe, loaded.data, loaded.form, start, manner.compiled)
    if loaded.path is not None:
        tell_data(recipe, loaded)
    run = Run.create(wishes.out, recipe, loaded.origin) if run is None else run.remembering(loaded.origin)
    if start is not None:
        run.remember_start(start)
    with (
        run.locked(),
        Session(run, model, loaded.data, manner.device, manner.checkpoint_every, manner.compiled) as session,
    ):
        if session.state.epoch == recipe.training.epochs:
            say(f"{run.folder} is finished")
        elif session.state.epoch or session.state.step:
            epochs = f"{session.state.epoch} of {recipe.training.epochs} epochs"
            say(f"going on with {run.folder} after {epochs} and {session.state.step} steps")
        metrics = session.train(tensorboard=manner.tensorboard)
    last = metrics[-1]
    say(f"trained {count(last['epoch'], 'epoch')} in {last['seconds']:.1f} s: {describe(last)}")
    say(f"saved in {run.folder}; next: memgen evaluate {shlex.quote(str(run.folder))}")
    return {
        "epochs": last["epoch"],
        "bound": last["bound"],
        "seconds": last["seconds"],
        "run": str(run.folder),
        **{key: last[key] for key in ("train_bound", "valid_bound") if key in last},
        **about_data(recipe, loaded),
    }


def about_data(recipe: Recipe, loaded: Loaded) -> dict[str, Any]:
    """What was trained on, for --json."""
    data, form = loaded.data, loaded.form
    return {
        "data": data.name,
        "likelihood": likelihood_name(recipe),
        "rows": {split: len(data.rows(split)) for split in SPLITS if getattr(data, split) is not None},
        "shape": list(form.shape),
        "classes": list(form.classes),
        "columns": None if form.columns is None else form.to_dict()["columns"]["columns"],
    }


def tell_data(recipe: Recipe, loaded: Loaded) -> None:
    """What was read, and as what: above all the kind of every column."""
    data, form = loaded.data, loaded.form
    parts = {split: data.rows(split) for split in SPLITS}
    missing = sum(int(rows.isnan().sum()) for rows in parts.values())
    what = "row" if not form.shape else "image"
    size = f" of {' x '.join(map(str, form.shape))}" if form.shape else f" of {count(data.train.shape[1], 'column')}"
    split = ", ".join(f"{len(rows):,} {name}" for name, rows in parts.items())
    say(f"{loaded.path}: {count(loaded.rows, what)}{size} ({split}), {missing:,} values missing")
    if form.classes:
        names = ", ".join(form.classes[:5]) + (", ..." if len(form.classes) > 5 else "")
        say(f"classes: {len(form.classes)} ({names})")
    say(f"likelihood: {likelihood_name(recipe)}")
    for line in form.columns.describe() if form.columns is not None else ():
        say(f"  {line}")
