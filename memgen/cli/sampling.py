"""`memgen sample`: from the prior, and from given images: reconstructions, interpolations, a walk."""

from __future__ import annotations

import argparse
import io
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from memgen.cli.common import check_output, require_images, say
from memgen.cli.reading import data_for
from memgen.core.batch import Batch
from memgen.data.columns import Columns
from memgen.data.output import write_atomically
from memgen.data.texts import as_values, csv_text
from memgen.errors import MemgenError
from memgen.report.figures import grid
from memgen.report.figures.images import image_rows
from memgen.runs.run import Saved, read_model, write_png
from memgen.runs.session import choose_device
from memgen.tasks.sampling import interpolate, reconstruct, walk
from memgen.tasks.sampling import sample as draw_samples

WAYS = ("interpolate", "reconstruct", "walk", "both")
COLUMNS = 10
"""Images in a row of the figures that stand beside data."""
RADII = (1.0, 2.0, 4.0)


def sample(options: argparse.Namespace) -> dict[str, Any]:
    chosen = [way for way in WAYS if getattr(options, way) is not None and getattr(options, way) is not False]
    if len(chosen) > 1:
        raise MemgenError(f"--{chosen[0]} and --{chosen[1]} are two figures; ask for one")
    check_csv(options, chosen)
    saved = read_model(options.path, choose_device(options.device))
    output = options.output or (None if options.npy or options.csv else Path("samples.png"))
    arrays = None if options.npy is None else Path(options.npy or (output or Path("samples.png")).with_suffix(".npy"))
    check_output(output, ".png")
    check_output(arrays, ".npy", options.overwrite)
    schema = saved.form.columns
    if options.csv is not None and schema is None:
        raise MemgenError("--csv is for models of tables, and this one was trained on other data; use --npy")
    shape = require_images(saved) if output is not None else ()
    if schema is not None:
        options.draw = True  # a mean of categories is none of them
    rows = {"": draws(options, saved)} if not chosen else FIGURES[chosen[0]](options, saved)
    if output is not None and not chosen:
        write_png(output, grid(rows[""], shape))
    elif output is not None:
        write_atomically(output, image_rows(output.stem, "", rows, shape).png)
    if arrays is not None:
        content = io.BytesIO()
        np.save(content, as_array(torch.cat(list(rows.values())), schema), allow_pickle=False)
        write_atomically(arrays, content.getvalue())
    if options.csv is not None and schema is not None:
        write_atomically(options.csv, csv_text(schema, rows[""].numpy()).encode())
    for path in (output, arrays, options.csv):
        if path is not None:
            say(options, f"wrote {path}")
    return {
        "samples": sum(len(row) for row in rows.values()),
        "kind": chosen[0] if chosen else "prior",
        "rows": [label for label in rows if label],
        "seed": options.seed,
        "draw": options.draw,
        "output": None if output is None else str(output),
        "npy": None if arrays is None else str(arrays),
        "csv": None if options.csv is None else str(options.csv),
    }


def check_csv(options: argparse.Namespace, chosen: list[str]) -> None:
    """Before a model is read."""
    if options.csv is None:
        return
    if chosen:
        raise MemgenError(f"--csv is for new rows, and --{chosen[0]} is a figure; ask for one of them")
    check_output(options.csv, ".csv", options.overwrite)


def as_array(x: Float[Tensor, "n D"], schema: Columns | None) -> NDArray[Any]:
    """Rows of numbers; of a table in the user's values."""
    if schema is None:
        return x.numpy()
    for column in schema:
        if column.levels and isinstance(column.levels[0], str):
            raise MemgenError(f"column {column.name!r} holds text, which an array cannot; ask for --csv FILE.csv")
    return np.stack(as_values(schema, x.numpy()), 1).astype(np.float64)


def draws(options: argparse.Namespace, saved: Saved) -> Float[Tensor, "n D"]:
    return draw_samples(saved.model, options.n, seed=options.seed, draw=options.draw, hold=options.hold)


def given(options: argparse.Namespace, saved: Saved, n: int) -> Float[Tensor, "n D"]:
    """The first n images of a split, grey: nothing is picked."""
    return data_for(saved, options.data, options.split).rows(options.split)[:n]


def both(options: argparse.Namespace, saved: Saved) -> dict[str, Tensor]:
    """Means of p(x|z) and draws from it, of the same z."""
    n = min(options.n, 2 * COLUMNS)
    shared = {"seed": options.seed, "hold": options.hold}
    means, drawn = (draw_samples(saved.model, n, draw=draw, **shared) for draw in (False, True))
    return paired(means, drawn, "mean", "draw")


def reconstructed(options: argparse.Namespace, saved: Saved) -> dict[str, Tensor]:
    x = given(options, saved, min(options.n, 4 * COLUMNS))
    return paired(x, reconstruct(saved.model, Batch.of(x)), "data", "reconstruction")


def paired(a: Float[Tensor, "n D"], b: Float[Tensor, "n D"], first: str, second: str) -> dict[str, Tensor]:
    """Rows of the one above rows of the other."""
    rows = {}
    for i, (top, below) in enumerate(zip(a.split(COLUMNS), b.split(COLUMNS), strict=True)):
        rows[first + " " * i] = top  # labels are keys: blanks keep them apart
        rows[second + " " * i] = below
    return rows


def interpolated(options: argparse.Namespace, saved: Saved) -> dict[str, Tensor]:
    """Between images I and J, or between the first ones, two by two."""
    if options.interpolate:
        pairs = [picked(options, saved, options.interpolate)]
    else:
        x = given(options, saved, 12)
        pairs = [(2 * i, x[2 * i], x[2 * i + 1]) for i in range(len(x) // 2)]
    rows = {}
    for first, a, b in pairs:
        between = interpolate(saved.model, Batch.of(a[None]), Batch.of(b[None]), COLUMNS - 2)[0]
        label = (
            f"{options.interpolate[0]} to {options.interpolate[1]}"
            if options.interpolate
            else f"{first} to {first + 1}"
        )
        rows[label] = torch.cat([a[None], between, b[None]])
    return rows


def picked(options: argparse.Namespace, saved: Saved, indices: list[int]) -> tuple[int, Tensor, Tensor]:
    x = data_for(saved, options.data, options.split).rows(options.split)
    for index in indices:
        if index >= len(x):
            raise MemgenError(f"there is no image {index}: the {options.split} split has {len(x):,}, counted from 0")
    return indices[0], x[indices[0]], x[indices[-1]]


def walked(options: argparse.Namespace, saved: Saved) -> dict[str, Tensor]:
    _, x, _ = picked(options, saved, [options.walk])
    circles = walk(saved.model, Batch.of(x[None]), COLUMNS, RADII, seed=options.seed)
    start = {"image, reconstruction": torch.cat([x[None], reconstruct(saved.model, Batch.of(x[None]))])}
    return start | {f"radius {radius:g}": row for radius, row in zip(RADII, circles, strict=True)}


FIGURES = {"interpolate": interpolated, "reconstruct": reconstructed, "walk": walked, "both": both}
