"""Patterns of missing values: those of the paper and related ones, with a seed."""

from __future__ import annotations

import re

import numpy as np
import torch
from jaxtyping import Bool
from torch import Tensor

from memgen.core.noise import Purpose, stream
from memgen.errors import MemgenError

PATTERNS = "rect-N, rand-P, half (the left one), half-left, half-right, half-top, half-bottom"


def missing_entries(
    pattern: str, shape: tuple[int, ...], columns: int, rows: int, *, seed: int = 0
) -> Bool[Tensor, "rows columns"]:
    """True where a value is missing. `shape` is the height and width of an image, () for a table; a third entry is the
    number of channels; a missing pixel is missing in all of them.

    rect-N: a centred square of N x N pixels; rand-P: each entry with probability P; half: the left half of the image.
    The mask of row i depends neither on the number of rows nor on the model.

    >>> missing_entries("rect-12", (28, 28), 784, 1).view(28, 28).nonzero().aminmax(dim=0).max
    tensor([19, 19])
    """
    if len(shape) == 3:
        pixels = missing_entries(pattern, shape[:2], columns // shape[2], rows, seed=seed)
        return pixels.repeat_interleave(shape[2], 1)
    kind, _, number = pattern.partition("-")
    if kind == "rand" and number:
        p = _probability(pattern, number)
        uniform = np.random.RandomState(stream(seed, Purpose.MASKS)).random_sample((rows, columns))
        return torch.from_numpy(uniform < p)
    if kind == "rect" and re.fullmatch("[0-9]{1,9}", number):
        return _image(_rect(int(number), _two(shape, pattern)), rows)
    if kind == "half" and number in ("", "left", "right", "top", "bottom"):
        return _image(_half(number or "left", _two(shape, pattern)), rows)
    raise MemgenError(f"unknown pattern {pattern!r}. Choices: {PATTERNS}")


def _probability(pattern: str, number: str) -> float:
    try:
        p = float(number)
    except ValueError:
        p = -1.0
    if not 0 < p < 1:
        raise MemgenError(f"{pattern}: the probability of a missing value must lie between 0 and 1, as in rand-0.6")
    return p


def _two(shape: tuple[int, ...], pattern: str) -> tuple[int, int]:
    if len(shape) != 2:
        raise MemgenError(f"{pattern} is a pattern for images, and these rows are none; use rand-P, as in rand-0.3")
    return shape[0], shape[1]


def _rect(side: int, shape: tuple[int, int]) -> Bool[Tensor, "height width"]:
    height, width = shape
    if not 1 <= side <= min(shape):
        raise MemgenError(f"rect-{side} does not fit into images of {height} x {width}; use 1 to {min(shape)}")
    mask = torch.zeros(shape, dtype=torch.bool)
    top, left = (height - side) // 2, (width - side) // 2
    mask[top : top + side, left : left + side] = True
    return mask


def _half(side: str, shape: tuple[int, int]) -> Bool[Tensor, "height width"]:
    height, width = shape
    part = {
        "left": (slice(None), slice(0, width // 2)),
        "right": (slice(None), slice(width - width // 2, None)),
        "top": (slice(0, height // 2), slice(None)),
        "bottom": (slice(height - height // 2, None), slice(None)),
    }[side]
    mask = torch.zeros(shape, dtype=torch.bool)
    mask[part] = True
    return mask


def _image(mask: Bool[Tensor, "height width"], rows: int) -> Bool[Tensor, "rows columns"]:
    return mask.flatten().expand(rows, -1)


def scaled_patterns(shape: tuple[int, ...]) -> tuple[str, ...]:
    """The paper's three patterns, RECT-12, RAND-0.6 and HALF of 28 x 28 pixels, for images of any size.

    >>> scaled_patterns((28, 28)), scaled_patterns((8, 8))
    (('rect-12', 'rand-0.6', 'half'), ('rect-3', 'rand-0.6', 'half'))
    """
    if not shape:
        return ("rand-0.3", "rand-0.6")
    return (f"rect-{max(1, round(min(shape[:2]) * 12 / 28))}", "rand-0.6", "half")
