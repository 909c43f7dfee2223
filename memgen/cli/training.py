"""`memgen train`"""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from memgen.cli.choosing import choose, choose_start
from memgen.cli.common import count, say
from memgen.cli.reading import Loaded
from memgen.data.dataset import SPLITS
from memgen.runs.session import Options, Session, choose_device, train_in
from memgen.training.prepare import Prepared, prepare


def train(options: argparse.Namespace) -> dict[str, Any]:
    choose_device(options.device)
    recipe, loaded, run = choose(options)
    start = choose_start(options, run)
    ready = prepare(recipe, loaded.data, loaded.form)
    if loaded.path is not None:
        tell_data(options, loaded, ready)

    def begun(session: Session) -> None:
        if session.finished:
            say(options, f"{options.out} is finished")
        elif session.epochs or session.state.step:
            epochs = f"{session.epochs} of {session.to_do} epochs"
            say(options, f"going on with {options.out} after {epochs} and {session.state.step} steps")

    how = Options(options.device, options.until, options.checkpoint_every, options.compile, options.tensorboard)
    run = train_in(options.out, ready, how, origin=loaded.origin, start=start, begun=begun)
    last = run.metrics()[-1]
    say(options, f"trained {count(last['epoch'], 'epoch')} in {last['seconds']:.1f} s: {describe(last)}")
    say(options, f"saved in {run.folder}; next: memgen evaluate {shlex.quote(str(run.folder))}")
    return {
        "epochs": last["epoch"],
        "stage": last["stage"],
        "bound": last["bound"],
        "seconds": last["seconds"],
        "run": str(run.folder),
        **{key: last[key] for key in ("train_bound", "valid_bound") if key in last},
        **about_data(ready),
    }


def about_data(ready: Prepared) -> dict[str, Any]:
    """What was trained on, for --json."""
    data, form = ready.data, ready.form
    return {
        "data": data.name,
        "likelihood": ready.recipe.model.likelihood,
        "rows": {split: len(data.rows(split)) for split in SPLITS if getattr(data, split) is not None},
        "shape": list(form.shape),
        "classes": list(form.classes),
        "columns": None if form.columns is None else form.to_dict()["columns"]["columns"],
    }


def tell_data(options: argparse.Namespace, loaded: Loaded, ready: Prepared) -> None:
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
    say(options, f"likelihood: {ready.recipe.model.likelihood}")
    for line in form.columns.describe() if form.columns is not None else ():
        say(options, f"  {line}")


def describe(metrics: dict[str, Any]) -> str:
    text = f"training bound {metrics['bound']:.2f} nats"
    if "train_bound" in metrics:
        text += f"; on fixed rows: train {metrics['train_bound']:.2f}"
    if "valid_bound" in metrics:
        text += f", valid {metrics['valid_bound']:.2f}"
    return text
