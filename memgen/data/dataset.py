"""Dataset: rows, how they are split, and how they are to be read.

Training, statistics and evaluation read a split by index, as `Rows` (core/batch.py): `len(split)`, and
`split.rows(index)`, a Batch with what is observed and with labels. A data set in memory gives them one large Batch.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from jaxtyping import Float, Int, Real, Shaped
from numpy.typing import NDArray
from torch import Tensor

from memgen.core.batch import UNKNOWN, Batch, Rows
from memgen.core.noise import BINARISATION_SEED, binarise
from memgen.data.columns import Columns
from memgen.errors import MemgenError, unknown

SPLITS = ("train", "valid", "test")


@dataclass(frozen=True)
class Dataset:
    """Rows (N, D), split once and for all; NaN where a value is missing.

    With `stochastic` the values are grey levels in [0, 1], read as probabilities: training binarises them anew each
    epoch, evaluation once (`fixed`).

    >>> data = Dataset("coins", train=torch.rand(6, 3), test=torch.rand(2, 3), stochastic=True)
    >>> len(data.split("train")), data.split("train").rows(slice(2)).x.shape, data.fixed("test").x.unique()
    (6, torch.Size([2, 3]), tensor([0., 1.]))
    """

    name: str
    train: Real[Tensor, "train columns"] = field(repr=False)
    valid: Real[Tensor, "valid columns"] | None = field(default=None, repr=False)
    test: Real[Tensor, "test columns"] | None = field(default=None, repr=False)
    shape: tuple[int, ...] = ()
    """Height and width of an image, and 3 where it has colours; () for a table."""
    likelihood: str = "bernoulli"
    stochastic: bool = False
    labels: dict[str, Int[Tensor, " rows"]] = field(default_factory=dict, repr=False)
    """Per split, where the rows have classes."""
    scale: str = "as given"
    """How the stored values became the values of x."""
    levels: int = 255
    """What a pixel of an image was divided by."""
    classes: tuple[str, ...] = ()
    """The name of each label, where they have names."""
    columns: Columns | None = None
    """The schema of a table, which decodes x to the user's values."""

    @staticmethod
    def of(batch: Batch) -> Dataset:
        """Rows to train on alone."""
        return Dataset("rows", batch.values, labels={} if batch.label is None else {"train": batch.label})

    def split(self, name: str) -> Rows:
        """The rows of "train", "valid", "test" or "train+valid", with their labels, to be read by index."""
        return Batch.of(self.rows(name), self._label(name))

    def _label(self, name: str) -> Int[Tensor, " rows"] | None:
        parts = [part for part in name.split("+") if getattr(self, part) is not None]
        if not any(part in self.labels for part in parts):
            return None
        unknown = {part: torch.full((len(getattr(self, part)),), UNKNOWN) for part in parts}
        return torch.cat([self.labels.get(part, unknown[part]) for part in parts])

    def rows(self, split: str) -> Float[Tensor, "rows columns"]:
        """The values of a split, all at once; NaN where one is missing."""
        if split == "train+valid":
            return self.rows("train") if self.valid is None else torch.cat([self.rows("train"), self.rows("valid")])
        if split not in SPLITS:
            raise unknown("split", split, (*SPLITS, "train+valid"))
        rows = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        if rows is None:
            raise MemgenError(f"the data set {self.name} has no {split} rows")
        return rows.float()

    def fixed(self, split: str, limit: int | None = None) -> Batch:
        """The (first) rows as they are scored: grey levels that stand for probabilities are binarised, once.

        >>> Dataset("incomplete", torch.tensor([[1.0, torch.nan]]), stochastic=True).fixed("train").values
        tensor([[1., nan]])
        """
        rows, label = self.rows(split)[:limit], self._label(split)
        x = binarise(rows.nan_to_num(0)).where(~rows.isnan(), torch.nan) if self.stochastic else rows
        return Batch.of(x, None if label is None else label[:limit])

    @property
    def binarisation(self) -> str:
        """In words, for reports."""
        if self.stochastic:
            return f"binarised once, numpy RandomState({BINARISATION_SEED})"
        return "binary as published" if self.scale == "0/1" else "not binarised"


def tensor(values: Shaped[NDArray[np.uint8], "rows columns"], levels: int = 1) -> Float[Tensor, "rows columns"]:
    """Stored bytes as float32, divided by `levels`."""
    return torch.from_numpy((values / np.float64(levels)).astype(np.float32))


def labels(values: Shaped[NDArray[np.generic], " rows"]) -> Int[Tensor, " rows"]:
    return torch.from_numpy(values.astype(np.int64))
