"""`memgen sample`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import (
    FILE,
    Whole,
    data_option,
    device_option,
    overwrite_option,
    run_argument,
    seed_option,
    split_option,
)
from memgen.cli.output import check_output
from memgen.errors import MemgenError

DEFAULT = Path("samples.png")
BESIDE = "<the grid's name>"
"""The value of --npy without a name."""


@click.command(
    "sample",
    cls=Command,
    epilog=examples(
        "memgen sample runs/digits -n 64 -o samples.png",
        "memgen sample runs/digits -n 1000 --draw --npy draws.npy",
        "memgen sample runs/table -n 100 --csv rows.csv",
        "memgen sample runs/table -n 100 --where town=Bern --where income='>50' --csv rows.csv",
        "memgen sample runs/digits --both -o both.png",
        "memgen sample runs/digits --reconstruct -o reconstructions.png",
        "memgen sample runs/digits --interpolate 3 8 -o between.png",
        "memgen sample runs/digits --walk 0 -o walk.png",
    ),
)
@run_argument
@click.argument("images", metavar="[I J]", nargs=-1, type=Whole(0))
@click.option("-n", "n", type=Whole(1), default=64, help="How many (default 64).")
@click.option("-o", "output", type=FILE, metavar="FILE.png", help="A grid of images (default samples.png).")
@click.option(
    "--npy",
    is_flag=False,
    flag_value=BESIDE,
    metavar="[FILE.npy]",
    help="The raw arrays (n, columns); without a name: beside the grid.",
)
@click.option(
    "--csv", "table", type=FILE, metavar="FILE.csv", help="Models of tables: draws of whole rows, in your own values."
)
@click.option(
    "--where",
    "conditions",
    multiple=True,
    metavar="CONDITION",
    help="Models of tables: rows given columns, as in town=Bern, income='>50' or age=20..30; may be repeated.",
)
@overwrite_option("FILE.csv and FILE.npy")
@click.option("--draw", is_flag=True, help="Draws of x instead of the means of p(x|z).")
@click.option("--both", is_flag=True, help="Means and draws of the same z, one above the other.")
@click.option("--reconstruct", is_flag=True, help="The first images of the data and their reconstructions.")
@click.option(
    "--interpolate",
    is_flag=True,
    help="From image I to image J of the data, spherical in z; without numbers: the first ones, two by two.",
)
@click.option("--walk", type=Whole(0), metavar="I", help="Circles around image I of the data, in z.")
@click.option(
    "--hold", type=Whole(0), default=0, metavar="L", help="Share the top L levels of z among all images (default 0)."
)
@data_option
@split_option("images for --reconstruct, --interpolate and --walk")
@seed_option("the noise")
@device_option
def command(
    path: Path,
    images: tuple[int, ...],
    n: int,
    output: Path | None,
    npy: str | None,
    table: Path | None,
    conditions: tuple[str, ...],
    overwrite: bool,
    draw: bool,
    both: bool,
    reconstruct: bool,
    interpolate: bool,
    walk: int | None,
    hold: int,
    data: str | None,
    split: str,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """Draw new images or rows from a model: the first N of a seed, nothing picked."""
    figures = {"interpolate": interpolate, "reconstruct": reconstruct, "walk": walk is not None, "both": both}
    kind = chosen(figures | {"where": bool(conditions)})
    check_images(images, interpolate)
    check_table(table, kind)
    if conditions and (output or hold):
        raise MemgenError(f"--where draws rows of a table, which {'-o' if output else '--hold'} does not go with")
    if conditions and not npy:
        table = table or DEFAULT.with_suffix(".csv")
    output = output or (None if npy or table else DEFAULT)
    array = None if npy is None else (output or DEFAULT).with_suffix(".npy") if npy == BESIDE else Path(npy)
    for file, ending in ((output, ".png"), (array, ".npy"), (table, ".csv")):
        check_output(file, ending, overwrite or ending == ".png")

    from memgen.cli.drawing import Drawing, Wishes
    from memgen.runs.run import read_model
    from memgen.runs.session import choose_device

    saved = read_model(path, choose_device(device))
    drawing = Drawing(
        saved, Wishes(kind, n, draw, hold, seed, images or (() if walk is None else (walk,)), data, split, conditions)
    )
    drawing.check(output, table)
    rows = drawing.rows()
    drawing.write(rows, output, array, table)
    files = {"output": output, "npy": array, "csv": table}
    for file in filter(None, files.values()):
        say(f"wrote {file}")
    return {
        "samples": sum(len(row) for row in rows.values()),
        "kind": kind,
        "rows": [label for label in rows if label],
        "seed": seed,
        "draw": drawing.draw,
        **drawing.about,
        **{name: None if file is None else str(file) for name, file in files.items()},
    }


def chosen(figures: dict[str, bool]) -> str:
    """The requested figure; "prior" if none is requested."""
    names = [name for name, selected in figures.items() if selected]
    if len(names) > 1:
        raise MemgenError(f"--{names[0]} and --{names[1]} exclude each other; ask for one")
    return names[0] if names else "prior"


def check_images(images: tuple[int, ...], interpolate: bool) -> None:
    if images and not interpolate:
        raise MemgenError(f"the image number {images[0]} goes with --interpolate only")
    if len(images) not in (0, 2):
        raise MemgenError("give two images, as in --interpolate 3 8, or none")


def check_table(table: Path | None, kind: str) -> None:
    if table is not None and kind not in ("prior", "where"):
        raise MemgenError(f"--csv is for new rows, and --{kind} is a figure; ask for one of them")
