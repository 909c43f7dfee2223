"""The units of columns, from training rows that arrive in parts: they need not be in memory all at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

Parts = Callable[[], Iterable[Float[Tensor, "rows columns"]]]
"""Gives all rows, some at a time, in the same order at each call."""
Measure = Callable[[Tensor], tuple[Tensor, ...]]


class Unit(NamedTuple):
    """Of each column, without missing values."""

    known: Float[Tensor, " columns"]
    """The number of values."""
    mean: Float[Tensor, " columns"]
    """0 for a column without values."""
    deviation: Float[Tensor, " columns"]
    """The standard deviation; 1 for a constant column."""


def units(measure: Measure, parts: Parts) -> list[Unit]:
    """The units of each quantity that `measure` gives for rows, in two passes and in float64.

    >>> rows = torch.tensor([[1.0, 7.0], [3.0, 7.0], [torch.nan, 7.0]])
    >>> (unit,) = units(lambda x: (x,), lambda: rows.split(2))
    >>> unit.mean, unit.deviation
    (tensor([2., 7.], dtype=torch.float64), tensor([1., 1.], dtype=torch.float64))
    """
    sums = _sums(lambda i, v: torch.stack([(~v.isnan()).sum(0).double(), v.nansum(0)]), measure, parts)
    means = [(total / count).nan_to_num(0.0) for count, total in sums]
    squares = _sums(lambda i, v: (v - means[i]).square().nansum(0), measure, parts)
    return [
        Unit(count, mean, _deviation((square / count).sqrt(), mean))
        for (count, _), mean, square in zip(sums, means, squares, strict=True)
    ]


def _sums(term: Callable[[int, Tensor], Tensor], measure: Measure, parts: Parts) -> list[Tensor]:
    """The sum over all parts of a term of each quantity, of which it gets the place and the values in float64."""
    total: list[Tensor] = []
    for part in parts():
        terms = [term(i, values.double()) for i, values in enumerate(measure(part))]
        total = [a + b for a, b in zip(total, terms, strict=True)] if total else terms
    return total


def _deviation(deviation: Float[Tensor, " columns"], mean: Float[Tensor, " columns"]) -> Float[Tensor, " columns"]:
    """A deviation below the precision of float32, relative to the mean, counts as zero, and is replaced by 1."""
    return torch.where(deviation > 1e-7 * mean.abs(), deviation, 1.0)
