"""The rows that all candidates get."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import cycle

import torch
from jaxtyping import Float, Real
from torch import Tensor

from memgen.data import dataset, source

ROWS = 1000
COLUMNS = 784


def rows() -> tuple[Float[Tensor, "N D"], str]:
    """Grey levels in [0, 1] and what they are: MNIST where its files are on this machine, else a stand-in."""
    if source("mnist").find() is not None:
        return dataset("mnist").rows("train")[:ROWS], f"the first {ROWS:,} training images of MNIST"
    return stand_in(), "a seeded random stand-in for MNIST, which is not on this machine (memgen data fetch mnist)"


def stand_in() -> Float[Tensor, "N D"]:
    """Mostly dark, as MNIST is."""
    return torch.rand(ROWS, COLUMNS, generator=torch.Generator().manual_seed(0)) ** 4


def batches(rows: Real[Tensor, "N D"], size: int) -> Iterator[Real[Tensor, "B D"]]:
    """Batches without end, in order; rows are used again where there are too few for one."""
    repeated = rows.repeat(-(-size // len(rows)), 1)
    return cycle(repeated[: len(repeated) // size * size].split(size))
