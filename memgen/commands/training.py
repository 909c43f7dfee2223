"""`memgen train`"""

from __future__ import annotations

import argparse
import shlex
from typing import Any

from memgen.commands.common import count, load_data, say
from memgen.errors import MemgenError
from memgen.recipe import Recipe, build, recipe_names
from memgen.run import RECIPE, Run
from memgen.session import Session, choose_device
from memgen.train import as_read_by, steps_per_epoch, training_rows


def train(options: argparse.Namespace) -> dict[str, Any]:
    choose_device(options.device)
    recipe, resumed = choose_run(options)
    # Before a new folder is made: what fails here leaves nothing behind.
    data = load_data(recipe.data.name)
    model = build(recipe, data.train.shape[1])
    training_rows(model, as_read_by(model, data), recipe)
    steps_per_epoch(data, recipe)
    run = Run.open(options.out) if resumed else Run.create(options.out, recipe)
    with run.locked(), Session(run, model, data, options.device, options.checkpoint_every) as session:
        if session.state.epoch == recipe.training.epochs:
            say(options, f"{run.folder} is finished")
        elif session.state.epoch or session.state.step:
            epochs = f"{session.state.epoch} of {recipe.training.epochs} epochs"
            say(options, f"going on with {run.folder} after {epochs} and {session.state.step} steps")
        metrics = session.train(tensorboard=options.tensorboard)
    last = metrics[-1]
    say(options, f"trained {count(last['epoch'], 'epoch')} in {last['seconds']:.1f} s: {describe(last)}")
    say(options, f"saved in {run.folder}; next: memgen evaluate {shlex.quote(str(run.folder))}")
    return {"epochs": last["epoch"], "bound": last["bound"], "seconds": last["seconds"], "run": str(run.folder)} | {
        key: last[key] for key in ("train_bound", "valid_bound") if key in last
    }


def choose_run(options: argparse.Namespace) -> tuple[Recipe, bool]:
    """The recipe to train, and whether the run folder holds it already."""
    if options.recipe is None and not options.resume:
        raise MemgenError(f"which recipe? Choices: {', '.join(recipe_names())}; or a TOML file")
    if options.recipe is None:
        recipe = Run.open(options.out).recipe.override(options.set)
    else:
        recipe = Recipe.read(options.recipe).override(options.set)
    if not (options.resume and (options.out / RECIPE).is_file()):
        Run.refuse_taken(options.out)
        if options.resume:
            say(options, f"nothing to resume in {options.out}: starting anew")
        return recipe, False
    if changed := Run.open(options.out).recipe.differences(recipe):
        raise MemgenError(
            f"{options.out} was started with other settings ({'; '.join(changed)}); a resumed run keeps its settings: "
            "leave them out, or choose another --out"
        )
    return recipe, True


def describe(metrics: dict[str, Any]) -> str:
    text = f"training bound {metrics['bound']:.2f} nats"
    if "train_bound" in metrics:
        text += f"; on fixed rows: train {metrics['train_bound']:.2f}"
    if "valid_bound" in metrics:
        text += f", valid {metrics['valid_bound']:.2f}"
    return text
