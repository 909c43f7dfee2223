"""Dataset: rows, how they are split, and how they are to be read.

Training, statistics and evaluation read a split by index, as `Rows` (core/batch.py): `len(split)`, and
`split.rows(index)`, a Batch with what is observed and with labels. A data set in memory gives them one large Batch, a
data set that is read from a file while it is used a `Streamed`.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import torch
from jaxtyping import Float, Int, Real, Shaped
from numpy.typing import NDArray
from torch import Tensor

from memgen.core.batch import UNKNOWN, Batch, Rows
from memgen.core.noise import BINARISATION_SEED, binarise
from memgen.data.columns import Columns
from memgen.data.streamed import Scored, Streamed
from memgen.errors import MemgenError, unknown

SPLITS = ("train", "valid", "test")
MOST = 1 << 26
"""The most values of a data set outside memory that are read at once."""


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
    train: Real[Tensor, "train columns"] | Streamed = field(repr=False)
    valid: Real[Tensor, "valid columns"] | Streamed | None = field(default=None, repr=False)
    test: Real[Tensor, "test columns"] | Streamed | None = field(default=None, repr=False)
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
        streamed = self._streamed(name)
        return Batch.of(self.rows(name), self._label(name)) if streamed is None else streamed

    @property
    def is_streamed(self) -> bool:
        """Whether the rows are read from a file while they are used."""
        return isinstance(self.train, Streamed)

    def _streamed(self, name: str) -> Streamed | None:
        """The split, if its rows are read from a file."""
        if not isinstance(self.train, Streamed):
            return None
        if name == "train+valid":
            valid = 0 if self.valid is None else self.missing("valid")
            return replace(self.train, split=name, missing=self.train.missing + valid)
        rows = self._part(name)
        assert isinstance(rows, Streamed)
        return rows

    def _part(self, split: str) -> Real[Tensor, "rows columns"] | Streamed:
        if split not in SPLITS:
            raise unknown("split", split, (*SPLITS, "train+valid"))
        rows = {"train": self.train, "valid": self.valid, "test": self.test}[split]
        if rows is None:
            raise MemgenError(f"the data set {self.name} has no {split} rows")
        return rows

    def count(self, split: str) -> int:
        """The number of rows."""
        if split == "train+valid":
            return self.count("train") + (0 if self.valid is None else self.count("valid"))
        return len(self._part(split))

    def missing(self, split: str) -> int:
        """The number of missing values."""
        rows = self._part(split)
        return rows.missing if isinstance(rows, Streamed) else int(rows.isnan().sum())

    def _label(self, name: str) -> Int[Tensor, " rows"] | None:
        parts = [part for part in name.split("+") if getattr(self, part) is not None]
        if not any(part in self.labels for part in parts):
            return None
        unknown = {part: torch.full((len(getattr(self, part)),), UNKNOWN) for part in parts}
        return torch.cat([self.labels.get(part, unknown[part]) for part in parts])

    def rows(self, split: str, limit: int | None = None) -> Float[Tensor, "rows columns"]:
        """The values of the (first) rows of a split, all at once; NaN where one is missing."""
        if streamed := self._streamed(split):
            return self._in_memory(Scored(streamed, limit, stochastic=False)).values
        if split == "train+valid" and self.valid is not None:
            return torch.cat([self.rows("train"), self.rows("valid")])[:limit]
        rows = self._part("train" if split == "train+valid" else split)
        assert isinstance(rows, Tensor)
        return rows[:limit].float()

    def some(self, split: str) -> Float[Tensor, "rows columns"]:
        """Rows for figures and scales: all in memory, or of a file the first, as many as MOST values."""
        streamed = self._streamed(split)
        return self.rows(split) if streamed is None else streamed.rows(slice(MOST // streamed.shape[1])).values

    def _in_memory(self, rows: Rows) -> Batch:
        """All of them, if they are few enough."""
        most = MOST // self.train.shape[1]
        if len(rows) > most:
            raise MemgenError(
                f"the rows of {self.name} stay in the file, and this needs {len(rows):,} of them in memory at once, "
                f"which has room for {most:,}: ask for fewer rows (--limit), or give a smaller file (--data)"
            )
        return rows.rows(slice(None))

    def to_score(self, split: str, limit: int | None = None) -> Rows:
        """`fixed`, to be read by index."""
        streamed = self._streamed(split)
        return self.fixed(split, limit) if streamed is None else Scored(streamed, limit, self.stochastic)

    def fixed(self, split: str, limit: int | None = None) -> Batch:
        """The (first) rows as they are scored: grey levels that stand for probabilities are binarised, once.

        >>> Dataset("incomplete", torch.tensor([[1.0, torch.nan]]), stochastic=True).fixed("train").values
        tensor([[1., nan]])
        """
        if self.is_streamed:
            return self._in_memory(self.to_score(split, limit))
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
