"""The work of `memgen train`."""

from __future__ import annotations

import shlex
from typing import Any

from memgen.cli.choosing import Wishes, choose, choose_start
from memgen.cli.command import count, say
from memgen.cli.describing import describe
from memgen.cli.reading import Loaded
from memgen.cli.together import check_commands, tell_others, train_along
from memgen.data.dataset import SPLITS
from memgen.runs.ranks import join
from memgen.runs.session import Options, Session, choose_device, train_in
from memgen.training.prepare import Prepared, prepare


def train(wishes: Wishes, how: Options) -> dict[str, Any]:
    device = choose_device(how.device)
    ranks = join(device, how.timeout)
    if ranks is not None:
        check_commands(ranks, wishes, how)
    if ranks is not None and not ranks.writes:
        return train_along(ranks, wishes, how, device)
    recipe, loaded, run = choose(wishes)
    start = choose_start(wishes, run)
    ready = prepare(recipe, loaded.data, loaded.form)
    if ranks is not None:
        tell_others(ranks, ready, loaded)
    if loaded.path is not None:
        tell_data(loaded, ready)

    def begun(session: Session) -> None:
        if session.finished:
            say(f"{wishes.out} is finished")
        elif session.epochs or session.state.step:
            epochs = f"{session.epochs} of {session.to_do} epochs"
            say(f"going on with {wishes.out} after {epochs} and {session.state.step} steps")

    run = train_in(wishes.out, ready, how, origin=loaded.origin, start=start, ranks=ranks, begun=begun)
    if ranks is not None:
        ranks.leave()
    last = run.metrics()[-1]
    say(f"trained {count(last['epoch'], 'epoch')} in {last['seconds']:.1f} s: {describe(last)}")
    say(f"saved in {run.folder}; next: memgen evaluate {shlex.quote(str(run.folder))}")
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
    """A record of the training data, for --json."""
    data, form = ready.data, ready.form
    return {
        "data": data.name,
        "likelihood": ready.recipe.model.likelihood,
        "rows": {split: data.count(split) for split in SPLITS if getattr(data, split) is not None},
        "shape": list(form.shape),
        "classes": list(form.classes),
        "columns": None if form.columns is None else form.to_dict()["columns"]["columns"],
    }


def tell_data(loaded: Loaded, ready: Prepared) -> None:
    """Print the size of the data, and the kind of every column."""
    data, form = loaded.data, loaded.form
    missing = sum(map(data.missing, SPLITS))
    on = ready.recipe.data.train_on
    parts = {split: data.count(split) for split in dict.fromkeys((on, "valid", "test")) if f"+{split}" not in on}
    what = "row" if not form.shape else "image"
    size = f" of {' x '.join(map(str, form.shape))}" if form.shape else f" of {count(data.train.shape[1], 'column')}"
    sizes = ", ".join(f"{rows:,} {split}" for split, rows in parts.items())
    say(f"{loaded.path}: {count(loaded.rows, what)}{size} ({sizes}), {missing:,} values missing")
    if data.is_streamed:
        say("the rows stay in the file: they are read as they are used, and shuffled in blocks (--no-stream: at once)")
    if "rounded" in data.scale:
        say(f"pixels are fractions between the levels of a byte, and are rounded to {data.levels + 1} levels")
    if form.classes:
        names = ", ".join(form.classes[:5]) + (", ..." if len(form.classes) > 5 else "")
        say(f"classes: {len(form.classes)} ({names})")
    say(f"likelihood: {ready.recipe.model.likelihood}")
    for line in form.columns.describe() if form.columns is not None else ():
        say(f"  {line}")
