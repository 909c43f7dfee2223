"""One column of a table: its kind, and how its values are encoded as numbers and decoded."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from jaxtyping import Float64, Shaped
from numpy.typing import NDArray

from memgen.data.kinds import AUTO, KINDS, LEVELLED, guess
from memgen.data.values import FORMS, Values, shown, some
from memgen.errors import MemgenError, unknown

IMPOSSIBLE: dict[str, tuple[Callable[[NDArray[np.float64]], NDArray[np.bool_]], str]] = {
    "real": (lambda x: np.zeros(x.shape, bool), "numbers"),
    "positive": (lambda x: x <= 0, "numbers above 0"),
    "count": (lambda x: (x < 0) | (x != np.floor(x)) & ~np.isnan(x), "whole numbers from 0 up"),
}
"""kind of numbers -> which ones it cannot have, and what it needs."""


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
    """Of a real column: subtracted in float64, so that float32 keeps the digits that differ between rows."""
    why: str = "given"
    """Why it has this kind, in a few words."""


def infer_column(name: str, values: Values, given: str, train: NDArray[np.intp] | None) -> Column:
    if values.missing.all():
        raise MemgenError(f"column {name!r} has not one value; drop it")
    kind, why = guess(name, values) if given == AUTO else (given, "given")
    levels = _levels(values) if kind in LEVELLED else ()
    if kind == "binary" and len(levels) > 2:
        raise MemgenError(
            f"column {name!r} cannot be binary: it has {len(levels)} levels ({some(levels, 5)}); say categorical"
        )
    encoded = encode_column(Column(name, kind, levels), values, "error")  # which refuses what the kind cannot have
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


def encode_column(column: Column, values: Values, unseen: str) -> Float64[NDArray[np.float64], " N"]:
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


def decode_column(column: Column, x: Float64[NDArray[np.float64], " N"]) -> Shaped[NDArray[Any], " N"]:
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


def column_from_entry(entry: object, place: int) -> Column:
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
    """Whether it is a number that float64 can hold; JSON allows larger ones."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max
