"""Rows of a table as the user writes them: text of every cell, and whole CSV files."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from memgen.data.columns import Column, Columns
from memgen.data.kinds import LEVELLED
from memgen.data.written import Digits, write_date

DIGITS = 6
"""Significant ones of a number, or of the spread around the column's mean where that is smaller ..."""
MOST_DIGITS = 12
"""... and never more than these."""


def as_texts(
    columns: Columns,
    x: Float[NDArray[Any], "N D"],
    given: Mapping[int, str] | None = None,
    free: Collection[int] = (),
) -> list[list[str]]:
    """The user's values as text, row by row. `given`: the text of a whole column, by its position; `free`: columns
    whose range is not kept.

    >>> columns = Columns((Column("town", "binary", ("Basel", "Bern")), Column("x", "real", offset=1.7e6)))
    >>> as_texts(columns, np.array([[1, 0.123456789], [0, np.nan]]))
    [['Bern', '1700000.12346'], ['Basel', '']]
    """
    by_column = [
        [_text(column, value, spread) for value in values]
        for column, values, spread in zip(columns, columns.filled(x, free), _spreads(columns, x), strict=True)
    ]
    for place, text in (given or {}).items():
        by_column[place] = [text] * len(x)
    return [list(row) for row in zip(*by_column, strict=True)]


def _spreads(columns: Columns, x: Float[NDArray[Any], "N D"]) -> list[float]:
    """The largest deviation in each column; it sets the precision of written numbers that have no format."""
    sizes = np.abs(x.astype(np.float64))
    largest = np.where(np.isnan(sizes), 0.0, sizes).max(0, initial=0.0)
    return [float(v) * column.scale for v, column in zip(largest, columns, strict=True)]


def _text(column: Column, value: Any, spread: float) -> str:
    if isinstance(value, np.datetime64):
        return "" if np.isnat(value) else write_date(value.item(), column.format)
    if value is None or (not isinstance(value, str) and math.isnan(value)):
        return ""
    if isinstance(value, str):
        return value
    if isinstance(value, bool | np.bool_):
        return str(bool(value))
    if digits := Digits.of(column.format):
        return digits.write(float(value))
    if column.kind in (*LEVELLED, "count"):
        return f"{value:.15g}"
    return number_text(float(value), spread if column.offset else float(value))


def number_text(value: float, spread: float) -> str:
    """A number to six digits of the spread that it has in its column.

    >>> number_text(41.23456789, 20.0), number_text(0.000123456789, 0.000123456789), number_text(-0.0, 0.0)
    ('41.2346', '0.000123457', '0')
    """
    size = max(abs(spread), abs(value) * 10.0 ** (DIGITS - MOST_DIGITS))
    if size == 0:
        return "0"
    return f"{round(value, DIGITS - 1 - math.floor(math.log10(size))) + 0.0:.15g}"


def quoted(text: str, delimiter: str) -> str:
    """A cell that holds what separates cells is put into quotes.

    >>> quoted("Bern", ","), quoted("Bern, BE", ",")
    ('Bern', '"Bern, BE"')
    """
    special = any(mark in text for mark in (delimiter, '"', "\n", "\r")) or text != text.strip()
    return '"' + text.replace('"', '""') + '"' if special else text


def csv_text(
    columns: Columns,
    x: Float[NDArray[Any], "N D"],
    given: Mapping[int, str] | None = None,
    free: Collection[int] = (),
) -> str:
    """A whole CSV file, with a header; `given` and `free` as in `as_texts`."""
    content = io.StringIO()
    writer = csv.writer(content, lineterminator="\n")
    writer.writerow(columns.names)
    writer.writerows(as_texts(columns, x, given, free))
    return content.getvalue()
