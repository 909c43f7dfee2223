"""The input of a model: rows, the mask of their observed entries, and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int, Int64, Real, Shaped
from numpy.typing import NDArray
from torch import Tensor

UNKNOWN = -1
"""The label of a row whose class is not known."""

Index = slice | Int[Tensor, " chosen"]
"""A slice of rows, or the numbers of chosen rows."""


@runtime_checkable
class Rows(Protocol):
    """Rows that are read by index: a `Batch` in memory, or a data set of any size."""

    def __len__(self) -> int: ...

    def rows(self, index: Index) -> Batch: ...


@runtime_checkable
class BlockRows(Rows, Protocol):
    """Rows of a file, of which a bounded number is in memory. Neighbouring rows are read together, as a block."""

    @property
    def bounds(self) -> Int64[NDArray[np.int64], " ends"]:
        """The first row of each block, and the number of all rows."""
        ...

    @property
    def window(self) -> int:
        """The number of blocks whose rows are shuffled together."""
        ...


@dataclass(frozen=True)
class Batch:
    """Rows for a model.

    >>> batch = Batch.of(torch.tensor([[0.0, torch.nan], [1.0, 1.0]]), label=torch.tensor([3, UNKNOWN]))
    >>> len(batch), batch.observed, batch.rows(slice(1)).label
    (2, tensor([[ True, False],
            [ True,  True]]), tensor([3]))
    """

    x: Float[Tensor, "B D"]
    observed: Bool[Tensor, "B D"] | None = None
    """The entries of x that are observed; all other entries may have any value, also NaN. None: all are observed."""
    label: Int[Tensor, " B"] | None = None
    """The class of each row, or `UNKNOWN`. None: all are unknown."""

    @staticmethod
    def of(
        x: Real[Tensor, "B D"] | Real[NDArray[Any], "B D"],
        label: Int[Tensor, " B"] | Shaped[NDArray[Any], " B"] | None = None,
    ) -> Batch:
        """A batch of rows in which NaN stands for a missing value."""
        x = torch.as_tensor(x)
        x = x if x.is_floating_point() else x.float()
        missing = x.isnan()
        return Batch(x, ~missing if bool(missing.any()) else None, None if label is None else torch.as_tensor(label))

    @staticmethod
    def unobserved(B: int, D: int, label: Int[Tensor, " B"] | None = None) -> Batch:
        """Rows with labels but without observed entries, from which samples are drawn."""
        return Batch(torch.zeros(B, D), torch.zeros(B, D, dtype=torch.bool), label)

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: Index) -> Batch:
        """The rows at `index`."""
        observed, label = self.observed, self.label
        return Batch(
            self.x[index], None if observed is None else observed[index], None if label is None else label[index]
        )

    def to(self, like: Tensor) -> Batch:
        """The batch on the device of `like`, with x in its precision."""
        observed, label = self.observed, self.label
        return Batch(
            self.x.to(like),
            None if observed is None else observed.to(like.device),
            None if label is None else label.to(like.device),
        )

    @property
    def values(self) -> Float[Tensor, "B D"]:
        """x, with NaN for the entries that are not observed."""
        return self.x if self.observed is None else self.x.where(self.observed, torch.nan)


CELLS = 1 << 24
"""The most values that a pass over all rows reads at a time."""


def pieces(rows: Rows) -> list[slice]:
    """Slices of at most CELLS values, and of at least one row, that cover all rows.

    >>> len(pieces(Batch(torch.zeros(3, 1).expand(3, CELLS // 2))))
    2
    """
    if not len(rows):
        return []
    return chunks(rows, max(1, CELLS // max(1, rows.rows(slice(1)).x.shape[1])))


def chunks(rows: Rows, size: int, first: int = 0, stop: int | None = None) -> list[slice]:
    """Slices of at most `size` rows that cover all rows from `first` on, up to `stop`."""
    stop = len(rows) if stop is None else stop
    return [slice(start, min(start + size, stop)) for start in range(first, stop, size)]
