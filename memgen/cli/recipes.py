"""`memgen recipes`"""

from __future__ import annotations

from typing import Any

import click

from memgen.cli.command import Command, examples, say


@click.command("recipes", cls=Command, epilog=examples("memgen recipes"))
def command() -> dict[str, Any]:
    """List the recipes that ship with memgen, and their schedules."""
    from tabulate import tabulate

    from memgen.cli.describing import ABOUT_AUTO, AUTO
    from memgen.recipes.listing import recipe_groups

    groups = recipe_groups()
    rows = [row for group in groups for row in ((f"{group.title}:", ""), *_indented(group.entries))]
    say(tabulate([*rows, *_indented({AUTO: ABOUT_AUTO})], tablefmt="plain"))
    return {"groups": [{"title": group.title, "entries": group.entries} for group in groups]}


def _indented(entries: dict[str, str]) -> list[tuple[str, str]]:
    return [(f"  {name}", about) for name, about in entries.items()]
