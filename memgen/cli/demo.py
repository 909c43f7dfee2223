"""`memgen demo`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import FILE, Whole


@click.command("demo", cls=Command, epilog=examples("memgen demo", "memgen demo --out demo"))
@click.option(
    "--out",
    "folder",
    type=FILE,
    default=Path("demo"),
    metavar="FOLDER",
    help="For models and pictures (default demo).",
)
@click.option("--epochs", type=Whole(1), help="Instead of the recipes' own.")
def command(folder: Path, epochs: int | None) -> dict[str, Any]:
    """Train a VAE and a MEM-VAE on small digits, score them, and draw samples of both."""
    from memgen.cli.demonstration import run_demo

    return run_demo(folder, epochs, say)
