"""Images in grids and rows."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from matplotlib import rc_context
from matplotlib.figure import Figure as Canvas
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from memgen.report.figures.base import STYLE, Figure, canvas

GAP = 1
"""Pixels between the images of a grid, before it is enlarged."""
WIDTH = 640
"""A grid is enlarged, in whole steps, to about this many pixels."""
PAPER = 255
MISSING = (0.34, 0.71, 0.91)
"""Sky blue: the colour of a missing pixel, which no grey level has and few colours."""


def pixels_of(x: Float[Tensor, "N D"], shape: tuple[int, ...]) -> Float64[NDArray[np.float64], "N height width 3"]:
    """Rows of values in [0, 1] as colours: of shape (height, width) in grey, (height, width, 3) as they are; a pixel
    that is missing (NaN) is tinted.

    >>> import torch
    >>> pixels_of(torch.tensor([[0.5, torch.nan]]), (1, 2)).round(2).tolist()
    [[[[0.5, 0.5, 0.5], [0.34, 0.71, 0.91]]]]
    """
    height, width = shape[:2]
    colours = x.double().clamp(0, 1).reshape(-1, height, width, 3 if len(shape) == 3 else 1).expand(-1, -1, -1, 3)
    pixels = colours.numpy().copy()
    pixels[np.isnan(pixels).any(-1)] = MISSING
    return pixels


def grid(x: Float[Tensor, "N D"], shape: tuple[int, ...], columns: int | None = None) -> Image.Image:
    """N images as a grid, row by row; values in [0, 1], 0 black. `columns` defaults to a square.

    >>> import torch
    >>> grid(torch.rand(6, 64), (8, 8), columns=3).size
    (616, 418)
    """
    height, width = shape[:2]
    columns = columns or math.ceil(math.sqrt(len(x)))
    rows = math.ceil(len(x) / columns)
    channels = shape[2:]
    canvas = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP, *channels), PAPER, np.uint8)
    pixels = np.round(x.clamp(0, 1).numpy() * 255).astype(np.uint8).reshape(-1, *shape)
    for i, image in enumerate(pixels):
        top, left = i // columns * (height + GAP) + GAP, i % columns * (width + GAP) + GAP
        canvas[top : top + height, left : left + width] = image
    factor = max(1, WIDTH // canvas.shape[1])
    return Image.fromarray(canvas.repeat(factor, 0).repeat(factor, 1))


def mosaic(
    rows: Sequence[Float[Tensor, "_ D"]], shape: tuple[int, ...], missing: Sequence[Bool[Tensor, "_ D"] | None] = ()
) -> Float64[NDArray[np.float64], "high wide 3"]:
    """Rows of images as one picture, with a thin white line between them. Missing pixels are tinted."""
    height, width = shape[:2]
    columns = max(len(row) for row in rows)
    picture = np.ones((len(rows) * (height + GAP) - GAP, columns * (width + GAP) - GAP, 3))
    for i, row in enumerate(rows):
        hidden = missing[i] if i < len(missing) else None
        pixels = pixels_of(row if hidden is None else row.masked_fill(hidden, torch.nan), shape)
        for j, image in enumerate(pixels):
            top, left = i * (height + GAP), j * (width + GAP)
            picture[top : top + height, left : left + width] = image
    return picture


def image_rows(
    name: str,
    caption: str,
    rows: dict[str, Float[Tensor, "_ D"]],
    shape: tuple[int, ...],
    missing: dict[str, Bool[Tensor, "_ D"]] | None = None,
) -> Figure:
    """Labelled rows of images; pixels of `missing` are tinted. The table holds the pixels."""
    height = shape[0]
    picture = mosaic(list(rows.values()), shape, [(missing or {}).get(label) for label in rows])
    margin = 0.12 + 0.072 * max(len(label.strip()) for label in rows)  # inches, for the longest label
    wide = min(7.2 - margin, 0.5 * max(len(row) for row in rows.values()))
    high = wide * picture.shape[0] / picture.shape[1]
    with rc_context(STYLE):
        drawn = Canvas(figsize=(margin + wide, high))
        axes = drawn.add_axes((margin / (margin + wide), 0, wide / (margin + wide), 1))
        axes.imshow(picture, interpolation="nearest", aspect="auto")
        centres = [i * (height + GAP) + (height - 1) / 2 for i in range(len(rows))]
        axes.set_yticks(centres, [label.strip() for label in rows])
        axes.set_xticks([])
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return Figure(name, caption, drawn, table=pixel_table(rows))


def pixel_table(rows: dict[str, Float[Tensor, "_ D"]]) -> list[dict[str, object]]:
    return [
        {"row": label, "image": i} | {f"x{d}": f"{value:.4g}" for d, value in enumerate(image)}
        for label, images in rows.items()
        for i, image in enumerate(images.tolist())
    ]


def image_grid(name: str, caption: str, x: Float[Tensor, "N D"], shape: tuple[int, ...], columns: int = 8) -> Figure:
    """N images, row by row, without labels."""
    rows = {str(i): row for i, row in enumerate(x.split(columns))}
    picture = mosaic(list(rows.values()), shape)
    with rc_context(STYLE):
        drawn = canvas(4.2, 0.05 + 4.2 * picture.shape[0] / picture.shape[1])
        axes = drawn.subplots()
        axes.imshow(picture, interpolation="nearest")
        axes.set_axis_off()
    return Figure(name, caption, drawn, table=pixel_table({"": x}))


def numbered_images(
    name: str,
    caption: str,
    images: Sequence[Sequence[tuple[str, Float[Tensor, " D"]]]],
    shape: tuple[int, ...],
    labels: Sequence[str],
    heads: Sequence[str] = (),
    table: Sequence[dict[str, object]] = (),
) -> Figure:
    """Rows of images, each with a few words under it; `labels` stand before the rows, `heads` above the columns."""
    height, width = shape[:2]
    columns = max(len(row) for row in images)
    # One picture with room for words below every row: many axes would take seconds to lay out.
    cell = min(0.8, 6.3 / columns)
    pixel = cell / (width + 2)
    room = round(0.17 / pixel)
    picture = np.ones((len(images) * (height + room), columns * (width + 2), 3))
    with rc_context(STYLE):
        drawn = canvas(0.75 + cell * columns, 0.25 + picture.shape[0] * pixel)
        axes = drawn.subplots()
        for i, row in enumerate(images):
            for j, (words, image) in enumerate(row):
                top, left = i * (height + room), j * (width + 2) + 1
                picture[top : top + height, left : left + width] = pixels_of(image[None], shape)[0]
                axes.text(left + (width - 1) / 2, top + height, words, ha="center", va="top", fontsize=7)
        axes.imshow(picture, interpolation="nearest")
        axes.set_yticks([i * (height + room) + (height - 1) / 2 for i in range(len(images))], labels)
        axes.xaxis.tick_top()
        axes.set_xticks([j * (width + 2) + (width + 1) / 2 for j in range(len(heads))], heads)
        axes.tick_params(length=0)
        axes.spines[:].set_visible(False)
    return Figure(name, caption, drawn, table=table)
