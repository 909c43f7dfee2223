"""Cells of a column as values: numbers, dates or text."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from memgen.data.cells import comma_hint, is_missing
from memgen.data.values import shorten
from memgen.data.written import (
    EXAMPLES,
    LOCALES,
    SAMPLE,
    Digits,
    date_format,
    format_of_cells,
    number_format,
    read_date,
)
from memgen.errors import MemgenError

NEARLY_ALL = 0.9
"""If more than this fraction of the distinct texts of a column are numbers, the others are mistakes."""
MANY = 20
PADDED = re.compile(r"(?:^|\n)[^\S\n]*0\d+[^\S\n]*(?:\n|$)")
"""A cell of digits that begins with a zero, as codes do; cells are separated by line feeds."""


class Parsed(NamedTuple):
    values: NDArray[Any]
    """float64 with NaN, datetime64 with NaT, or text with None."""
    format: str = ""
    """How they are written (see written.py)."""


class Reading(NamedTuple):
    """How the cells of a column are to be read."""

    form: str = "any"
    """number, date, text, levels (numbers or text), or any."""
    locale: str = "auto"
    format: str = ""
    """The format of the column of a model."""


ANY = Reading()


def parse(name: str, cells: Sequence[str], how: Reading = ANY, rows: Sequence[int] | None = None) -> Parsed:
    """The cells of a column as numbers or dates, if every one that is not missing is one, else as text. `rows`: in
    which row each cell stands, if they are not in order.

    >>> parse("age", ["3", "", "4.5"])
    Parsed(values=array([3. , nan, 4.5]), format='0.#')
    >>> parse("town", ["Bern", "?", " Basel"]).values
    array(['Bern', None, 'Basel'], dtype=object)
    >>> parse("price", ["1,234.50", "7.00"])
    Parsed(values=array([1234.5,    7. ]), format='#,##0.00')
    >>> parse("zip", ["0800", "8001"]).values
    array(['0800', '8001'], dtype=object)
    >>> parse("born", ["31.12.1999", ""]).format
    '%d.%m.%Y'
    """
    by_comma = LOCALES[how.locale][1:2] == ","
    if how.form == "number" and not by_comma and (numbers := plain_numbers(cells)) is not None:
        return Parsed(numbers, how.format or format_of_cells(_sample(cells), numbers[~np.isnan(numbers)]))
    present = [cell for cell in dict.fromkeys(cells) if not is_missing(cell)]
    if how.form == "text" or (how.form in ("any", "levels") and is_padded(present)):
        return Parsed(_texts(cells))
    if how.form == "date":
        return _dates(name, cells, present, how, rows)
    known = {cell: read_cell(cell) for cell in dict.fromkeys(cells)}
    strange = [cell for cell, value in known.items() if isinstance(value, str)]
    if how.form != "levels" and (strange or by_comma) and (digits := _separators(present, how)) is not None:
        known = {cell: None if is_missing(cell) else digits.read(cell) for cell in known}
        values = np.array([known[cell] for cell in cells], dtype=np.float64)
        return Parsed(values, how.format or format_of_cells(present, values[~np.isnan(values)], *digits[:2]))
    if strange and how.form == "any" and (format := date_format(present, how.locale)) is not None:
        return _dates(name, cells, present, how._replace(format=format), rows)
    if strange and _should_be_numbers(known, strange, how.form):
        raise no_number(name, cells, strange, how.form, rows)
    if strange:
        return Parsed(_texts(cells))
    values = np.array([known[cell] for cell in cells], dtype=np.float64)
    return Parsed(values, how.format or format_of_cells(_sample(present), values[~np.isnan(values)]))


def is_padded(cells: Sequence[str]) -> bool:
    """Whether one of the cells is a whole number with a zero before it.

    >>> is_padded(["12", "007"]), is_padded(["0", "0.5"])
    (True, False)
    """
    return PADDED.search("\n".join(cells)) is not None


def _sample(cells: Sequence[str]) -> list[str]:
    return [cell for cell in cells[:SAMPLE] if not is_missing(cell)]


def _texts(cells: Sequence[str]) -> NDArray[Any]:
    texts = {cell: None if is_missing(cell) else cell.strip() for cell in set(cells)}
    return np.array([texts[cell] for cell in cells], dtype=object)


def _separators(present: Sequence[str], how: Reading) -> Digits | None:
    """How numbers that Python cannot read are written, if all present cells are such numbers."""
    digits = Digits.of(how.format)
    if digits is not None and (digits.group or digits.mark != ".") and all(_reads(digits, cell) for cell in present):
        return digits
    found = number_format(present, how.locale) if present else None
    if found is None or any(found.group in cell for cell in present):
        return found
    return found._replace(group="")


def _reads(digits: Digits, cell: str) -> bool:
    try:
        digits.read(cell)
    except ValueError:
        return False
    return True


def _dates(name: str, cells: Sequence[str], present: Sequence[str], how: Reading, rows: Sequence[int] | None) -> Parsed:
    """Dates by a format, or by the one that fits all."""
    format = how.format or (date_format(present, how.locale) if present else "%Y-%m-%d")
    if format is None:
        raise MemgenError(
            f"column {name!r} is given as dates, and its cells, such as {shorten(present[0].strip(), 40)!r}, have no "
            f"common format that is read ({EXAMPLES})"
        )
    known: dict[str, np.datetime64] = {}
    for row, cell in zip(range(1, len(cells) + 1) if rows is None else rows, cells, strict=True):
        try:
            if cell not in known:
                known[cell] = np.datetime64("NaT" if is_missing(cell) else read_date(cell, format), "s")
        except ValueError:
            text = shorten(cell.strip(), 40)
            raise MemgenError(
                f"column {name!r}, row {row}: {text!r} is not a date like the others ({format})"
            ) from None
    return Parsed(np.array([known[cell] for cell in cells], dtype="datetime64[s]"), format)


def no_number(
    name: str, cells: Sequence[str], strange: Sequence[str], form: str, rows: Sequence[int] | None
) -> MemgenError:
    """The error for cells of a column of numbers that are none."""
    places = range(1, len(cells) + 1) if rows is None else rows
    others = set(strange)
    row, cell = next((i, cell) for i, cell in zip(places, cells, strict=True) if cell in others)
    levels = ", or say that the kind of the column is categorical" if form == "any" else ""
    advice = (
        comma_hint(cell) and f"{comma_hint(cell)}, or all a comma"
    ) or f"; leave the cell empty if the value is missing{levels}"
    more = f" (and {len(others) - 1} other values are not)" if len(others) > 1 else ""
    return MemgenError(f"column {name!r}, row {row}: {shorten(cell.strip(), 40)!r} is not a number{more}{advice}")


def plain_numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """The cells as numbers, if all of them are: the quick way for most columns of most tables."""
    try:
        return None if "_" in "".join(cells) else np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None


def read_cell(cell: str) -> float | str | None:
    """A number, a text, or None if it is missing. Python's 1_000 is no number in a table.

    >>> [read_cell(cell) for cell in (" 3.50", "n/a", "Bern ", "1_000")]
    [3.5, None, 'Bern', '1_000']
    """
    try:
        if "_" not in cell:
            return float(cell)
    except ValueError:
        pass
    return None if is_missing(cell) else cell.strip()


def _should_be_numbers(known: Mapping[str, float | str | None], strange: Sequence[str], form: str) -> bool:
    """Whether the user gave a kind of numbers, or all but a few cells are numbers, or all have decimal commas."""
    if form in ("levels", "text"):
        return False
    present = sum(value is not None for value in known.values())
    nearly = present > MANY and len(strange) < (1 - NEARLY_ALL) * present
    return form == "number" or nearly or all(comma_hint(cell) for cell in strange)
