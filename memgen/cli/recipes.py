"""`memgen recipes`"""

from __future__ import annotations

from typing import Any

import click

from memgen.cli.command import Command, examples, say


@click.command("recipes", cls=Command, epilog=examples("memgen recipes"))
def command() -> dict[str, Any]:
    """List the recipes that ship with memgen."""
    from tabulate import tabulate

    from memgen.cli.describing import ABOUT_AUTO, AUTO
    from memgen.recipes.settings import Recipe, recipe_names

    about = {name: Recipe.named(name).about for name in recipe_names()}
    say(tabulate([*about.items(), (AUTO, ABOUT_AUTO)], tablefmt="plain"))
    return {"recipes": [{"name": name, "about": words} for name, words in about.items()]}
