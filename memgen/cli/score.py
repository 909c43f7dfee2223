"""`memgen score`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples
from memgen.cli.options import FILE, Whole, device_option, overwrite_option, run_argument, seed_option
from memgen.cli.output import check_output
from memgen.cli.sharding import Sharding, shardable
from memgen.errors import MemgenError

MOST = 100_000
"""The default cap of --until, repeated here so that --help need not import torch. A test compares them."""


@click.command(
    "score",
    cls=Command,
    epilog=examples(
        "memgen score runs/table --input rows.csv -o scores.csv",
        "memgen score runs/table --input rows.csv --until 100 -o scores.csv",
        "memgen score runs/table --input rows.csv --columns -o scores.csv",
        "memgen score runs/photos --input pictures -o scores.csv",
        "memgen score runs/table --input rows.csv --shard 0/4      one of four processes; memgen merge ends it",
    ),
)
@run_argument
@click.option("--input", "source", type=FILE, metavar="FILE|FOLDER", required=True, help="The rows or images to score.")
@click.option("-o", "output", type=FILE, default=Path("scores.csv"), metavar="FILE.csv", help="Default scores.csv.")
@click.option("--samples", type=Whole(1), default=1000, help="Importance samples per row (default 1000).")
@click.option("--until", type=Whole(1), metavar="ESS", help="More samples, until the effective sample size holds ...")
@click.option(
    "--most", type=Whole(1), metavar="N", default=MOST, help=f"... or a row has this many (default {MOST:,})."
)
@click.option(
    "--reference",
    type=Whole(0),
    metavar="N",
    default=1000,
    help="Training rows to which a row is compared (default 1000; 0: none).",
)
@click.option("--columns", is_flag=True, help="Also score each column of a table given the others (takes longer).")
@click.option(
    "--quick", is_flag=True, help="With --columns: score all columns with the same samples, as the page does."
)
@click.option("--header", default="auto", type=click.Choice(("auto", "yes", "no")), help="Of a table (default auto).")
@overwrite_option("FILE.csv")
@shardable
@seed_option("the importance samples")
@device_option
def command(
    path: Path,
    source: Path,
    output: Path,
    samples: int,
    until: int | None,
    most: int,
    reference: int,
    columns: bool,
    quick: bool,
    header: str,
    overwrite: bool,
    sharding: Sharding,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """Score every row of your own data: log p(x), its error, and how unusual the row is.

    Writes a table with one line per row: log p(x) in nats, the standard error of this estimate, the effective sample
    size, the number of samples, and the percentage of training rows that are no more probable. Rows with missing values
    are scored by their observed values.

    With --columns a table also gets log p of each column given the other columns of its row, and the name of the least
    expected column: the one whose value lies most below the median of training rows.
    """
    if sharding.ends:
        check_output(output, ".csv", overwrite)
    if output.exists() and source.exists() and output.samefile(source):
        raise MemgenError(f"{output} is the input itself; choose another -o")
    if quick and not columns:
        raise MemgenError("--quick goes with --columns")
    if until is not None and most < samples:
        raise MemgenError(f"--most {most:,} is less than --samples {samples:,}")

    from memgen.cli.score_input import score_input
    from memgen.cli.score_rows import Scorer, Scoring
    from memgen.runs.run import read_model
    from memgen.runs.session import choose_device

    saved = read_model(path, choose_device(device))
    how = Scoring(samples, until, most, seed, reference, columns, quick)
    return score_input(Scorer(saved, how, sharding, path), source, output, header)
