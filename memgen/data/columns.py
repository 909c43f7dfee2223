"""The schema of a table: the kind of each column, and how the user's values are encoded as numbers and decoded."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy.typing import NDArray

from memgen.core.likelihoods import Described
from memgen.data.column import Column, decode_column, encode_column, filled_column, infer_column
from memgen.data.documents import parse_json
from memgen.data.entries import column_from_entry
from memgen.data.kinds import KINDS, given_kinds
from memgen.data.values import Coded, shorten, some, tidy
from memgen.errors import MemgenError, unknown

__all__ = ["KINDS", "Column", "Columns"]


@dataclass(frozen=True)
class Columns:
    """The schema of a table; it alone defines how values become numbers.

    Every column is one number per row, NaN where the value is missing: numbers less an offset and in a unit of their
    column, levels as codes 0, 1, ...

    >>> town = np.array(["Bern", "Basel", None, "Bern"], dtype=object)
    >>> columns = Columns.infer([town, np.array([1.5, -2, np.nan, 2])], ["town", "x"])
    >>> columns.kinds
    ('binary', 'real')
    >>> x = columns.encode([town, np.array([1.5, -2, np.nan, 2])])
    >>> x[:, 0], x[:, 1].round(2)
    (array([ 1.,  0., nan,  1.]), array([ 0.56, -1.4 ,   nan,  0.84]))
    >>> columns.decode(x[:1])
    [array(['Bern'], dtype=object), array([1.5])]
    """

    columns: tuple[Column, ...]
    ignored: tuple[str, ...] = ()
    """Names of columns of the table that are not modelled, and that pass through where tables are completed."""

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
    def modelled(self) -> tuple[Described, ...]:
        """What the likelihood is built from, for every column."""
        return tuple(column.described for column in self)

    @property
    def encoded(self) -> int:
        """The number of columns that a model reads: one per level of a categorical column, two of one with many zeros,
        else one."""
        widths = {"zero_inflated": 2}
        return sum(c.levels if c.kind == "categorical" else widths.get(c.kind, 1) for c in self.modelled)

    @staticmethod
    def infer(
        values: Sequence[NDArray[Any] | Coded],
        names: Sequence[str],
        kinds: Mapping[str, str] | Sequence[str] | str | None = None,
        *,
        train: Int[NDArray[np.intp], " n"] | None = None,
        formats: Sequence[str] = (),
        problems: Mapping[str, str] | None = None,
        ignored: Sequence[str] = (),
    ) -> Columns:
        """The schema of these columns.

        `kinds` is one kind for all columns, one per column, or a kind by name. A kind that is not given, or "auto", is
        inferred from the values by memgen.data.guessing.guess. `train` says which rows the units and ranges are taken
        from; kinds and levels come from all rows. `formats`: how the cells of each column are written. All columns that
        cannot be modelled are named in one error, with those of `problems`, which could not be read.
        """
        if len(values) != len(names):
            raise MemgenError(f"there are {len(names)} names for {len(values)} columns")
        check_names(names)
        check_lengths(values, names)
        kind_of = given_kinds(names, kinds)
        columns, wrong = [], dict(problems or {})
        for name, column, format in zip(names, values, formats or [""] * len(names), strict=True):
            try:
                if name not in wrong:
                    columns.append(infer_column(name, tidy(name, column), kind_of[name], train, format))
            except MemgenError as error:
                wrong[name] = str(error)
        if wrong:
            raise all_problems({name: wrong[name] for name in names if name in wrong})
        return Columns(tuple(columns), tuple(ignored))

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

    def unscaled(self) -> Columns:
        """The schema for a likelihood that does not know the units of columns: numbers only lose their offset."""
        return replace(self, columns=tuple(replace(column, scale=1.0) for column in self))

    def filled(self, x: Float[NDArray[Any], "N D"], free: Collection[int] = ()) -> list[NDArray[Any]]:
        """Values that a model made, column by column: as `decode`, with the decimals and within the range of each
        column. The range of the columns `free` is not kept."""
        numbers = x.astype(np.float64)
        return [filled_column(column, numbers[:, i], i in free) for i, column in enumerate(self)]

    def to_json(self) -> str:
        """
        >>> columns = Columns((Column("town", "binary", ("Basel", "Bern")), Column("x", "real", offset=0.1)))
        >>> Columns.from_json(columns.to_json()) == columns
        True
        """
        ignored = {"ignored": list(self.ignored)} if self.ignored else {}
        return json.dumps(
            {"columns": [asdict(column) for column in self]} | ignored, ensure_ascii=False, allow_nan=False
        )

    @staticmethod
    def from_json(text: str, where: object = "the schema") -> Columns:
        """A schema as `to_json` wrote it; anything else is an error that names `where` it came from."""
        return Columns.from_dict(parse_json(text, where, "description of columns"), where)

    @staticmethod
    def from_dict(value: object, where: object = "the schema") -> Columns:
        entries = value.get("columns") if isinstance(value, dict) else None
        if not isinstance(entries, list):
            raise MemgenError(f"{where} is no description of columns: it has no list of them")
        ignored = value.get("ignored", []) if isinstance(value, dict) else []
        if not isinstance(ignored, list) or not all(isinstance(name, str) for name in ignored):
            raise MemgenError(f"{where} is no description of columns: the ignored ones are no list of names")
        try:
            return Columns(tuple(column_from_entry(entry, i) for i, entry in enumerate(entries, 1)), tuple(ignored))
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


def all_problems(wrong: Mapping[str, str]) -> MemgenError:
    """One error for all columns that cannot be modelled, with the options that leave them out.

    >>> print(all_problems({"id": "column 'id' is an identifier"}))
    column 'id' is an identifier; leave it out with --ignore id, or say what it is with --kind id=KIND
    """
    options = " ".join(f"--ignore {shlex.quote(name)}" for name in wrong)
    what = "it" if len(wrong) == 1 else "them"
    names = list(wrong)
    kinds = f"--kind {shlex.quote(names[0])}=KIND"
    start = "" if len(wrong) == 1 else f"{len(wrong)} columns cannot be used: "
    problems = "; ".join(problem.removesuffix("; drop it") for problem in wrong.values())
    is_ = "it is" if len(wrong) == 1 else "one is"
    return MemgenError(f"{start}{problems}; leave {what} out with {options}, or say what {is_} with {kinds}")


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
