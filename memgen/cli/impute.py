"""`memgen impute`: fill in values that a pattern hides, to measure the error, or those missing in the user's data."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
from click.core import ParameterSource

from memgen.cli.command import Command, examples
from memgen.cli.options import FILE, Whole, data_option, device_option, overwrite_option, run_argument, split_option
from memgen.cli.sharding import Sharding, name_of, shardable
from memgen.errors import MemgenError

PATTERNS = "rect-N, rand-P, half, half-left, half-right, half-top or half-bottom"
IMPUTATION, COMPLETIONS, MASKED = "importance", "gibbs", "observed"
"""The default methods, repeated here so that --help need not import torch. A test compares them."""
FOR_INPUT = ("output", "mean", "draws", "allow_empty_columns", "header")
FOR_PATTERN = ("data", "split", "limit", "values", "figure", "npz")
"""Options that are valid only with --input, and only with --pattern."""


@click.command(
    "impute",
    cls=Command,
    epilog=examples(
        "memgen impute runs/digits --pattern half",
        "memgen impute runs/mnist --pattern rect-12 --method paper --limit 1000",
        "memgen impute runs/mnist --input incomplete.csv --output whole.csv",
        "memgen impute runs/mnist --input pictures --output completed --draws 5 --mean",
        "memgen impute runs/mnist --pattern half --shard 0/4    one of four processes; memgen merge ends it",
    ),
)
@run_argument
@click.option("--pattern", metavar="PATTERN", help=f"{PATTERNS}.")
@click.option("--input", "source", type=FILE, metavar="FILE|FOLDER", help="Your own incomplete data.")
@click.option("--output", type=FILE, metavar="FILE|FOLDER", help="Where they go, completed.")
@click.option(
    "--method",
    help=f"paper, gibbs, mwg, {IMPUTATION} (default; with --draws {COMPLETIONS}) or {MASKED} (default with "
    "model.mask=true).",
)
@click.option("--steps", type=Whole(2), default=100, help="Decoder passes a row (default 100).")
@click.option("--keep", type=Whole(1), metavar="N", help="The last N states count (default: half; paper: 1).")
@click.option("--draws", type=Whole(0), default=0, metavar="M", help="M completions: OUTPUT-1, OUTPUT-2, ...")
@click.option("--mean", is_flag=True, help="The average completion (default without --draws).")
@click.option(
    "--values",
    default="auto",
    type=click.Choice(("auto", "grey", "binary")),
    help="Of a data set of grey levels (default auto).",
)
@click.option("--allow-empty-columns", is_flag=True, help="Columns without a single value are meant.")
@click.option("--header", default="auto", type=click.Choice(("auto", "yes", "no")), help="Of a table (default auto).")
@overwrite_option("outputs")
@click.option("--npz", type=FILE, metavar="FILE.npz", help="With --pattern: rows, masks and means as arrays.")
@click.option("-o", "figure", type=FILE, metavar="FILE.png", help="The figure (default imputed.png).")
@data_option
@split_option("rows for --pattern")
@click.option("--limit", type=Whole(1), metavar="N", help="The first N rows only.")
@click.option("--seed", type=Whole(0), default=0, help="Of the masks and of the chains (default 0).")
@device_option
@shardable
@click.pass_context
def command(
    context: click.Context,
    path: Path,
    pattern: str | None,
    source: Path | None,
    output: Path | None,
    method: str | None,
    steps: int,
    keep: int | None,
    draws: int,
    mean: bool,
    values: str,
    allow_empty_columns: bool,
    header: str,
    overwrite: bool,
    npz: Path | None,
    figure: Path | None,
    data: str | None,
    split: str,
    limit: int | None,
    seed: int,
    device: str,
    sharding: Sharding,
) -> dict[str, Any]:
    """Fill in missing values: of a data set under a pattern, for a number, or of your own data.

    Patterns: rect-N (a centred square of N x N pixels), rand-P (each value with probability P), half (the left one),
    half-left, half-right, half-top, half-bottom. Masks are seeded, so all models are asked for the same values.

    Your own data: in a .csv, .parquet, .npy or .npz, NaN or an empty cell is missing, and values are those that the
    model was trained on (grey levels lie in [0, 1]; a model of a table reads and writes your own values, text too);
    in a folder of 8-bit images, a pixel with alpha 0 is missing, and completed images are PNG without alpha.
    """
    check_way(context, pattern, source)

    from memgen.cli.chains import Chains
    from memgen.cli.filling import Filling
    from memgen.cli.impute_input import Files, impute_input, output_paths
    from memgen.cli.impute_pattern import Task, impute_pattern
    from memgen.cli.output import check_output
    from memgen.runs.run import read_model
    from memgen.runs.session import choose_device
    from memgen.tasks.imputation import method_for

    method_for(method, draws)  # refuses a wrong name before any work
    if source is not None:
        outputs = output_paths(source, output, mean or not draws, draws, overwrite) if sharding.ends else []
    check_output(figure, ".png")
    check_output(npz, ".npz", overwrite)
    saved = read_model(path, choose_device(device))
    chains = Chains(saved.model, method_for(method, draws, saved.model.mask), steps, keep, draws, seed)
    if source is not None:
        files = Files(source, outputs, mean or not draws, allow_empty_columns, header)
        filling = Filling(chains, sharding, saved, path, {"what": name_of("input", source.stem)})
        return impute_input(saved, filling, files)
    assert pattern is not None
    about = {"what": pattern, "split": split, "limit": limit, "values": values}
    task = Task(pattern, data, split, limit, values, figure, npz)
    return impute_pattern(saved, Filling(chains, sharding, saved, path, about), task)


def check_way(context: click.Context, pattern: str | None, source: Path | None) -> None:
    """Require exactly one of --input and --pattern, and no option of the other."""
    if source is None and pattern is None:
        raise MemgenError(f"say what is missing: --input YOUR_DATA, or --pattern, one of {PATTERNS}")
    if source is not None and pattern is not None:
        raise MemgenError("--input and --pattern exclude each other: give one of them")
    given, others = ("--input", FOR_PATTERN) if pattern is None else ("--pattern", FOR_INPUT)
    for option in context.command.params:
        if option.name in others and context.get_parameter_source(option.name) is ParameterSource.COMMANDLINE:
            raise MemgenError(f"{option.opts[0]} does not go with {given}; see memgen impute --help")
