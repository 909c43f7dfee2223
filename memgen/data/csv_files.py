"""CSV files as columns of values: time and memory grow with the size of the file, and the file is never in memory.

It is read once for numbers, some rows at a time, and once more for those columns that turn out to hold text.
"""

from __future__ import annotations

import csv
import itertools
from array import array
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy.typing import NDArray

from memgen.data.cells import MARK, bare, delimiter_of, is_header
from memgen.data.columns import check_names
from memgen.data.kinds import MOST_LEVELS
from memgen.data.own_tables import Expected, RawTable, default_names, parse, plain_numbers, read_cell
from memgen.data.values import Coded, shorten
from memgen.errors import MemgenError

MOST_COLUMNS = 1_000_000
BLOCK = 1 << 14
"""Cells that are held as text at a time; at least one row."""
TOO_MANY = 2 * MOST_LEVELS
"""Different texts of a column whose kind is not given: it will be refused, and is read no further."""


class Layout(NamedTuple):
    """How a text table is laid out."""

    blank: int
    """Lines before the first one that has something in it."""
    delimiter: str
    named: bool
    """Whether the first row is a header."""
    first: list[str]
    """The cells of the first row."""


def read_csv(path: Path, header: str, expected: Expected) -> RawTable:
    layout = read_layout(path, header)
    names = default_names(len(layout.first))
    if layout.named:
        names = tuple(bare(cell) or other for cell, other in zip(layout.first, names, strict=True))
    check_names(names)
    forms = [expected.form(name, i, layout.named) for i, name in enumerate(names)]
    numbers, textual = read_numbers(data_rows(path, layout), forms)
    if len(numbers) == 0:
        raise MemgenError(f"{path} has no rows")
    values: list[NDArray[Any] | Coded] = list(numbers.T)
    for i, coded, rows in read_texts(data_rows(path, layout), textual, forms, names):
        values[i] = Coded(coded.codes, parse(names[i], coded.levels.tolist(), forms[i], rows))
    return RawTable(names, tuple(values), layout.named)


def read_layout(path: Path, header: str) -> Layout:
    """The layout, from the first rows. `header`: whether the first is a header: "yes", "no", or "auto" to infer it."""
    lines = text_lines(path)
    blank = 0
    for line in lines:
        text = line.removeprefix(MARK) if blank == 0 else line
        if text.strip():
            break
        blank += 1
    else:
        raise MemgenError(f"{path} is empty")
    delimiter = delimiter_of(text)
    if text.count(delimiter) >= MOST_COLUMNS:
        raise MemgenError(f"{path} has {text.count(delimiter) + 1:,} columns; at most {MOST_COLUMNS:,} are read")
    layout = Layout(blank, delimiter, False, [])
    first = next(rows_of(path, layout))
    return layout._replace(named=header == "yes" or (header == "auto" and is_header(first)), first=first)


def text_lines(path: Path) -> Iterator[str]:
    """The lines with their ends, of which there are three kinds."""
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from file
    except UnicodeDecodeError:
        raise MemgenError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None


def data_rows(path: Path, layout: Layout) -> Iterator[list[str]]:
    return itertools.islice(rows_of(path, layout), int(layout.named), None)


def rows_of(path: Path, layout: Layout) -> Iterator[list[str]]:
    """All rows as cells, each as many as the first has; an empty line is no row, unless rows are one cell."""
    quotes = 0

    def counted() -> Iterator[str]:
        nonlocal quotes
        for i, line in enumerate(text_lines(path)):
            if i >= layout.blank:
                quotes += line.count('"')
                yield line.removeprefix(MARK) if i == 0 else line

    reader = csv.reader(counted(), delimiter=layout.delimiter, skipinitialspace=True)
    width = 0
    last: list[str] = []
    try:
        for cells in reader:
            if not cells and width == 1:
                cells = [""]
            if cells and width not in (0, len(cells)):
                line = layout.blank + reader.line_num
                raise MemgenError(f"{path}, line {line}, has {len(cells)} columns, the first line has {width}")
            if cells:
                width, last = len(cells), cells
                yield cells
    except csv.Error as error:
        line = layout.blank + reader.line_num
        raise MemgenError(f"{path}, line {line}: {error}; is a quote not closed?") from None
    if quotes % 2 and any("\n" in cell for cell in last):
        raise MemgenError(f"{path}: a quote that opens is not closed; the last row would go over several lines")


# ---- numbers


def read_numbers(rows: Iterator[list[str]], forms: Sequence[str]) -> tuple[Float[NDArray[Any], "N D"], list[int]]:
    """All columns as numbers, and which of them must be read as text."""
    textual = {i for i, form in enumerate(forms) if form in ("levels", "text")}
    size = max(1, BLOCK // len(forms))
    blocks: list[NDArray[Any]] = []
    while block := list(itertools.islice(rows, size)):
        blocks.append(narrowed(_block(block, textual)))
    return np.concatenate(blocks) if blocks else np.empty((0, len(forms))), sorted(textual)


def _block(rows: list[list[str]], textual: set[int]) -> NDArray[np.float64]:
    """NaN where a value is missing, and in columns that hold text; these are added to `textual`."""
    if not textual and (numbers := plain_numbers(list(itertools.chain.from_iterable(rows)))) is not None:
        return numbers.reshape(len(rows), -1)
    values = np.full((len(rows), len(rows[0])), np.nan)
    for i, cells in enumerate(zip(*rows, strict=True)):
        if i in textual:
            continue
        column = plain_numbers(cells)
        if column is not None:
            values[:, i] = column
            continue
        known = {cell: read_cell(cell) for cell in set(cells)}
        if any(isinstance(value, str) for value in known.values()):
            textual.add(i)
        else:
            values[:, i] = [np.nan if known[cell] is None else known[cell] for cell in cells]
    return values


def narrowed(values: NDArray[np.float64]) -> NDArray[Any]:
    """The same numbers in fewer bytes, where that loses nothing; small whole numbers take two bytes.

    >>> narrowed(np.array([1.0, np.nan])).dtype, narrowed(np.array([0.1])).dtype
    (dtype('float16'), dtype('float64'))
    """
    for kind in (np.float16, np.float32):
        with np.errstate(over="ignore", under="ignore"):
            fewer = values.astype(kind)
        if np.array_equal(fewer.astype(np.float64), values, equal_nan=True):
            return fewer
    return values


# ---- text


def read_texts(
    rows: Iterator[list[str]], places: list[int], forms: Sequence[str], names: Sequence[str]
) -> Iterator[tuple[int, Coded, list[int]]]:
    """For each of these columns: its position, its distinct cells with the code of each row, and the first row of each
    distinct cell."""
    known: list[dict[str, int]] = [{} for _ in places]
    codes = [array("I") for _ in places]
    first: list[list[int]] = [[] for _ in places]
    for row, cells in enumerate(rows if places else (), 1):
        for place, levels, column_codes, starts in zip(places, known, codes, first, strict=True):
            code = levels.setdefault(cells[place], len(levels))
            column_codes.append(code)
            if code == len(starts):
                starts.append(row)
                if code == TOO_MANY and forms[place] == "any":
                    _refuse(names[place], list(levels), starts)
    for place, levels, column_codes, starts in zip(places, known, codes, first, strict=True):
        yield place, Coded(_as_codes(column_codes, len(levels)), np.array(list(levels), dtype=object)), starts


def _as_codes(codes: array[int], levels: int) -> NDArray[Any]:
    return np.frombuffer(codes, np.uint32).astype(np.min_scalar_type(max(0, levels - 1)))


def _refuse(name: str, levels: list[str], rows: list[int]) -> None:
    parse(name, levels, "any", rows)  # has a better message for a column of numbers with mistakes
    raise MemgenError(
        f"column {name!r} has more than {TOO_MANY:,} levels of text, such as {shorten(levels[0].strip(), 40)!r}: "
        "an identifier or free text; drop it, or say that its kind is categorical"
    )
