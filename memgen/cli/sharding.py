"""`--shard`: work on a part of the rows, and merge the parts of all processes.

The merged result is that of one process to the bit: shards hold whole batches, and noise belongs to rows.
"""

from __future__ import annotations

import functools
import hashlib
import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click
from click.core import ParameterSource

from memgen.cli.command import Advice, count, say
from memgen.cli.options import FILE, Whole
from memgen.cli.output import check_folder
from memgen.errors import MemgenError
from memgen.runs.ranks import Rank, own_rank, wait_for_all
from memgen.tasks.shards import Shard

if TYPE_CHECKING:
    from memgen.core.batch import Rows
    from memgen.runs.modelfile import Saved
    from memgen.runs.shards import Layout, Merged, ShardFile

WAIT = 1800
"""Seconds that rank 0 waits for the shards of the others, after its own."""
OF_SHARDS = ("shard", "timeout")
"""Options that `memgen merge` does not have."""
OF_OUTPUTS = ("output", "figure", "npz", "overwrite")
"""Options that only the process that merges needs."""


class ShardType(click.ParamType[Shard]):
    """INDEX/COUNT, counted from 0."""

    name = "shard"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Shard:
        try:
            return value if isinstance(value, Shard) else Shard.parse(str(value))
        except MemgenError as error:
            raise Advice(str(error), ctx) from None


class Sharding(NamedTuple):
    """Which part of the rows this process works on, and where the parts are."""

    shard: Shard | None
    """The part that --shard names."""
    folder: Path | None
    timeout: int
    merging: bool
    """Whether it only merges what other processes have made."""

    @property
    def asked(self) -> bool:
        """Whether the process works on a part at all: by --shard, under torchrun, or to merge."""
        return self.merging or self.own is not None

    @property
    def rank(self) -> Rank | None:
        """The rank of a process of torchrun, unless --shard says what to do."""
        return None if self.merging or self.shard is not None else own_rank()

    @property
    def ends(self) -> bool:
        """Whether this process has the results of all rows in the end, and writes the outputs."""
        return self.merging or self.shard is None

    @property
    def own(self) -> Shard | None:
        rank = self.rank
        return self.shard if rank is None else Shard(rank.index, rank.size)

    def place(self, run: Path, name: str) -> Path:
        """The folder of a task's shards: --shards, or one in the folder of the run."""
        if self.folder is not None:
            return self.folder
        if not run.is_dir():
            raise MemgenError(f"{run} is not a run folder, in which shards could be kept; say where: --shards FOLDER")
        return run / "shards" / name

    def results(
        self,
        folder: Path,
        task: dict[str, Any],
        borders: Sequence[int],
        layout: Layout,
        work: Callable[[ShardFile], object],
        fresh: bool = False,
    ) -> Merged | None:
        """Do `work` on the shard of this process. Returns the results of all shards if this process merges, else None.

        `task` is what all shards must agree in; `borders` are those of the batches.
        """
        from memgen.runs.shards import Shards, empty

        shards = Shards(folder, task, borders, layout)
        if self.own is not None:
            check_folder(folder, "--shards")
            file = shards.begin(self.own, fresh)
            if file.rows:
                work(file)
            else:
                file.write(empty(layout), 0.0)
            self._tell(file, len(borders) - 1)
        if self.rank is not None:
            wait_for_all(self.rank, f"its shard in {folder}", self.timeout)
        return shards.merged(self._again()) if self.merging or self._merges else None

    @staticmethod
    def made_with(saved: Saved, *rows: Rows) -> dict[str, str]:
        """The part of a task that says which weights and rows it is about."""
        from memgen import __version__
        from memgen.runs.shards import rows_sha256

        hashes = "-".join(map(rows_sha256, rows))
        return {"weights": saved.sha256, "rows": hashes, "memgen": __version__}

    def record(self) -> dict[str, Any]:
        """The record of a command that has not merged."""
        return {"shard": str(self.own)}

    @property
    def _merges(self) -> bool:
        return self.rank is not None and self.rank.index == 0

    def _tell(self, file: ShardFile, batches: int) -> None:
        rows = file.rows
        text = f"rows {rows.start + 1:,} to {rows.stop:,}" if rows else "no rows"
        say(f"shard {file.shard}: {text} done, in {file.shards.file(file.shard)}")
        if not rows:
            say(f"the rows are in {count(batches, 'batch').replace('batchs', 'batches')}, and a shard has whole ones")
        if self.rank is None and self.shard is not None:
            say(f"when all {self.shard.count} are there: {_command('merge', with_outputs=True)}")

    def _again(self) -> str:
        """The command of a shard, without its index."""
        return f"{_command()} --shard"


def _command(before: str = "", with_outputs: bool = False) -> str:
    """The command line of this process, without the options of one shard alone."""
    context = click.get_current_context()
    words = ["memgen", *([before] if before else []), str(context.info_name)]
    skipped = (*OF_SHARDS, "fresh", *(() if with_outputs else OF_OUTPUTS))
    for param in context.command.params:
        given = context.get_parameter_source(str(param.name)) is ParameterSource.COMMANDLINE
        if given and param.name not in skipped and param.expose_value:
            value = context.params[str(param.name)]
            words += [] if isinstance(param, click.Argument) else [max(param.opts, key=len)]
            words += [] if value is True else [str(value)]
    return shlex.join(words)


def shardable(function: Callable[..., Any]) -> Callable[..., Any]:
    """The options of a command whose rows can be divided among processes; it gets them as `sharding`."""

    @functools.wraps(function)
    def packed(*args: Any, shard: Shard | None, shards: Path | None, timeout: int, **options: Any) -> Any:
        merging = bool(options.pop("merging", False))
        return function(*args, sharding=Sharding(shard, shards, timeout, merging), **options)

    for option in reversed(OPTIONS):
        packed = option(packed)
    return packed


OPTIONS = (
    click.option(
        "--shard",
        type=ShardType(),
        metavar="I/N",
        help="Work on part I of N only, counted from 0; `memgen merge` puts the parts together.",
    ),
    click.option("--shards", type=FILE, metavar="FOLDER", help="Where the parts are kept (default: in RUN/shards)."),
    click.option(
        "--timeout",
        type=Whole(1),
        default=WAIT,
        metavar="SECONDS",
        help=f"With torchrun: rank 0 waits for the other parts (default {WAIT}).",
    ),
)


def name_of(*parts: object) -> str:
    """A name for a folder, from words without separators.

    >>> name_of("evaluate", "test", 5000, "")
    'evaluate-test-5000'
    """
    return "-".join(str(part).replace("/", "_") for part in parts if str(part))


def short_hash(settings: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:8]
