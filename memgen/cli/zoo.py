"""`memgen zoo`"""

from __future__ import annotations

from typing import Any

import click

from memgen.cli.command import Command, examples, say


@click.command(
    "zoo",
    cls=Command,
    epilog=examples(
        "memgen zoo", "memgen sample zoo:mnist-mem-vae -o samples.png", "memgen evaluate zoo:mnist-mem-vae --limit 100"
    ),
)
def command() -> dict[str, Any]:
    """List the trained models that come with memgen, with their numbers."""
    from tabulate import tabulate

    from memgen.runs import zoo

    models = [zoo.result(name) | {"name": name} for name in zoo.names()]
    rows = [(zoo.PREFIX + model["name"], "\n".join(result_lines(model))) for model in models]
    say(tabulate(rows, tablefmt="plain") if rows else "the zoo is empty")
    return {"models": models}


def result_lines(model: dict[str, Any]) -> list[str]:
    """The measured results of a model, in three lines."""
    likelihood = f"{model['log_likelihood']:.2f} ± {model['standard_error']:.2f}"
    how = f"K = {model['samples']:,}, {model['examples']:,} test examples of {model['data']}, {model['scale']}"
    epochs = model["epochs"] + sum(leg["epochs"] for leg in model["before"])
    return [
        f"{model['model']}, {model['table']}",
        f"log p(x) {likelihood} nats, {how}",
        f"{model['parameters']:,} parameters, {model['recipe']}, {epochs:,} epochs",
    ]
