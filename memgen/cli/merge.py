"""`memgen merge`: put together what the processes with --shard have made."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli import evaluate, impute, score
from memgen.cli.command import Advice, Command, Group, examples
from memgen.cli.sharding import OF_SHARDS, WAIT


class MergeGroup(Group):
    """The commands whose shards are merged."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if not ctx.resilient_parsing and Path(args[0]).exists():
            raise Advice(f"say what the shards are of, as in: memgen merge evaluate {args[0]}", ctx)
        return super().resolve_command(ctx, args)


@click.group(
    "merge",
    cls=MergeGroup,
    epilog=examples(
        "memgen evaluate runs/digits --shard 0/2     one process, on any machine",
        "memgen evaluate runs/digits --shard 1/2     another one",
        "memgen merge evaluate runs/digits           the result, as of one process",
    ),
)
def command() -> None:
    """Merge the results of `--shard 0/N` to `--shard N-1/N` into those of all rows.

    Give the command and the options that the shards were made with, without --shard. The result is that of one process
    to the bit. Shards that are missing, unfinished or made with something else are named, and nothing is written.
    """


def merging(original: click.Command) -> Command:
    """A command that merges the shards of another one."""
    left_out = (*OF_SHARDS, "fresh")
    defaults: dict[str, Any] = {"shard": None, "timeout": WAIT, "merging": True}
    if any(param.name == "fresh" for param in original.params):
        defaults["fresh"] = False
    callback = original.callback
    assert callback is not None
    return Command(
        original.name,
        callback=lambda **options: callback(**options, **defaults),
        params=[param for param in original.params if param.name not in left_out and param.expose_value],
        help=f"Merge the shards of memgen {original.name}, with the options that they were made with.",
    )


for sharded in (evaluate, impute, score):
    command.add_command(merging(sharded.command))
