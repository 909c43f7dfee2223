"""One pass over the blocks of a table, from which its schema is inferred in bounded memory.

Kinds are inferred by the rules of kinds.py from a sample of every column: rows at equal distances from all blocks, and
of all rows the smallest and the largest number, one between them, and one that is not whole. So what the rules say of
all values (whole, positive, two different numbers, a range) holds for all rows, and the rules about their distribution
are applied to the sample. Levels and means are those of all rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Int, Shaped
from numpy.typing import NDArray

from memgen.data.column import Column, encode_column, infer_column
from memgen.data.kinds import AUTO, LEVELLED
from memgen.data.own_tables import RawTable
from memgen.data.values import LARGEST, Coded, Values, some, tidy
from memgen.errors import MemgenError

SAMPLE = 1 << 22
"""The number of values of the sample, over all columns; at least one row per block."""
MOST_LEVELS = 1 << 16
"""Different values of a column whose kind is given as binary or categorical."""

Chosen = Int[NDArray[np.intp], " _"]


class Numbers:
    """What is gathered of columns of numbers."""

    def __init__(self, names: Sequence[str], given: Sequence[str]) -> None:
        self.names, self.given = names, given
        nothing = np.full(len(names), np.nan)
        self.low, self.high, self.between, self.fraction = nothing, nothing, nothing, nothing
        """The smallest, the largest, one between them, and one that is not whole; NaN where there is none."""
        self.sum, self.count = np.zeros(len(names)), np.zeros(len(names), np.int64)
        """Of training rows."""
        self.sample: list[Float64[NDArray[np.float64], "m columns"]] = []

    def add(self, x: Float64[NDArray[np.float64], "n columns"], sampled: Chosen, train: Chosen) -> None:
        """Add a block, whose rows `sampled` go into the sample."""
        self._check(x)
        low, high = np.fmin.reduce(x, 0), np.fmax.reduce(x, 0)
        ends = np.stack([self.low, self.high, low, high])
        self.low, self.high = np.fmin(self.low, low), np.fmax(self.high, high)
        if np.isnan(self.between).any():
            candidates = np.concatenate([x, ends])
            inside = np.where((candidates > self.low) & (candidates < self.high), candidates, np.nan)
            self.between = np.fmax(self.between, np.fmax.reduce(inside, 0))
        if np.isnan(self.fraction).any():
            self.fraction = np.fmax(self.fraction, np.fmax.reduce(np.where(x == np.floor(x), np.nan, x), 0))
        self.sum = self.sum + np.nansum(x[train], 0)
        self.count = self.count + (~np.isnan(x[train])).sum(0)
        self.sample.append(x[sampled])

    def _check(self, x: Float64[NDArray[np.float64], "n columns"]) -> None:
        """Refuse infinities, and what a given kind cannot have."""
        doubtful = (np.abs(x) > LARGEST).any(0) | np.array([kind != AUTO for kind in self.given], bool)
        for i in np.flatnonzero(doubtful).tolist():
            values = tidy(self.names[i], x[:, i])
            if self.given[i] != AUTO:
                encode_column(Column(self.names[i], self.given[i]), values, "error")

    def columns(self) -> list[Column]:
        """The columns of the schema."""
        sample = np.concatenate([*self.sample, np.stack([self.low, self.high, self.between, self.fraction])])
        return [self._column(i, sample[:, i]) for i in range(len(self.names))]

    def _column(self, i: int, sample: Float64[NDArray[np.float64], " m"]) -> Column:
        column = infer_column(self.names[i], Values("number", sample), self.given[i], None)
        if not self.count[i]:
            raise MemgenError(f"column {self.names[i]!r} has not one value in the training rows; drop it")
        if column.kind == "integer":  # a divisor of all distances in the sample may be none of others
            column = replace(column, offset=float(np.round(column.offset)), step=1.0)
        if column.kind != "real":
            return column
        # A mean of equal numbers may differ from them in the last bit, which would count as a deviation.
        constant = self.low[i] == self.high[i]
        return replace(column, offset=float(self.low[i] if constant else self.sum[i] / self.count[i]))


class Levels:
    """What is gathered of a column of text or truth values, or of one whose kind is given as one of levels."""

    def __init__(self, name: str, given: str) -> None:
        self.name, self.given = name, given
        self.form = "nothing"
        self.levels: set[Any] = set()
        self.sample: list[Shaped[NDArray[Any], " m"]] = []

    def add(self, values: Values, sampled: Chosen) -> None:
        if values.missing.all():
            return
        if self.form not in ("nothing", values.form):
            raise MemgenError(f"column {self.name!r} holds {values.form} here, and {self.form} in the rows before")
        self.form = values.form
        self.levels.update(set(values.observed.tolist()))
        if len(self.levels) > MOST_LEVELS:
            few = some(sorted(self.levels), 3)
            raise MemgenError(f"column {self.name!r} has more than {MOST_LEVELS:,} levels, such as {few}; drop it")
        self.sample.append(values.data[sampled])

    def column(self) -> Column:
        """The column of the schema."""
        levels = np.array(sorted(self.levels), dtype=object if self.form == "text" else np.float64)
        return infer_column(self.name, Values(self.form, np.concatenate([levels, *self.sample])), self.given, None)


class TableScan:
    """The pass: `add` every block, then `columns`."""

    def __init__(self, table: RawTable, kinds: dict[str, str], blocks: int) -> None:
        """`table`: the first block; `kinds`: a kind or "auto" for every column; `blocks`: how many there will be."""
        names = table.names
        plain = [
            is_plain(values) and kinds[name] not in LEVELLED for name, values in zip(names, table.values, strict=True)
        ]
        self.plain = [i for i, yes in enumerate(plain) if yes]
        self.numbers = Numbers([names[i] for i in self.plain], [kinds[names[i]] for i in self.plain])
        self.others = {i: Levels(name, kinds[name]) for i, name in enumerate(names) if not plain[i]}
        self.most = max(1, SAMPLE // (blocks * len(names)))

    def add(self, table: RawTable, train: Chosen) -> NDArray[np.intp]:
        """Add a block with the rows to train on; returns the number of missing values of each of its rows."""
        sampled = spread(len(table), self.most)
        missing = np.zeros(len(table), np.intp)
        if self.plain:
            x = np.stack([np.asarray(table.values[i], np.float64) for i in self.plain], 1)
            self.numbers.add(x, sampled, train)
            missing += np.isnan(x).sum(1)
        for i, levels in self.others.items():
            values = tidy(levels.name, table.values[i])
            levels.add(values, sampled)
            missing += values.missing
        return missing

    def columns(self) -> tuple[Column, ...]:
        """The schema."""
        schema = dict(zip(self.plain, self.numbers.columns(), strict=True)) if self.plain else {}
        schema |= {i: levels.column() for i, levels in self.others.items()}
        return tuple(schema[i] for i in range(len(schema)))


def is_plain(values: Shaped[NDArray[Any], " n"] | Coded) -> bool:
    """Whether these are numbers of one type, and no truth values."""
    return not isinstance(values, Coded) and values.dtype.kind in "iuf"


def spread(rows: int, most: int) -> Chosen:
    """At most this many rows, at equal distances.

    >>> spread(10, 4)
    array([0, 3, 6, 9])
    """
    return np.arange(0, rows, -(-rows // most))
