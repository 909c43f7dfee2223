"""Columns of a schema as entries of a JSON document, which are checked before they are trusted."""

from __future__ import annotations

import math
import sys
from dataclasses import fields
from typing import Any

from memgen.data.column import Column
from memgen.data.kinds import DATED, KINDS, LEVELLED
from memgen.data.written import FORMATS, Digits
from memgen.errors import MemgenError, unknown

FIRST = ("name", "kind", "levels", "offset", "why")
"""Entries that every schema has."""
MOST_FORMAT = 40
"""Characters."""


def column_from_entry(entry: object, place: int) -> Column:
    """The column of an entry; one that an earlier version wrote has fewer fields."""
    what = f"column {place}"
    known = {field.name for field in fields(Column)}
    if not isinstance(entry, dict) or not set(FIRST) <= set(entry) <= known:
        raise MemgenError(f"{what} is not an entry with name, kind, levels, offset and why")
    name, kind, levels, offset, why = (entry[key] for key in FIRST)
    if not isinstance(name, str) or not isinstance(why, str):
        raise MemgenError(f"{what}: its name and why must be text")
    if not isinstance(kind, str) or kind not in KINDS:
        raise unknown("kind of column", kind, KINDS)
    _check_levels(what, kind, levels)
    _check_numbers(what, entry)
    if offset and kind in (*LEVELLED, "positive", "count", "zero_inflated"):
        raise MemgenError(f"{what} is {kind} and cannot have an offset")
    _check_format(what, kind, entry.get("format", ""))
    return Column(**(entry | {"levels": tuple(levels), "offset": float(offset)}))


def _check_numbers(what: str, entry: dict[str, Any]) -> None:
    for key in ("offset", "scale", "step", "low", "high"):
        value = entry.get(key, 1.0)
        if not (_is_number(value) or (key in ("low", "high") and value is None)):
            raise MemgenError(f"{what}: its {key} is no number")
    if entry.get("scale", 1.0) <= 0 or entry.get("step", 0.0) < 0:
        raise MemgenError(f"{what}: its scale must be above 0, and its step not below")
    low, high = entry.get("low"), entry.get("high")
    if (low is None) != (high is None) or (low is not None and high is not None and low > high):
        raise MemgenError(f"{what}: its range has one end, or no value lies in it")


def _check_format(what: str, kind: str, format: object) -> None:
    if not isinstance(format, str) or len(format) > MOST_FORMAT:
        raise MemgenError(f"{what}: its format must be a short text")
    good = format.replace("%-", "%") in FORMATS if kind in DATED else Digits.of(format) is not None
    if format and not good:
        raise MemgenError(f"{what} is {kind}, and {format!r} is no format of such values")


def _check_levels(what: str, kind: str, levels: object) -> None:
    if not isinstance(levels, list):
        raise MemgenError(f"{what}: its levels are no list")
    texts, truths = (all(isinstance(level, form) for level in levels) for form in (str, bool))
    numbers = all(_is_number(level) for level in levels)
    if not (texts or truths or numbers) or levels != sorted(set(levels)):
        raise MemgenError(f"{what}: its levels must be different values of one type, sorted")
    least, most = (1, 2) if kind == "binary" else (1, math.inf) if kind in LEVELLED else (0, 0)
    if not least <= len(levels) <= most:
        raise MemgenError(f"{what} is {kind} and cannot have {len(levels)} levels")


def _is_number(value: object) -> bool:
    """Whether it is a number that float64 can hold; JSON allows larger ones."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    return abs(value) <= sys.float_info.max
