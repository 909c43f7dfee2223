"""The rows that all candidates get."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle
from typing import NamedTuple

import torch
from jaxtyping import Float, Real
from torch import Tensor

from memgen.data import dataset, source

ROWS = 1000
COLUMNS = 784


class Rows(NamedTuple):
    """Grey levels in [0, 1], what is trained on and what is scored, and in words what they are."""

    train: Float[Tensor, "N D"]
    test: Float[Tensor, "N D"]
    what: str


def rows() -> Rows:
    """MNIST where its files are on this machine, else a stand-in."""
    if source("mnist").find() is not None:
        train, test = (dataset("mnist").rows(split)[:ROWS] for split in ("train", "test"))
        return Rows(train, test, f"the first {ROWS:,} training and test images of MNIST")
    what = "a seeded random stand-in for MNIST, which is not on this machine (memgen data fetch mnist)"
    return Rows(stand_in(), stand_in(seed=1), what)


def stand_in(seed: int = 0) -> Float[Tensor, "N D"]:
    """Mostly dark, as MNIST is."""
    return torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(seed)) ** 4


def batches(rows: Real[Tensor, "N D"], size: int) -> Iterator[Real[Tensor, "B D"]]:
    """Batches without end, in order; rows are used again where there are too few for one."""
    repeated = rows.repeat(-(-size // len(rows)), 1)
    return cycle(repeated[: len(repeated) // size * size].split(size))
