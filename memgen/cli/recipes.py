"""`memgen recipes`"""

from __future__ import annotations

from itertools import chain
from typing import Any

import click

from memgen.cli.command import Command, examples, say


@click.command("recipes", cls=Command, epilog=examples("memgen recipes"))
def command() -> dict[str, Any]:
    """List the recipes that ship with memgen, and their schedules."""
    from memgen.cli.describing import ABOUT_AUTO, AUTO
    from memgen.recipes.listing import recipe_groups

    groups = recipe_groups()
    width = max(len(name) for group in groups for name in group.entries)
    for group in groups:
        say(f"{group.title}:")
        for name, about in group.entries.items():
            say(f"  {name:<{width}}  {about}")
    say(f"your own data:\n  {AUTO:<{width}}  {ABOUT_AUTO}")
    *recipes, schedules = (
        [{"name": name, "about": about} for name, about in group.entries.items()] for group in groups
    )
    return {"recipes": list(chain(*recipes)), "schedules": schedules}
