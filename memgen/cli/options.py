"""Options and parameter types that several commands share."""

from __future__ import annotations

from collections.abc import Callable
from importlib import resources
from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Advice

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

FILE = click.Path(path_type=Path)
"""A path. Each command checks whether it can be read or written."""


class Whole(click.ParamType[int]):
    """A whole number from `at_least` on; 5,000 and 5_000 are 5000."""

    name = "number"

    def __init__(self, at_least: int) -> None:
        self.at_least = at_least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        try:
            number = value if isinstance(value, int) else int(value.replace(",", "").replace("_", ""))
        except ValueError:
            self.fail(f"{value!r} is not a whole number", param, ctx)
        if number < self.at_least:
            self.fail(f"must be at least {self.at_least}, not {number}", param, ctx)
        return number


def recipe_files() -> list[str]:
    """The names of the shipped recipes, without reading them."""
    files = resources.files("memgen.recipes").iterdir()
    return sorted(file.name.removesuffix(".toml") for file in files if file.name.endswith(".toml"))


class RunPath(click.ParamType[Path]):
    """A run folder, a model file or zoo:NAME; the name of a recipe is a common mistake, with an error of its own."""

    name = "run"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path:
        path = Path(value)
        if path.suffix == ".toml" or (str(value) in recipe_files() and not path.exists()):
            raise Advice(f"{value} is a recipe; train it first: memgen train {value} --out runs/{path.stem}", ctx)
        return path

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        return [click.shell_completion.CompletionItem(incomplete, type="file")]


class RecipeName(click.ParamType[str]):
    """The name of a shipped recipe, a TOML file, or auto."""

    name = "recipe"

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[click.shell_completion.CompletionItem]:
        names = [name for name in (*recipe_files(), "auto") if name.startswith(incomplete)]
        items = [click.shell_completion.CompletionItem(name) for name in names]
        return items or [click.shell_completion.CompletionItem(incomplete, type="file")]


run_argument = click.argument("path", metavar="RUN", type=RunPath())

data_option = click.option(
    "--data",
    metavar="PATH|NAME",
    help="Other data of the same form, or the new place of the run's own (default: the run's own).",
)
device_option = click.option(
    "--device", default="auto", help="cpu, cuda, cuda:1, ...; auto (default): a GPU if there is one."
)
compile_option = click.option(
    "--compile",
    "compiled",
    is_flag=True,
    help="torch.compile the loss, in half a minute: for models whose steps memgen does not accelerate itself.",
)


def split_option(what: str) -> Decorator:
    return click.option("--split", default="test", help=f"{what}: train, valid or test (default).")


def seed_option(what: str) -> Decorator:
    return click.option("--seed", type=Whole(0), default=0, help=f"Of {what} (default 0).")


def overwrite_option(what: str) -> Decorator:
    return click.option("--overwrite", is_flag=True, help=f"Replace {what} if they exist.")
