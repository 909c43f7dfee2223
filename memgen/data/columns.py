"""The schema of a table: the kind of each column, and how the user's values are encoded as numbers and decoded."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from memgen.data.column import Column, column_from_entry, decode_column, encode_column, infer_column
from memgen.data.documents import parse_json
from memgen.data.kinds import KINDS, given_kinds
from memgen.data.values import Coded, shorten, some, tidy
from memgen.errors import MemgenError, unknown

__all__ = ["KINDS", "Column", "Columns"]


@dataclass(frozen=True)
class Columns:
    """The schema of a table; it alone defines how values become numbers.

    Every column is one number per row, NaN where the value is missing: real numbers less their offset, positive numbers
    and counts as they are, levels as codes 0, 1, ...

    >>> town = np.array(["Bern", "Basel", None, "Bern"], dtype=object)
    >>> columns = Columns.infer([town, np.array([1.5, -2, np.nan, 2])], ["town", "x"])
    >>> columns.kinds
    ('binary', 'real')
    >>> columns.encode([town, np.array([1.5, -2, np.nan, 2])])
    array([[ 1. ,  1. ],
           [ 0. , -2.5],
           [ nan,  nan],
           [ 1. ,  1.5]])
    >>> columns.decode(np.array([[0.0, 1.0]]))
    [array(['Basel'], dtype=object), array([1.5])]
    """

    columns: tuple[Column, ...]

    def __post_init__(self) -> None:
        if not self.columns:
            raise MemgenError("a table needs at least one column")
        check_names(self.names)

    def __len__(self) -> int:
        return len(self.columns)

    def __iter__(self) -> Iterator[Column]:
        return iter(self.columns)

    @property
    def names(self) -> tuple[str, ...]:
        return tuple(column.name for column in self.columns)

    @property
    def kinds(self) -> tuple[str, ...]:
        return tuple(column.kind for column in self.columns)

    @property
    def modelled(self) -> tuple[tuple[str, int], ...]:
        """Kind and number of levels of every column, as the likelihood is built from."""
        return tuple((column.kind, len(column.levels)) for column in self)

    @property
    def encoded(self) -> int:
        """The number of columns that a model reads: one per level of a categorical column, else one."""
        return sum(levels if kind == "categorical" else 1 for kind, levels in self.modelled)

    @staticmethod
    def infer(
        values: Sequence[NDArray[Any] | Coded],
        names: Sequence[str],
        kinds: Mapping[str, str] | Sequence[str] | str | None = None,
        *,
        train: Int[NDArray[np.intp], " n"] | None = None,
    ) -> Columns:
        """The schema of these columns.

        `kinds` is one kind for all columns, one per column, or a kind by name. A kind that is not given, or "auto", is
        inferred from the values by memgen.data.kinds.guess. `train` says which rows the offsets are taken from; kinds
        and levels come from all rows.
        """
        if len(values) != len(names):
            raise MemgenError(f"there are {len(names)} names for {len(values)} columns")
        check_names(names)
        check_lengths(values, names)
        kind_of = given_kinds(names, kinds)
        columns = (
            infer_column(name, tidy(name, column), kind_of[name], train)
            for name, column in zip(names, values, strict=True)
        )
        return Columns(tuple(columns))

    def encode(
        self,
        values: Sequence[NDArray[Any] | Coded],
        *,
        unseen: str = "error",
        dtype: type = np.float64,
        order: Int[NDArray[np.intp], " M"] | None = None,
    ) -> Float[NDArray[Any], "N D"]:
        """The user's values as numbers. `unseen` says what becomes of a value that its column cannot have, such as an
        unknown level or a negative count: "error" or "missing". `order`: the rows to return, all by default."""
        if unseen not in ("error", "missing"):
            raise unknown("way with unseen levels", unseen, ("error", "missing"))
        if len(values) != len(self):
            raise MemgenError(f"the data has {len(values)} columns, the model has {len(self)}")
        check_lengths(values, self.names)
        encoded: NDArray[Any] = np.empty((len(values[0]) if order is None else len(order), len(self)), dtype)
        for i, (column, column_values) in enumerate(zip(self, values, strict=True)):
            numbers = encode_column(column, tidy(column.name, column_values), unseen)
            encoded[:, i] = numbers if order is None else numbers[order]
        return encoded

    def decode(self, x: Float[NDArray[Any], "N D"]) -> list[NDArray[Any]]:
        """Back to the user's values, column by column.

        Text comes as objects with None where it is missing, all else as float64 with NaN; counts are rounded. A code
        must be a code: the mean of a categorical column has no meaning.
        """
        if x.shape[1] != len(self):
            raise MemgenError(f"the data has {x.shape[1]} columns, the model has {len(self)}")
        return [decode_column(column, x[:, i].astype(np.float64)) for i, column in enumerate(self)]

    def to_json(self) -> str:
        """
        >>> columns = Columns((Column("town", "binary", ("Basel", "Bern")), Column("x", "real", offset=0.1)))
        >>> Columns.from_json(columns.to_json()) == columns
        True
        """
        return json.dumps({"columns": [asdict(column) for column in self]}, ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str, where: object = "the schema") -> Columns:
        """A schema as `to_json` wrote it; anything else is an error that names `where` it came from."""
        return Columns.from_dict(parse_json(text, where, "description of columns"), where)

    @staticmethod
    def from_dict(value: object, where: object = "the schema") -> Columns:
        entries = value.get("columns") if isinstance(value, dict) else None
        if not isinstance(entries, list):
            raise MemgenError(f"{where} is no description of columns: it has no list of them")
        try:
            return Columns(tuple(column_from_entry(entry, i) for i, entry in enumerate(entries, 1)))
        except MemgenError as error:
            raise MemgenError(f"{where}: {error}") from None

    def describe(self) -> list[str]:
        """A small table for the user, line by line.

        >>> town = Column("town", "binary", ("Basel", "Bern"), why="2 levels of text")
        >>> columns = Columns((town, Column("x", "real")))
        >>> print("\\n".join(columns.describe()))
        town  binary  2 levels of text: Basel, Bern
        x     real    given
        """
        names = [shorten(name, 30) for name in self.names]
        width, kind = max(map(len, names)), max(map(len, self.kinds))
        levels = [f": {some(column.levels, 5)}" if column.levels else "" for column in self]
        return [
            f"{name:{width}}  {column.kind:{kind}}  {column.why}{suffix}"
            for name, column, suffix in zip(names, self, levels, strict=True)
        ]


def check_names(names: Sequence[str]) -> None:
    seen: set[str] = set()
    for name in names:
        if name in seen:
            raise MemgenError(f"two columns are named {name!r}; give each its own name")
        seen.add(name)


def check_lengths(values: Sequence[NDArray[Any] | Coded], names: Sequence[str]) -> None:
    for name, column in zip(names, values, strict=True):
        if len(column) != len(values[0]):
            raise MemgenError(f"column {name!r} has {len(column)} rows, column {names[0]!r} has {len(values[0])}")
