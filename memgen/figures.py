"""Tensors in, pictures out."""

from __future__ import annotations

import math

import numpy as np
from jaxtyping import Float
from PIL import Image
from torch import Tensor

GAP = 1
"""Pixels between the images of a grid, before it is enlarged."""
WIDTH = 640
"""A grid is enlarged, in whole steps, to about this many pixels."""
PAPER = 255


def grid(x: Float[Tensor, "N D"], shape: tuple[int, ...], columns: int | None = None) -> Image.Image:
    """N grey images as a grid, row by row; values in [0, 1], 0 black. `columns` defaults to a square.

    >>> import torch
    >>> grid(torch.rand(6, 64), (8, 8), columns=3).size
    (616, 418)
    """
    height, width = shape
    columns = columns or math.ceil(math.sqrt(len(x)))
    rows = math.ceil(len(x) / columns)
    canvas = np.full((rows * (height + GAP) + GAP, columns * (width + GAP) + GAP), PAPER, np.uint8)
    pixels = np.round(x.clamp(0, 1).numpy() * 255).astype(np.uint8).reshape(-1, height, width)
    for i, image in enumerate(pixels):
        top, left = i // columns * (height + GAP) + GAP, i % columns * (width + GAP) + GAP
        canvas[top : top + height, left : left + width] = image
    factor = max(1, WIDTH // canvas.shape[1])
    return Image.fromarray(canvas.repeat(factor, 0).repeat(factor, 1))
