"""The rows of `memgen sample`, from the prior or from given images, and the files to which they are written."""

from __future__ import annotations

import io
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Float
from numpy.typing import NDArray
from torch import Tensor

from memgen.cli.command import say
from memgen.cli.reading import data_for, image_shape, require_images
from memgen.core.batch import Batch
from memgen.data.columns import Columns
from memgen.data.conditions import given, given_texts, has_density, parse_conditions, places
from memgen.data.kinds import DATED
from memgen.data.output import write_atomically
from memgen.data.texts import csv_text
from memgen.errors import MemgenError
from memgen.report.figures import grid
from memgen.report.figures.images import image_rows
from memgen.report.figures.png import write_png
from memgen.runs.modelfile import Saved
from memgen.runs.progress import Progress
from memgen.tasks.conditional import conditional_sample
from memgen.tasks.sampling import interpolate, reconstruct, sample, walk

COLUMNS = 10
"""Number of images in a row of figures that compare with data."""
RADII = (1.0, 2.0, 4.0)


class Wishes(NamedTuple):
    """The options of `memgen sample`."""

    kind: str
    """prior, both, reconstruct, interpolate, walk or where."""
    n: int
    draw: bool
    hold: int
    seed: int
    images: tuple[int, ...]
    """Indices of images of the data, for interpolate and walk."""
    data: str | None
    split: str
    conditions: tuple[str, ...] = ()
    """On columns, for where."""


@dataclass(frozen=True)
class Drawing:
    """Draws from one model."""

    saved: Saved
    wishes: Wishes
    about: dict[str, Any] = field(default_factory=dict)
    """Numbers about the draws, for --json."""

    @property
    def schema(self) -> Columns | None:
        return self.saved.form.columns

    @property
    def draw(self) -> bool:
        """Whether x is drawn from p(x|z). Rows of a table always are: a mean of categories is no category."""
        return self.wishes.draw or self.schema is not None

    def check(self, output: Path | None, table: Path | None) -> None:
        """Refuse kinds of files that do not fit this model."""
        if self.wishes.conditions and self.schema is None:
            raise MemgenError("--where is for models of tables, and this one was trained on other data")
        if table is not None and self.schema is None:
            raise MemgenError("--csv is for models of tables, and this one was trained on other data; use --npy")
        if output is not None:
            require_images(self.saved)

    def rows(self) -> dict[str, Tensor]:
        """Label -> rows."""
        return KINDS[self.wishes.kind](self)

    def write(self, rows: dict[str, Tensor], output: Path | None, array: Path | None, table: Path | None) -> None:
        if output is not None and self.wishes.kind == "prior":
            write_png(output, grid(rows[""], image_shape(self.saved)))
        elif output is not None:
            write_atomically(output, image_rows(output.stem, "", rows, image_shape(self.saved)).png)
        if array is not None:
            content = io.BytesIO()
            np.save(content, as_array(torch.cat(list(rows.values())), self.schema), allow_pickle=False)
            write_atomically(array, content.getvalue())
        if table is not None and self.schema is not None:
            conditions = parse_conditions(self.wishes.conditions, self.schema)
            texts, free = given_texts(self.schema, conditions), places(self.schema, conditions)
            write_atomically(table, csv_text(self.schema, rows[""].numpy(), texts, free).encode())

    def data_rows(self) -> Float[Tensor, "N D"]:
        """The rows of the split, grey."""
        wishes = self.wishes
        return data_for(self.saved, wishes.data, wishes.split).some(wishes.split)

    def pick(self, x: Float[Tensor, "N D"], index: int) -> Float[Tensor, "1 D"]:
        if index >= len(x):
            split = self.wishes.split
            raise MemgenError(f"there is no image {index}: the {split} split has {len(x):,}, counted from 0")
        return x[index : index + 1]


def as_array(x: Float[Tensor, "n D"], schema: Columns | None) -> NDArray[Any]:
    """Rows as an array of numbers; those of a table in the user's values."""
    if schema is None:
        return x.numpy()
    for column in schema:
        if column.textual or column.kind in DATED:
            what = "text" if column.textual else "dates"
            raise MemgenError(f"column {column.name!r} holds {what}, which an array cannot; ask for --csv FILE.csv")
    return np.stack(schema.filled(x.numpy()), 1).astype(np.float64)


def from_prior(drawing: Drawing) -> dict[str, Tensor]:
    wishes = drawing.wishes
    return {"": sample(drawing.saved.model, wishes.n, seed=wishes.seed, draw=drawing.draw, hold=wishes.hold)}


def given_columns(drawing: Drawing) -> dict[str, Tensor]:
    """Draws given some columns."""
    schema, wishes, model = drawing.schema, drawing.wishes, drawing.saved.model
    assert schema is not None
    condition = given(schema, parse_conditions(wishes.conditions, schema))
    with Progress("drawing", 0, "state", brief=True) as progress:
        result = conditional_sample(
            model, condition, wishes.n, seed=wishes.seed, name=schema.names.__getitem__, tick=progress.to
        )
    kind = "log-density" if has_density(schema, condition) else "log-probability"
    say(f"{kind} of the condition: {result.log_p:.2f} nats; {result.states:,} states count as {result.effective:,.0f}")
    drawing.about.update(log_p=result.log_p, states=result.states, effective_states=result.effective)
    return {"": result.x}


def means_and_draws(drawing: Drawing) -> dict[str, Tensor]:
    """Means of p(x|z) and draws from it, of the same z."""
    wishes = drawing.wishes
    n = min(wishes.n, 2 * COLUMNS)
    model, seed, hold = drawing.saved.model, wishes.seed, wishes.hold
    means, draws = (sample(model, n, seed=seed, draw=draw, hold=hold) for draw in (False, True))
    return paired(means, draws, "mean", "draw")


def reconstructed(drawing: Drawing) -> dict[str, Tensor]:
    """The first images and their reconstructions, without selection."""
    x = drawing.data_rows()[: min(drawing.wishes.n, 4 * COLUMNS)]
    return paired(x, reconstruct(drawing.saved.model, Batch.of(x)), "data", "reconstruction")


def paired(a: Float[Tensor, "n D"], b: Float[Tensor, "n D"], first: str, second: str) -> dict[str, Tensor]:
    """Rows of `a` and rows of `b` in turn, one below the other."""
    rows = {}
    for i, (top, below) in enumerate(zip(a.split(COLUMNS), b.split(COLUMNS), strict=True)):
        rows[first + " " * i] = top  # labels are keys: blanks keep them apart
        rows[second + " " * i] = below
    return rows


def interpolated(drawing: Drawing) -> dict[str, Tensor]:
    """Interpolations between images I and J, or between the first pairs of images."""
    x = drawing.data_rows()
    first = range(0, min(12, len(x)) - 1, 2)
    pairs = [drawing.wishes.images] if drawing.wishes.images else [(i, i + 1) for i in first]
    rows = {}
    for i, j in pairs:
        a, b = drawing.pick(x, i), drawing.pick(x, j)
        between = interpolate(drawing.saved.model, Batch.of(a), Batch.of(b), COLUMNS - 2)[0]
        rows[f"{i} to {j}"] = torch.cat([a, between, b])
    return rows


def walked(drawing: Drawing) -> dict[str, Tensor]:
    x, model = drawing.pick(drawing.data_rows(), drawing.wishes.images[0]), drawing.saved.model
    circles = walk(model, Batch.of(x), COLUMNS, RADII, seed=drawing.wishes.seed)
    start = {"image, reconstruction": torch.cat([x, reconstruct(model, Batch.of(x))])}
    return start | {f"radius {radius:g}": row for radius, row in zip(RADII, circles, strict=True)}


KINDS = {
    "prior": from_prior,
    "both": means_and_draws,
    "reconstruct": reconstructed,
    "interpolate": interpolated,
    "walk": walked,
    "where": given_columns,
}
