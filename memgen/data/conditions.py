"""Conditions on columns of a table, as the user writes them: town=Bern, income>50, age=20..30."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from memgen.core.likelihoods import Given
from memgen.data.cells import comma_hint, number
from memgen.data.column import Column, encode_column
from memgen.data.columns import Columns
from memgen.data.kinds import DATED, LEVELLED, WHOLE
from memgen.data.own_tables import LABELS
from memgen.data.values import is_missing, seconds, shorten, shown, tidy
from memgen.data.written import Digits, read_date
from memgen.errors import MemgenError, unknown

NEAR = 1e-6
"""An end of a range that lies nearer to a value of a column's grid, in steps, is that value."""
OPERATORS = (">=", "<=", ">", "<", "=")
NUMBER = r"[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?"
RANGE = re.compile(rf"({NUMBER})?\s*\.\.\s*({NUMBER})?")
HOW = "as in town=Bern, income>50 or age=20..30"


class Interval(NamedTuple):
    """low < x <= high in the column's own units; for whole numbers and levels the bounds are halves."""

    low: float = -math.inf
    high: float = math.inf

    def __and__(self, other: Interval) -> Interval:
        return Interval(max(self.low, other.low), min(self.high, other.high))


def parse_conditions(texts: Sequence[str], columns: Columns) -> list[tuple[str, str]]:
    """Name of the column, and what it is given as, of texts like town=Bern and income>50.

    The name of a column may have any character in it: the longest name with which a text begins is meant.
    """
    return [_parsed(text, columns) for text in texts]


def _parsed(text: str, columns: Columns) -> tuple[str, str]:
    names = [name for name in columns.names if text.startswith(name)]
    for name in sorted(names, key=len, reverse=True):
        rest = text[len(name) :].strip()
        if operator := next((operator for operator in OPERATORS if rest.startswith(operator)), None):
            return name, rest[1:].strip() if operator == "=" else rest
    match = re.match(r"\s*(.+?)\s*(?:>=|<=|>|<|=)", text)
    if match is None:
        raise MemgenError(f"a condition is COLUMN=VALUE or a range, {HOW}; not {shorten(text, 60)!r}")
    raise no_column(match[1], columns)


def no_column(name: str, columns: Columns) -> MemgenError:
    if name.lower() in LABELS:
        return MemgenError(
            f"the column {name!r} gave the classes of the rows and is not modelled, so it cannot be given; train with "
            f"--kind {name}=categorical to make it a column like any other"
        )
    return unknown("column", name, columns.names)


def given(columns: Columns, conditions: Sequence[tuple[str, Any]] | Mapping[str, Any]) -> Given:
    """The condition that all of these state together.

    A value is a number, a truth value or a text; a pair (low, high) is the range low <= x <= high, open at a None. In a
    column of numbers a text may be a range: ">50", "<=3", "20..30".

    >>> columns = Columns((Column("town", "binary", ("Basel", "Bern")), Column("age", "count")))
    >>> condition = given(columns, {"town": "Bern", "age": ">30"})
    >>> condition.x, condition.low
    (tensor([1., nan], dtype=torch.float64), tensor([   -inf, 30.5000], dtype=torch.float64))
    """
    values, ranges = dict[int, float](), dict[int, Interval]()
    for name, value in conditions.items() if isinstance(conditions, Mapping) else conditions:
        if name not in columns.names:
            raise no_column(str(name), columns)
        place = columns.names.index(name)
        column = columns.columns[place]
        interval = as_interval(column, value)
        if interval is not None:
            ranges[place] = ranges.get(place, Interval()) & interval
        elif values.setdefault(place, code := as_number(column, value)) != code:
            raise MemgenError(f"column {name!r} is given two different values")
    for place, interval in ranges.items():
        _check(columns.columns[place], interval, values.get(place))
    open_ = {place: interval for place, interval in ranges.items() if place not in values}
    x = [values.get(place, math.nan) for place in range(len(columns))]
    return Given.of(x, *({place: interval[end] for place, interval in open_.items()} for end in (0, 1)))


def _check(column: Column, interval: Interval, x: float | None) -> None:
    if not interval.low < interval.high:
        raise MemgenError(f"column {column.name!r}: no value lies in the range that is given")
    if x is not None and not interval.low < x <= interval.high:
        raise MemgenError(f"column {column.name!r}: the value that is given lies outside of the range that is given")


def given_texts(columns: Columns, conditions: Sequence[tuple[str, str]]) -> dict[int, str]:
    """The texts of the values, not ranges, that are given, by the position of their column."""
    places = {name: place for place, name in enumerate(columns.names)}
    pairs = [(places[name], text) for name, text in conditions]
    return {place: text for place, text in pairs if as_interval(columns.columns[place], text) is None}


def places(columns: Columns, conditions: Sequence[tuple[str, Any]] | Mapping[str, Any]) -> set[int]:
    """The positions of the columns that are given, by a value or by a range."""
    return {columns.names.index(name) for name, *_ in dict(conditions).items()}


def has_density(columns: Columns, condition: Given) -> bool:
    """Whether a number of a continuous column is given, so that the condition has no probability."""
    kinds = (kind for kind, fixed in zip(columns.kinds, condition.fixed.tolist(), strict=True) if fixed)
    return any(kind not in (*LEVELLED, *WHOLE) for kind in kinds)


def as_number(column: Column, value: Any) -> float:
    """The code of a value."""
    if is_missing(value):
        raise MemgenError(f"column {column.name!r} is given as a missing value; leave it out to draw it")
    textual = bool(column.levels) and isinstance(column.levels[0], str)
    item = str(value) if textual else _number(column, value) if isinstance(value, str) else value
    if column.kind in DATED:
        return (_seconds(column, value) - column.offset) / column.scale
    code = float(encode_column(column, tidy(column.name, np.array([item], dtype=object)), "missing")[0])
    if math.isnan(code) and column.levels:
        raise unknown(f"level of column {column.name!r}:", value, map(str, column.levels))
    if math.isnan(code):
        raise MemgenError(f"column {column.name!r} is {column.kind} and cannot be {value}")
    return code


def _number(column: Column, text: str) -> float | bool:
    truths = {"true": True, "false": False}
    if column.levels and isinstance(column.levels[0], bool) and text.strip().lower() in truths:
        return truths[text.strip().lower()]
    if column.kind in DATED:
        return _seconds(column, text)
    value = number(text)
    if value is None and (digits := Digits.of(column.format)):
        value = _separated(digits, text)
    if value is None or not math.isfinite(value):
        raise MemgenError(f"column {column.name!r}: {shorten(text, 40)!r} is not a number{comma_hint(text)}")
    return value


def _separated(digits: Digits, text: str) -> float | None:
    try:
        return digits.read(text)
    except ValueError:
        return None


def _seconds(column: Column, value: Any) -> float:
    """A date, by the format of the column or as 2024-12-31, in seconds since 1970."""
    try:
        date = read_date(value, column.format or "%Y-%m-%d") if isinstance(value, str) else value
        return float(seconds(np.array([date], dtype="datetime64[s]"))[0])
    except ValueError:
        pass
    try:
        return float(seconds(np.array([value], dtype="datetime64[s]"))[0])
    except ValueError:
        form = column.format or "%Y-%m-%d"
        raise MemgenError(f"column {column.name!r}: {shown(value)} is not a date like the others ({form})") from None


def as_interval(column: Column, value: Any) -> Interval | None:
    """The interval that a value states; None if it states one value."""
    ends = _ends(column, value)
    if ends is None:
        return None
    if column.levels and isinstance(column.levels[0], str):
        raise MemgenError(f"column {column.name!r} has levels of text, which have no ranges; give one of its levels")
    (low, beyond), (high, below) = ends
    if column.kind in LEVELLED:
        levels = np.array(column.levels, dtype=np.float64)
        first = np.searchsorted(levels, low, "right" if beyond else "left")
        last = np.searchsorted(levels, high, "left" if below else "right")
        return Interval(float(first) - 0.5, float(last) - 0.5)
    if step := 1.0 if column.kind == "count" else column.step:
        anchor = column.offset if column.kind in WHOLE else 0.0  # a value of the grid
        low = anchor + _halfway(low - anchor, step, up=beyond)
        high = anchor + _halfway(high - anchor, step, up=not below)
    return Interval((low - column.offset) / column.scale, (high - column.offset) / column.scale)


def _halfway(end: float, step: float, up: bool) -> float:
    """The place between two values of a grid where those below the end stop; `up`: also the end itself.

    >>> _halfway(3.0, 1.0, up=True), _halfway(3.0, 1.0, up=False), _halfway(2.5, 1.0, up=True)
    (3.5, 2.5, 2.5)
    """
    if not math.isfinite(end):
        return end
    place = end / step
    nearest = round(place)
    place = nearest if abs(place - nearest) < NEAR else place
    return ((math.floor(place) if up else math.ceil(place) - 1) + 0.5) * step


End = tuple[float, bool]
"""An end of a range, and whether it is itself outside."""
OPEN: tuple[End, End] = ((-math.inf, True), (math.inf, True))


def _ends(column: Column, value: Any) -> tuple[End, End] | None:
    """The ends of a range; None if a value is given."""
    if isinstance(value, (tuple, list)):
        if len(value) != 2:
            raise MemgenError(f"column {column.name!r}: a range is (low, high), None for an open end; not {value!r}")
        low, high = (None if end is None else str(end) for end in value)
        return _closed(low, high, column)
    textual = bool(column.levels) and isinstance(column.levels[0], str)
    if not isinstance(value, str) or (textual and value in column.levels):
        return None
    text = value.strip()
    if operator := next((operator for operator in OPERATORS[:4] if text.startswith(operator)), None):
        end = (math.nan if textual else float(_number(column, text[len(operator) :])), len(operator) == 1)
        return (end, OPEN[1]) if operator[0] == ">" else (OPEN[0], end)
    if column.kind in DATED:
        first, dots, last = text.partition("..")
        return _closed(first or None, last or None, column) if dots and text != ".." else None
    match = None if textual or text == ".." else RANGE.fullmatch(text)
    return None if match is None else _closed(match[1], match[2], column)


def _closed(low: str | None, high: str | None, column: Column) -> tuple[End, End]:
    """low <= x <= high, open where an end is None."""
    first, last = (None if end is None else (float(_number(column, end)), False) for end in (low, high))
    return first or OPEN[0], last or OPEN[1]
