"""The values of a column before they are encoded: numbers, truth values or text, some of them missing."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from decimal import Decimal
from functools import cached_property
from numbers import Real
from typing import Any

import numpy as np
from jaxtyping import Bool, Float64, Shaped
from numpy.typing import NDArray

from memgen.errors import MemgenError

LARGEST = 1e30
"""Larger numbers overflow in float32, or their squares do."""
FORMS = {"number": "numbers", "truth": "truth values", "text": "text", "date": "dates", "nothing": "nothing"}
"""The form of a column's values -> its name in messages."""


@dataclass(frozen=True)
class Values:
    """A column: float64 with NaN where a value is missing, of dates in seconds since 1970; or text with None."""

    form: str
    data: Shaped[NDArray[Any], " N"]

    @cached_property
    def missing(self) -> Bool[NDArray[np.bool_], " N"]:
        if self.form != "text":
            missing: NDArray[np.bool_] = np.isnan(self.data)
            return missing
        return np.fromiter((value is None for value in self.data), np.bool_, len(self.data))

    @property
    def observed(self) -> Shaped[NDArray[Any], " n"]:
        return self.data[~self.missing]


@dataclass(frozen=True)
class Coded:
    """A column as its different values and, for each row, which of them it has: text in one or two bytes.

    >>> Coded(np.array([1, 0, 1]), np.array(["Basel", "Bern"], dtype=object)).decoded()
    array(['Bern', 'Basel', 'Bern'], dtype=object)
    """

    codes: Shaped[NDArray[Any], " N"]
    levels: Shaped[NDArray[Any], " levels"]

    def __len__(self) -> int:
        return len(self.codes)

    def decoded(self) -> Shaped[NDArray[Any], " N"]:
        values: NDArray[Any] = self.levels[self.codes]
        return values


def tidy(name: str, values: Shaped[NDArray[Any], "..."] | Coded) -> Values:
    """The values of a column of any NumPy type; durations, lists, infinities and mixtures are refused.

    Missing are None, NaN, NaT and pandas.NA.

    >>> tidy("town", np.array(["Bern", None, "Basel"], dtype=object))
    Values(form='text', data=array(['Bern', None, 'Basel'], dtype=object))
    >>> tidy("age", np.array([3, None, 4.5], dtype=object))
    Values(form='number', data=array([3. , nan, 4.5]))
    """
    if isinstance(values, Coded):
        values = values.decoded()
    if values.ndim != 1:
        raise MemgenError(f"column {name!r} has shape {values.shape}; a column is one value per row")
    kind = values.dtype.kind
    if kind in "OUT":  # objects, text, and text of NumPy 2
        return _of_objects(name, values.astype(object).tolist())
    if kind == "M":
        return Values("date", seconds(values))
    if kind not in "biuf":
        what = "durations" if kind == "m" else f"values of type {values.dtype}"
        raise MemgenError(f"column {name!r} holds {what}; make numbers or text of them, or drop it")
    return Values("truth" if kind == "b" else "number", checked(name, values.astype(np.float64)))


def seconds(dates: Shaped[NDArray[Any], " N"]) -> Float64[NDArray[np.float64], " N"]:
    """
    >>> seconds(np.array(["1970-01-02", "NaT"], dtype="datetime64[D]"))
    array([86400.,    nan])
    """
    whole = dates.astype("datetime64[s]")
    return np.where(np.isnat(whole), np.nan, whole.astype(np.int64).astype(np.float64))


def checked(name: str, values: Float64[NDArray[np.float64], " N"]) -> Float64[NDArray[np.float64], " N"]:
    """Refuse infinities and what float32 cannot hold."""
    large = np.flatnonzero(np.abs(values) > LARGEST)
    if len(large):
        value = values[large[0]]
        what = "an infinity" if math.isinf(value) else f"{value:g}, which is too large (rescale the column)"
        raise MemgenError(f"column {name!r} has {what} in row {large[0] + 1}")
    return values


def is_missing(value: object) -> bool:
    """Whether a value is None, NaN, NaT or pandas.NA.

    >>> is_missing(None), is_missing(float("nan")), is_missing(0), is_missing("")
    (True, True, False, False)
    """
    if value is None:
        return True
    if isinstance(value, Real | Decimal):
        return bool(value != value)
    return type(value).__name__ in ("NAType", "NaTType") or (isinstance(value, np.datetime64) and bool(np.isnat(value)))


def _form(value: object) -> str | None:
    """The key of FORMS that describes an object; None if it has no form."""
    if isinstance(value, str):
        return "text"
    if isinstance(value, bool | np.bool_):
        return "truth"
    if isinstance(value, date | np.datetime64):
        return "date"
    return "number" if isinstance(value, Real | Decimal) else None


def _of_objects(name: str, items: list[Any]) -> Values:
    if set(map(type, items)) == {str}:
        return Values("text", np.array(items, dtype=object))
    missing = [is_missing(item) for item in items]
    first: dict[str, int] = {}
    for row, (item, absent) in enumerate(zip(items, missing, strict=True)):
        if not absent:
            form = _form(item)
            if form is None:
                raise MemgenError(
                    f"column {name!r} has a value of type {type(item).__name__} in row {row + 1}; a column holds "
                    "numbers, text, dates or truth values: convert it, or drop it"
                )
            first.setdefault(form, row)
    if len(first) > 1:
        (one, i), (other, j) = list(first.items())[:2]
        raise MemgenError(
            f"column {name!r} mixes {FORMS[one]} and {FORMS[other]}: row {i + 1} has {items[i]!r}, row {j + 1} has "
            f"{items[j]!r}; make all of them {FORMS['text']} or all {FORMS['number']}"
        )
    form = next(iter(first), "nothing")
    if form == "text":
        texts = [None if absent else str(item) for item, absent in zip(items, missing, strict=True)]
        return Values("text", np.array(texts, dtype=object))
    if form == "date":
        dates = [
            np.datetime64("NaT", "s") if absent else _date(item) for item, absent in zip(items, missing, strict=True)
        ]
        return Values("date", seconds(np.array(dates)))
    numbers = [math.nan if absent else _float(item) for item, absent in zip(items, missing, strict=True)]
    return Values(form, checked(name, np.array(numbers, dtype=np.float64)))


def _date(value: Any) -> np.datetime64:
    """A date or time to the second; of one with a time zone that of UTC."""
    if isinstance(value, datetime) and value.tzinfo is not None:
        value = value.astimezone(UTC).replace(tzinfo=None)
    whole: np.datetime64 = np.datetime64(value).astype("datetime64[s]")
    return whole


def _float(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:  # a whole number of more than 308 digits
        return math.inf


def shorten(text: str, most: int) -> str:
    """
    >>> shorten("a long story", 9)
    'a long...'
    """
    return text if len(text) <= most else text[: most - 3] + "..."


def shown(value: Any) -> str:
    """A value in a message.

    >>> shown("Bern"), shown(np.float64(3))
    ("'Bern'", '3')
    """
    return repr(shorten(value, 40)) if isinstance(value, str) else f"{value:.15g}"


def some(levels: Sequence[Any], most: int) -> str:
    """The first few.

    >>> some(["a", "b", "c"], 2)
    'a, b and 1 more'
    """
    first = ", ".join(shorten(str(level), 30) for level in levels[:most])
    return first + (f" and {len(levels) - most} more" if len(levels) > most else "")
