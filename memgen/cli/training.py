"""`memgen train`"""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from memgen.cli.choosing import choose, choose_start
from memgen.cli.common import count, say
from memgen.cli.reading import Loaded
from memgen.data.dataset import SPLITS
from memgen.recipes.build import likelihood_name
from memgen.recipes.settings import Recipe
from memgen.runs.run import Run
from memgen.runs.session import Session, choose_device, prepared


def train(options: argparse.Namespace) -> dict[str, Any]:
    choose_device(options.device)
    recipe, loaded, run = choose(options)
    recipe, start = choose_start(options, recipe, run)
    model = prepared(recipe, loaded.data, loaded.form, start, options.compile)
    if loaded.path is not None:
        tell_data(options, recipe, loaded)
    run = Run.create(options.out, recipe, loaded.origin) if run is None else run.remembering(loaded.origin)
    if start is not None:
        run.remember_start(start)
    with (
        run.locked(),
        Session(run, model, loaded.data, options.device, options.checkpoint_every, options.compile) as session,
    ):
        if session.state.epoch == recipe.training.epochs:
            say(options, f"{run.folder} is finished")
        elif session.state.epoch or session.state.step:
            epochs = f"{session.state.epoch} of {recipe.training.epochs} epochs"
            say(options, f"going on with {run.folder} after {epochs} and {session.state.step} steps")
        metrics = session.train(tensorboard=options.tensorboard)
    last = metrics[-1]
    say(options, f"trained {count(last['epoch'], 'epoch')} in {last['seconds']:.1f} s: {describe(last)}")
    say(options, f"saved in {run.folder}; next: memgen evaluate {shlex.quote(str(run.folder))}")
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


def tell_data(options: argparse.Namespace, recipe: Recipe, loaded: Loaded) -> None:
    """What was read, and as what: above all the kind of every column."""
    data, form = loaded.data, loaded.form
    parts = {split: data.rows(split) for split in SPLITS}
    holes = sum(int(rows.isnan().sum()) for rows in parts.values())
    what = "row" if not form.shape else "image"
    size = f" of {' x '.join(map(str, form.shape))}" if form.shape else f" of {count(data.train.shape[1], 'column')}"
    split = ", ".join(f"{len(rows):,} {name}" for name, rows in parts.items())
    say(options, f"{loaded.path}: {count(loaded.rows, what)}{size} ({split}), {holes:,} values missing")
    if form.classes:
        some = ", ".join(form.classes[:5]) + (", ..." if len(form.classes) > 5 else "")
        say(options, f"classes: {len(form.classes)} ({some})")
    say(options, f"likelihood: {likelihood_name(recipe)}")
    for line in form.columns.describe() if form.columns is not None else ():
        say(options, f"  {line}")


def describe(metrics: dict[str, Any]) -> str:
    text = f"training bound {metrics['bound']:.2f} nats"
    if "train_bound" in metrics:
        text += f"; on fixed rows: train {metrics['train_bound']:.2f}"
    if "valid_bound" in metrics:
        text += f", valid {metrics['valid_bound']:.2f}"
    return text
