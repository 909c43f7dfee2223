"""`memgen train`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples
from memgen.cli.options import FILE, RecipeName, RunPath, Whole, compile_option, device_option


@click.command(
    "train",
    cls=Command,
    epilog=examples(
        "memgen train digits-mem-vae --out runs/digits",
        "memgen train mnist-mem-vae --out runs/mnist --schedule fast --until main",
        "memgen train digits-vae --out runs/short --set training.epochs=10 --set training.seed=1",
        "memgen train my-recipe.toml --out runs/mine",
        "memgen train --data table.csv --out runs/table              your own data: settings by their size",
        "memgen train --data photos --size 32x32 --out runs/photos   a folder of images, made 32 x 32",
        "memgen train digits-mem-vae --data scans.npz --out runs/scans",
        "memgen train --resume --out runs/mnist",
        "torchrun --nproc-per-node 2 -m memgen train mnist-mem-iwae-50 --resume --out runs/k50   two processes",
        "OMP_NUM_THREADS=1 memgen train ...      beside other work on the same cores: much faster then",
    ),
)
@click.argument("recipe", required=False, metavar="[RECIPE]", type=RecipeName())
@click.option("--out", type=FILE, required=True, metavar="RUN", help="The run folder.")
@click.option(
    "--data",
    metavar="PATH|NAME",
    help="Your own data: a table (.csv, .tsv, .parquet, .feather, .xlsx), an array (.npy, .npz, idx), or a folder of "
    "tables or images; or a data set's name.",
)
@click.option("--size", metavar="HxW", help="Make your images this size, as in 28x28: cropped, then resized.")
@click.option(
    "--levels",
    type=click.IntRange(1, 255),
    metavar="N",
    help="The largest level of a pixel of your images, as 15 of 4 bits (default: 1 or 255, as the pixels show).",
)
@click.option(
    "--likelihood",
    metavar="NAME",
    help="p(x|z); auto: mixed for tables, bernoulli or discretised_logistic for images.",
)
@click.option(
    "--kind",
    "kinds",
    multiple=True,
    metavar="COLUMN=KIND",
    help="What a column is, where the values do not show it, as in zip=code; may be repeated.",
)
@click.option("--ignore", multiple=True, metavar="COLUMN", help="Leave this column out; may be repeated.")
@click.option(
    "--locale",
    metavar="NAME",
    help="How numbers and dates are written, where the cells do not show it: en-US, en-GB, de-CH, de-DE or fr-FR.",
)
@click.option("--test", metavar="FILE", help="Test rows; all other rows are then for training and validation.")
@click.option(
    "--stream/--no-stream",
    default=None,
    help="Leave the rows in the file and read them while they are used; default: if they take more than 1 GiB.",
)
@click.option("--set", "changes", multiple=True, metavar="KEY=VALUE", help="Change a setting of the recipe.")
@click.option(
    "--start",
    type=RunPath(),
    metavar="RUN",
    help="Begin with the weights of this run, model file or zoo:NAME; stages that led to them are not done again.",
)
@click.option("--schedule", metavar="NAME", help="How to train, if not as the recipe says (memgen recipes).")
@click.option("--until", metavar="STAGE", help="Stop after this stage; --resume goes on.")
@click.option("--resume", is_flag=True, help="Go on with the run in RUN.")
@click.option(
    "--checkpoint-every",
    type=Whole(0),
    default=120,
    metavar="SECONDS",
    help="Time between checkpoints (default 120).",
)
@click.option("--tensorboard", is_flag=True, help="Also write metrics for TensorBoard into RUN/tensorboard.")
@click.option(
    "--timeout",
    type=Whole(1),
    default=600,
    metavar="SECONDS",
    help="With torchrun: how long a rank waits for the others (default 600).",
)
@compile_option
@device_option
def command(
    recipe: str | None,
    out: Path,
    data: str | None,
    size: str | None,
    levels: int | None,
    likelihood: str | None,
    kinds: tuple[str, ...],
    ignore: tuple[str, ...],
    locale: str | None,
    test: str | None,
    stream: bool | None,
    changes: tuple[str, ...],
    start: Path | None,
    schedule: str | None,
    until: str | None,
    resume: bool,
    checkpoint_every: int,
    tensorboard: bool,
    timeout: int,
    compiled: bool,
    device: str,
) -> dict[str, Any]:
    """Train a model and keep it in a run folder.

    RECIPE is the name of a shipped recipe (memgen recipes), a TOML file, or auto, the default with --data: made from
    the data.

    Ctrl-C saves and stops; --resume goes on, also after a crash, to the very weights that an uninterrupted run would
    have had.
    """
    from memgen.cli.choosing import Wishes
    from memgen.cli.training import train
    from memgen.runs.session import Options

    wishes = Wishes(
        recipe,
        out,
        data,
        size,
        levels,
        likelihood,
        kinds,
        changes,
        start,
        schedule,
        resume,
        ignore,
        locale,
        test,
        stream,
    )
    return train(wishes, Options(device, until, checkpoint_every, compiled, tensorboard, timeout))
