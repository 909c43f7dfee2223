"""What the columns of a table are: the kind of each, and how the user's values become numbers and come back."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from jaxtyping import Float, Float64, Int, Shaped
from numpy.typing import NDArray

from memgen.data.documents import parse_json
from memgen.data.kinds import AUTO, KINDS, LEVELLED, given_kinds, guess
from memgen.data.values import FORMS, Coded, Values, shorten, shown, some, tidy
from memgen.errors import MemgenError, unknown

__all__ = ["KINDS", "Column", "Columns"]


@dataclass(frozen=True)
class Column:
    """One column of a table.

    >>> Column("town", "categorical", levels=("Basel", "Bern", "Chur"), why="3 levels of text").levels.index("Bern")
    1
    """

    name: str
    kind: str
    levels: tuple[Any, ...] = ()
    """Of a binary or categorical column: its values, sorted; the code of a value is its position."""
    offset: float = 0.0
    """Of a real column: what is taken away in float64, so that float32 keeps the digits that differ."""
    why: str = "given"
    """Why it has this kind, in a few words."""


@dataclass(frozen=True)
class Columns:
    """The schema of a table: the only thing that knows how its values became numbers.

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
        """How many columns a model reads of them: one each, of a categorical one as many as it has levels."""
        return sum(levels if kind == "categorical" else 1 for kind, levels in self.modelled)

    @staticmethod
    def infer(
        values: Sequence[NDArray[Any] | Coded],
        names: Sequence[str],
        kinds: Mapping[str, str] | Sequence[str] | str | None = None,
        *,
        train: Int[NDArray[np.intp], " n"] | None = None,
    ) -> Columns:
        """What the columns are: what their values speak for (the rules stand at memgen.data.kinds.guess), or `kinds`.

        `kinds` is one kind for all columns, one per column, or by name for some; "auto" is as if it were not given.
        `train` says which rows the offsets are taken from; kinds and levels come from all rows.
        """
        if len(values) != len(names):
            raise MemgenError(f"there are {len(names)} names for {len(values)} columns")
        check_names(names)
        check_lengths(values, names)
        wanted = given_kinds(names, kinds)
        columns = (
            _column(name, tidy(name, column), wanted[name], train) for name, column in zip(names, values, strict=True)
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
        """The user's values as numbers; one that its column cannot have, such as a level that the schema does not know
        or a negative count, is an error, or "missing". `order`: the rows to give, all as they come without it."""
        if unseen not in ("error", "missing"):
            raise unknown("way with unseen levels", unseen, ("error", "missing"))
        if len(values) != len(self):
            raise MemgenError(f"the data has {len(values)} columns, the model has {len(self)}")
        check_lengths(values, self.names)
        encoded: NDArray[Any] = np.empty((len(values[0]) if order is None else len(order), len(self)), dtype)
        for i, (column, given) in enumerate(zip(self, values, strict=True)):
            numbers = _encode(column, tidy(column.name, given), unseen)
            encoded[:, i] = numbers if order is None else numbers[order]
        return encoded

    def decode(self, x: Float[NDArray[Any], "N D"]) -> list[NDArray[Any]]:
        """Back to the user's values, column by column.

        Text comes as objects with None where it is missing, all else as float64 with NaN; counts are rounded. A code
        must be a code: the mean of a categorical column has no meaning.
        """
        if x.shape[1] != len(self):
            raise MemgenError(f"the data has {x.shape[1]} columns, the model has {len(self)}")
        return [_decode(column, x[:, i].astype(np.float64)) for i, column in enumerate(self)]

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
    def from_dict(found: object, where: object = "the schema") -> Columns:
        entries = found.get("columns") if isinstance(found, dict) else None
        if not isinstance(entries, list):
            raise MemgenError(f"{where} is no description of columns: it has no list of them")
        try:
            return Columns(tuple(_from_entry(entry, i) for i, entry in enumerate(entries, 1)))
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
            f"{name:{width}}  {column.kind:{kind}}  {column.why}{more}"
            for name, column, more in zip(names, self, levels, strict=True)
        ]


# ---- what was given


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


# ---- which kind


def _column(name: str, values: Values, wanted: str, train: NDArray[np.intp] | None) -> Column:
    if values.missing.all():
        raise MemgenError(f"column {name!r} has not one value; drop it")
    kind, why = guess(name, values) if wanted == AUTO else (wanted, "given")
    levels = _levels(values) if kind in LEVELLED else ()
    if kind == "binary" and len(levels) > 2:
        raise MemgenError(
            f"column {name!r} cannot be binary: it has {len(levels)} levels ({some(levels, 5)}); say categorical"
        )
    encoded = _encode(Column(name, kind, levels), values, "error")  # which refuses what the kind cannot have
    offset = _mean(name, encoded if train is None else encoded[train])
    return Column(name, kind, levels, offset if kind == "real" else 0.0, why)


def _mean(name: str, values: Float64[NDArray[np.float64], " n"]) -> float:
    observed = values[~np.isnan(values)]
    if len(observed) == 0:
        raise MemgenError(f"column {name!r} has not one value in the training rows; drop it")
    # A mean of equal numbers may differ from them in the last bit, which would count as a deviation.
    return float(observed[0] if (observed == observed[0]).all() else observed.mean())


def _levels(values: Values) -> tuple[Any, ...]:
    """The distinct values, sorted; numbers that are all whole as integers, and always both truth values."""
    if values.form == "truth":
        return (False, True)
    if values.form == "text":
        return tuple(sorted(set(values.observed.tolist())))
    numbers = np.unique(values.observed).tolist()
    return tuple(map(int, numbers) if all(number.is_integer() for number in numbers) else numbers)


# ---- values to numbers


def _encode(column: Column, values: Values, unseen: str) -> Float64[NDArray[np.float64], " N"]:
    if values.missing.all():
        return np.full(len(values.data), np.nan)
    textual = bool(column.levels) and isinstance(column.levels[0], str)
    if textual != (values.form == "text"):
        row = int(np.flatnonzero(~values.missing)[0])
        raise MemgenError(
            f"column {column.name!r} is {column.kind}{' with levels of text' if textual else ''}, which "
            f"{FORMS[values.form]} cannot be: row {row + 1} has {shown(values.data[row])}"
        )
    if column.kind in LEVELLED:
        return _codes(column, values, textual, unseen)
    x: Float64[NDArray[np.float64], " N"] = values.data
    impossible, what = IMPOSSIBLE[column.kind]
    rows = np.flatnonzero(impossible(x))
    if len(rows) and unseen == "error":
        raise MemgenError(
            f"column {column.name!r} is {column.kind}, so it needs {what}; row {rows[0] + 1} has {x[rows[0]]:g}"
        )
    x = np.where(impossible(x), np.nan, x)
    return x - column.offset


IMPOSSIBLE: dict[str, tuple[Callable[[NDArray[np.float64]], NDArray[np.bool_]], str]] = {
    "real": (lambda x: np.zeros(x.shape, bool), "numbers"),
    "positive": (lambda x: x <= 0, "numbers above 0"),
    "count": (lambda x: (x < 0) | (x != np.floor(x)) & ~np.isnan(x), "whole numbers from 0 up"),
}
"""kind of numbers -> which ones it cannot have, and what it needs."""


def _codes(column: Column, values: Values, textual: bool, unseen: str) -> Float64[NDArray[np.float64], " N"]:
    if textual:
        position = {level: i for i, level in enumerate(column.levels)}
        codes = np.array([position.get(value, math.nan) for value in values.data], dtype=np.float64)
    else:
        levels = np.array(column.levels, dtype=np.float64)
        place = np.searchsorted(levels, values.data).clip(0, len(levels) - 1)
        codes = np.where(levels[place] == values.data, place, np.nan)
    strange = np.flatnonzero(np.isnan(codes) & ~values.missing)
    if len(strange) and unseen == "error":
        row = int(strange[0])
        raise MemgenError(
            f"column {column.name!r}, row {row + 1}: {shown(values.data[row])} is none of the "
            f"{len(column.levels)} known levels ({some(column.levels, 10)})"
        )
    return codes


# ---- and back


def _decode(column: Column, x: Float64[NDArray[np.float64], " N"]) -> Shaped[NDArray[Any], " N"]:
    if column.kind == "count":
        return np.round(x)
    if column.kind not in LEVELLED:
        return x + column.offset
    missing = np.isnan(x)
    wrong = np.flatnonzero(~missing & ((x != np.floor(x)) | (x < 0) | (x >= len(column.levels))))
    if len(wrong):
        raise MemgenError(
            f"column {column.name!r}: {x[wrong[0]]:g} is not the code of one of its {len(column.levels)} levels; a "
            "mean has none, use the mode or a draw"
        )
    codes = np.where(missing, 0, x).astype(np.intp)
    if isinstance(column.levels[0], str):
        return np.where(missing, np.array(None), np.array(column.levels, dtype=object)[codes])
    if isinstance(column.levels[0], bool) and not missing.any():
        return np.array(column.levels)[codes]
    return np.where(missing, np.nan, np.array(column.levels, dtype=np.float64)[codes])


# ---- from a file


def _from_entry(entry: object, place: int) -> Column:
    what = f"column {place}"
    if not isinstance(entry, dict) or set(entry) != {"name", "kind", "levels", "offset", "why"}:
        raise MemgenError(f"{what} is not an entry with name, kind, levels, offset and why")
    name, kind, levels, offset, why = (entry[key] for key in ("name", "kind", "levels", "offset", "why"))
    if not isinstance(name, str) or not isinstance(why, str):
        raise MemgenError(f"{what}: its name and why must be text")
    if kind not in KINDS:
        raise unknown("kind of column", kind, KINDS)
    if not _is_number(offset):
        raise MemgenError(f"{what}: its offset is no number")
    if offset and kind != "real":
        raise MemgenError(f"{what} is {kind} and cannot have an offset")
    _check_levels(what, kind, levels)
    return Column(name, kind, tuple(levels), float(offset), why)


def _check_levels(what: str, kind: str, levels: object) -> None:
    if not isinstance(levels, list):
        raise MemgenError(f"{what}: its levels are no list")
    texts, truths = (all(isinstance(level, form) for level in levels) for form in (str, bool))
    numbers = all(_is_number(level) for level in levels)
    if not (texts or truths or numbers) or levels != sorted(set(levels)):
        raise MemgenError(f"{what}: its levels must be different values of one type, sorted")
    least, most = {"binary": (1, 2), "categorical": (1, math.inf)}.get(kind, (0, 0))
    if not least <= len(levels) <= most:
        raise MemgenError(f"{what} is {kind} and cannot have {len(levels)} levels")


def _is_number(value: object) -> bool:
    """Whether it is a number that float64 can hold; JSON knows larger ones."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max
