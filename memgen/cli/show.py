"""`memgen show`"""

from __future__ import annotations

from typing import Any

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import RecipeName


@click.command("show", cls=Command, epilog=examples("memgen show mnist-mem-vae", "memgen show runs/digits --json"))
@click.argument("what", metavar="RUN|RECIPE", type=RecipeName())
def command(what: str) -> dict[str, Any]:
    """Show a run or a recipe: its settings, its parameters by part, its last metrics.

    RUN|RECIPE is a run folder, a recipe's name, a TOML file, a model file or zoo:NAME.
    """
    from memgen.cli.describing import AUTO, about_auto, describe, described, parts, parts_table
    from memgen.core.model import count_parameters
    from memgen.runs.run import Run
    from memgen.runs.zoo import resolve

    folder = resolve(what)
    run = Run.open(folder) if folder.is_dir() else None
    if what == AUTO and run is None:
        say(about_auto())
        return {"parameters": None, "parts": None, "recipe": None, "metrics": None}
    recipe, model = described(folder, run)
    metrics = [] if run is None else run.metrics()
    say(f"{recipe.to_toml().rstrip()}\n\n{parts_table(model)}")
    if metrics:
        evaluated = {key: line[key] for line in metrics for key in ("train_bound", "valid_bound") if key in line}
        say(f"\nepoch {metrics[-1]['epoch']} of {recipe.epochs}: {describe(metrics[-1] | evaluated)}")
    elif run is not None:
        say("\nnot one epoch finished yet")
    return {
        "parameters": count_parameters(model),
        "parts": parts(model),
        "recipe": recipe.to_dict(),
        "metrics": metrics[-1] if metrics else None,
    }
