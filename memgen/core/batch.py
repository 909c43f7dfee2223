"""What goes into a model: rows, which of their entries are observed, and their labels."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int, Real, Shaped
from numpy.typing import NDArray
from torch import Tensor

UNKNOWN = -1
"""The label of a row whose class is not known."""

Index = slice | Int[Tensor, " chosen"]
"""Which rows: a slice, or their numbers."""


@runtime_checkable
class Rows(Protocol):
    """Rows that are read by index. A `Batch` is the one in memory; a data set of any size can be another."""

    def __len__(self) -> int: ...

    def rows(self, index: Index) -> Batch: ...


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
    """Which entries of x count; the others may hold anything, NaN too. None: all."""
    label: Int[Tensor, " B"] | None = None
    """The class of each row, `UNKNOWN` where it has none. None: all are unknown."""

    @staticmethod
    def of(
        x: Real[Tensor, "B D"] | Real[NDArray[Any], "B D"],
        label: Int[Tensor, " B"] | Shaped[NDArray[Any], " B"] | None = None,
    ) -> Batch:
        """Rows in which NaN stands for a missing entry."""
        x = torch.as_tensor(x)
        x = x if x.is_floating_point() else x.float()
        missing = x.isnan()
        return Batch(x, ~missing if bool(missing.any()) else None, None if label is None else torch.as_tensor(label))

    @staticmethod
    def unobserved(B: int, D: int, label: Int[Tensor, " B"] | None = None) -> Batch:
        """Rows of which nothing is known but their labels, to draw them."""
        return Batch(torch.zeros(B, D), torch.zeros(B, D, dtype=torch.bool), label)

    def __len__(self) -> int:
        return len(self.x)

    def rows(self, index: Index) -> Batch:
        """Some of the rows."""
        observed, label = self.observed, self.label
        return Batch(
            self.x[index], None if observed is None else observed[index], None if label is None else label[index]
        )

    def to(self, like: Tensor) -> Batch:
        """On the device of another tensor, x in its precision."""
        observed, label = self.observed, self.label
        return Batch(
            self.x.to(like),
            None if observed is None else observed.to(like.device),
            None if label is None else label.to(like.device),
        )

    @property
    def values(self) -> Float[Tensor, "B D"]:
        """x, with NaN wherever an entry is not observed."""
        return self.x if self.observed is None else self.x.where(self.observed, torch.nan)


def chunks(rows: Rows, size: int, first: int = 0) -> list[slice]:
    """Slices of so many rows that cover all from `first` on."""
    return [slice(start, min(start + size, len(rows))) for start in range(first, len(rows), size)]
