"""One column of a table: its kind, and how its values are encoded as numbers and decoded."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped
from numpy.typing import NDArray

from memgen.core.likelihoods import Described
from memgen.data.guessing import guess
from memgen.data.kinds import AUTO, DATED, KINDS, LEVELLED, WHOLE
from memgen.data.parsing import Reading
from memgen.data.scales import scale_of
from memgen.data.truths import are_truths, level_of, spellings
from memgen.data.values import FORMS, Values, shown, some
from memgen.data.written import Digits, format_of_values
from memgen.errors import MemgenError

Impossible = Callable[[NDArray[np.float64]], NDArray[np.bool_]]


def _fractions(x: NDArray[np.float64]) -> NDArray[np.bool_]:
    fraction: NDArray[np.bool_] = (x != np.floor(x)) & ~np.isnan(x)
    return fraction


IMPOSSIBLE: dict[str, tuple[Impossible, str]] = {
    "positive": (lambda x: x <= 0, "numbers above 0"),
    "zero_inflated": (lambda x: x < 0, "numbers from 0 on"),
    "count": (lambda x: (x < 0) | _fractions(x), "whole numbers from 0 up"),
}
"""kind of numbers -> which ones it cannot have, and what it needs."""


@dataclass(frozen=True)
class Column:
    """One column of a table. Its numbers are encoded as (value - offset) / scale, computed in float64.

    >>> Column("town", "categorical", levels=("Basel", "Bern", "Chur"), why="3 levels of text").levels.index("Bern")
    1
    """

    name: str
    kind: str
    levels: tuple[Any, ...] = ()
    """Of a kind with levels: its values, sorted; the code of a value is its position."""
    offset: float = 0.0
    """Subtracted in float64, so that float32 keeps the digits that differ between rows."""
    why: str = "given"
    """Why it has this kind, in a few words."""
    scale: float = 1.0
    """The unit of what the model reads: training then does not depend on the units of the column."""
    step: float = 0.0
    """The distance of neighbouring values; 0 where there is none."""
    low: float | None = None
    """The smallest value of the training rows; None for levels."""
    high: float | None = None
    format: str = ""
    """How its values are written (see written.py)."""

    @property
    def textual(self) -> bool:
        return bool(self.levels) and isinstance(self.levels[0], str)

    @property
    def reading(self) -> Reading:
        """How the cells of more rows are read."""
        form = "text" if self.textual else "date" if self.kind in DATED else "number"
        return Reading(form, format=self.format)

    @property
    def described(self) -> Described:
        """The column as the likelihood sees it: draws lie between the smallest and the largest training value."""
        kind, levels = KINDS[self.kind], len(self.levels)
        if self.low is None or self.high is None:
            return Described(kind, levels, self.scale, self.step / self.scale or 1.0)
        margin = (self.step or 1.0) / 2 if self.kind in WHOLE else 0.0
        low, high = ((end - self.offset) / self.scale for end in (self.low - margin, self.high + margin))
        low = -math.inf if self.kind == "zero_inflated" else low  # zero itself belongs to the range
        return Described(kind, levels, self.scale, self.step / self.scale or 1.0, low, high)


def infer_column(
    name: str, values: Values, given: str, train: NDArray[np.intp] | None = None, format: str = ""
) -> Column:
    if values.missing.all():
        raise MemgenError(f"column {name!r} has not one value; drop it")
    kind, why = guess(name, values, format) if given == AUTO else (given, "given")
    levels = _levels(name, kind, values) if kind in LEVELLED else ()
    if kind == "binary" and len(levels) > 2:
        raise MemgenError(
            f"column {name!r} cannot be binary: it has {len(levels)} levels ({some(levels, 5)}); say categorical"
        )
    column = Column(name, kind, levels, why=why, format=format)
    encoded = encode_column(column, values, "error")  # which refuses what the kind cannot have
    if kind == "integer" and (rows := np.flatnonzero(_fractions(encoded))).size:
        raise MemgenError(
            f"column {name!r} is integer, so it needs whole numbers; row {rows[0] + 1} has {encoded[rows[0]]:g}"
        )
    return column if kind in LEVELLED else scaled(column, encoded, train)


def scaled(column: Column, x: Float64[NDArray[np.float64], " N"], train: NDArray[np.intp] | None = None) -> Column:
    """A column of numbers with the units and the range of its training rows, and the decimals of all."""
    known = (x if train is None else x[train])[~np.isnan(x if train is None else x[train])]
    if len(known) == 0:
        raise MemgenError(f"column {column.name!r} has not one value in the training rows; drop it")
    format = column.format
    if not format and column.kind not in DATED:
        format = format_of_values(x[~np.isnan(x)])
    offset, scale, step = scale_of(column.kind, known, Digits.of(format))
    low, high = float(known.min()), float(known.max())
    return replace(column, offset=offset, scale=scale, step=step, low=low, high=high, format=format)


def _levels(name: str, kind: str, values: Values) -> tuple[Any, ...]:
    """The distinct values, sorted; numbers that are all whole as integers, and always both truth values."""
    if values.form == "truth":
        return (False, True)
    if values.form == "text":
        return _text_levels(name, kind, values.observed.tolist())
    numbers = np.unique(values.observed).tolist()
    whole = all(number.is_integer() for number in numbers)
    if kind == "ordinal" and whole and numbers[-1] - numbers[0] <= MOST_BETWEEN:
        return tuple(range(int(numbers[0]), int(numbers[-1]) + 1))
    return tuple(map(int, numbers) if whole else numbers)


MOST_BETWEEN = 1000
"""The widest range of an ordinal column whose levels are all whole numbers in it."""


def _text_levels(name: str, kind: str, texts: list[str]) -> tuple[str, ...]:
    levels = set(texts)
    if kind == "ordinal":
        raise MemgenError(
            f"column {name!r} is given as ordinal, and its levels are text, whose order is not known "
            f"({some(sorted(levels), 5)}): number them, or say categorical"
        )
    if kind == "binary" and len(levels) > 2 and are_truths(levels):
        return tuple(sorted(first for first, *_ in spellings(texts).values()))
    return tuple(sorted(levels))


def encode_column(column: Column, values: Values, unseen: str) -> Float64[NDArray[np.float64], " N"]:
    if values.missing.all():
        return np.full(len(values.data), np.nan)
    actual = values.form if values.form in ("text", "date") else "number"
    if actual != ("text" if column.textual else "date" if column.kind in DATED else "number"):
        row = int(np.flatnonzero(~values.missing)[0])
        value = shown(values.data[row]) if actual != "date" else np.datetime64(int(values.data[row]), "s")
        raise MemgenError(
            f"column {column.name!r} is {column.kind}{' with levels of text' if column.textual else ''}, which "
            f"{FORMS[values.form]} cannot be: row {row + 1} has {value}"
        )
    if column.kind in LEVELLED:
        return _codes(column, values, unseen)
    x: Float64[NDArray[np.float64], " N"] = values.data
    if column.kind in IMPOSSIBLE:
        impossible, what = IMPOSSIBLE[column.kind]
        rows = np.flatnonzero(impossible(x))
        if len(rows) and unseen == "error":
            raise MemgenError(
                f"column {column.name!r} is {column.kind}, so it needs {what}; row {rows[0] + 1} has {x[rows[0]]:g}"
            )
        x = np.where(impossible(x), np.nan, x)
    return (x - column.offset) / column.scale


def _codes(column: Column, values: Values, unseen: str) -> Float64[NDArray[np.float64], " N"]:
    if column.textual:
        position: dict[str | None, int] = {level: i for i, level in enumerate(column.levels)}
        if are_truths(column.levels):
            for text in set(values.observed.tolist()) - set(column.levels):
                position[text] = position.get(level_of(column.levels, text), -1)
        codes = np.array([position.get(value, -1) for value in values.data], dtype=np.float64)
        codes[codes < 0] = np.nan
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


def decode_column(column: Column, x: Float64[NDArray[np.float64], " N"]) -> Shaped[NDArray[Any], " N"]:
    """The values that are encoded as x. Codes must be codes; counts are rounded, and dates to whole seconds."""
    if column.kind == "count":
        return np.round(x)
    if column.kind in DATED:
        return as_dates(x * column.scale + column.offset)
    if column.kind not in LEVELLED:
        return x * column.scale + column.offset
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


def as_dates(seconds: Float64[NDArray[np.float64], " N"]) -> Shaped[NDArray[Any], " N"]:
    """Seconds since 1970 as datetime64, to the second."""
    missing = np.isnan(seconds)
    dates = np.round(np.where(missing, 0, seconds)).astype(np.int64).astype("datetime64[s]")
    return np.where(missing, np.datetime64("NaT", "s"), dates)


def filled_column(
    column: Column, x: Float64[NDArray[np.float64], " N"], free: bool = False
) -> Shaped[NDArray[Any], " N"]:
    """Values that a model made, as the column has them: with its decimals, and within its range unless `free`. A code
    beyond the last level, which a likelihood of two levels may draw where only one was ever seen, is the last one."""
    if column.kind in LEVELLED:
        return decode_column(column, x.clip(0, len(column.levels) - 1))
    value = np.round(x) if column.kind == "count" else x * column.scale + column.offset
    if column.step and column.kind in WHOLE:
        value = column.offset + np.round((value - column.offset) / column.step) * column.step
    elif digits := Digits.of(column.format):
        value = np.round(value, digits.most)
    if not free and column.low is not None and column.high is not None:
        value = value.clip(column.low, column.high)
    return as_dates(value) if column.kind in DATED else value
