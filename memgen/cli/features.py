"""`memgen features`"""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import FILE, data_option, device_option, overwrite_option, run_argument
from memgen.cli.output import check_output


@click.command(
    "features",
    cls=Command,
    epilog=examples(
        "memgen features runs/mnist -o features.npz", "memgen features runs/mnist --data mnist-255 -o features.npz"
    ),
)
@run_argument
@data_option
@click.option("-o", "output", type=FILE, default=Path("features.npz"), metavar="FILE.npz", help="Default features.npz.")
@overwrite_option("FILE.npz")
@device_option
def command(path: Path, data: str | None, output: Path, overwrite: bool, device: str) -> dict[str, Any]:
    """Write features of every row: the mean of q(z|x) and the last deterministic layer of Q.

    Labels stand beside them, where the data have any.
    """
    check_output(output, ".npz", overwrite)

    import numpy as np
    from tabulate import tabulate

    from memgen.cli.reading import data_for
    from memgen.data.dataset import SPLITS
    from memgen.data.output import write_atomically
    from memgen.runs.run import read_model
    from memgen.runs.session import choose_device
    from memgen.tasks.features import features

    saved = read_model(path, choose_device(device))
    rows = data_for(saved, data)
    arrays: dict[str, Any] = {}
    for split in SPLITS:
        if split != "train" and getattr(rows, split) is None:
            continue
        extracted = features(saved.model, rows.split(split))
        arrays |= {f"{split}_mean": extracted.mean.numpy(), f"{split}_last": extracted.last.numpy()}
        if split in rows.labels:
            arrays[f"{split}_labels"] = rows.labels[split].numpy()
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomically(output, content.getvalue())
    shapes = {name: list(array.shape) for name, array in arrays.items()}
    say(tabulate([(name, " x ".join(f"{n:,}" for n in shape)) for name, shape in shapes.items()], tablefmt="plain"))
    say(f"wrote {output}")
    return {"output": str(output), "arrays": shapes}
