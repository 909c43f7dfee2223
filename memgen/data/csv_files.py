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

from memgen.data.cells import MARK, bare, delimiter_of, is_header, is_missing
from memgen.data.columns import check_names
from memgen.data.guessing import MOST_LEVELS
from memgen.data.own_tables import Expected, RawTable, check_ignored, default_names
from memgen.data.parsing import Reading, is_padded, parse, plain_numbers, read_cell
from memgen.data.values import Coded, shorten
from memgen.data.written import LOCALES, SAMPLE, Digits, format_of_cells
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
    """The columns of a table that are not to be ignored. What is wrong with single columns is kept for one message."""
    layout = read_layout(path, header)
    names = default_names(len(layout.first))
    if layout.named:
        names = tuple(bare(cell) or other for cell, other in zip(layout.first, names, strict=True))
    check_names(names)
    if expected.columns is None:
        check_ignored(expected.ignore, names)
    keep = [i for i, name in enumerate(names) if name not in expected.ignore]

    def rows() -> Iterator[list[str]]:
        return ([cells[i] for i in keep] for cells in data_rows(path, layout))

    kept = tuple(names[i] for i in keep)
    how = [expected.reading(names[i], i, layout.named) for i in keep]
    numbers, textual = read_numbers(rows(), how)
    if len(numbers) == 0:
        raise MemgenError(f"{path} has no rows")
    values: list[NDArray[Any] | Coded] = list(numbers.T)
    formats = formats_of(list(itertools.islice(rows(), SAMPLE)), values, how)
    problems: dict[str, str] = {}
    for i, coded, first, problem in read_texts(rows(), textual, how, kept):
        try:
            if problem is not None:
                raise problem
            levels, formats[i] = parse(kept[i], coded.levels.tolist(), how[i], first)
            values[i] = Coded(coded.codes, levels)
        except MemgenError as error:
            problems[kept[i]] = str(error)
    ignored = tuple(name for name in names if name in expected.ignore)
    return RawTable(kept, tuple(values), layout.named, None, tuple(formats), ignored, tuple(problems.items()))


def formats_of(rows: Sequence[list[str]], values: Sequence[NDArray[Any] | Coded], how: Sequence[Reading]) -> list[str]:
    """How the numbers of each column are written, by its first cells and all of its numbers."""
    formats = []
    for cells, x, reading in zip(zip(*rows, strict=True), values, how, strict=True):
        assert isinstance(x, np.ndarray)
        present = [cell for cell in cells if not is_missing(cell)]
        known = x[~np.isnan(x)].astype(np.float64) if present else np.empty(0)
        formats.append(reading.format or (format_of_cells(present, known) if len(known) else ""))
    return formats


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


def read_numbers(rows: Iterator[list[str]], how: Sequence[Reading]) -> tuple[Float[NDArray[Any], "N D"], list[int]]:
    """All columns as numbers, and which of them must be read as text."""
    textual = {i for i, reading in enumerate(how) if not _is_plain(reading)}
    codes = [reading.form == "any" for reading in how]
    size = max(1, BLOCK // len(how))
    blocks: list[NDArray[Any]] = []
    while block := list(itertools.islice(rows, size)):
        blocks.append(narrowed(_block(block, textual, codes)))
    return np.concatenate(blocks) if blocks else np.empty((0, len(how))), sorted(textual)


def _is_plain(how: Reading) -> bool:
    """Whether the cells are read as Python reads numbers."""
    digits = Digits.of(how.format)
    separated = digits is not None and (digits.group or digits.mark != ".")
    return how.form in ("any", "number") and LOCALES[how.locale][1:2] != "," and not separated


def _block(rows: list[list[str]], textual: set[int], codes: Sequence[bool]) -> NDArray[np.float64]:
    """NaN where a value is missing, and in columns that hold text; these are added to `textual`. In the columns
    `codes`, a zero before a whole number makes it a text."""
    if not textual:
        cells = list(itertools.chain.from_iterable(rows))
        if not (any(codes) and is_padded(cells)) and (numbers := plain_numbers(cells)) is not None:
            return numbers.reshape(len(rows), -1)
    values = np.full((len(rows), len(rows[0])), np.nan)
    for i, column_cells in enumerate(zip(*rows, strict=True)):
        if i in textual:
            continue
        if codes[i] and is_padded(column_cells):
            textual.add(i)
            continue
        column = plain_numbers(column_cells)
        if column is not None:
            values[:, i] = column
            continue
        known = {cell: read_cell(cell) for cell in set(column_cells)}
        if any(isinstance(value, str) for value in known.values()):
            textual.add(i)
        else:
            values[:, i] = [np.nan if known[cell] is None else known[cell] for cell in column_cells]
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


class Cells:
    """The distinct cells of a column, in the order in which they appear."""

    def __init__(self, name: str, how: Reading) -> None:
        self.name, self.how = name, how
        self.levels: dict[str, int] = {}
        self.codes = array("I")
        self.first: list[int] = []
        """The row in which each distinct cell appears first."""
        self.problem: MemgenError | None = None

    def add(self, row: int, cell: str) -> None:
        if self.problem is not None:
            return
        code = self.levels.setdefault(cell, len(self.levels))
        self.codes.append(code)
        if code == len(self.first):
            self.first.append(row)
            if code == TOO_MANY and self.how.form == "any":
                self.problem = self._refused()
                if self.problem is not None:  # which is all that is still needed
                    self.levels, self.codes, self.first = {}, array("I"), []

    def _refused(self) -> MemgenError | None:
        """The error for a column of too many texts; None if they are numbers or dates."""
        try:
            values = parse(self.name, list(self.levels), self.how, self.first).values
        except MemgenError as error:
            return error
        if values.dtype != object:
            return None
        return MemgenError(
            f"column {self.name!r} has more than {TOO_MANY:,} levels of text, such as "
            f"{shorten(next(iter(self.levels)).strip(), 40)!r}: an identifier or free text"
        )


def read_texts(
    rows: Iterator[list[str]], places: list[int], how: Sequence[Reading], names: Sequence[str]
) -> Iterator[tuple[int, Coded, list[int], MemgenError | None]]:
    """For each of these columns: its position, its distinct cells with the code of each row, the first row of each
    distinct cell, and what is wrong with it."""
    columns = [Cells(names[place], how[place]) for place in places]
    for row, cells in enumerate(rows if places else (), 1):
        for place, column in zip(places, columns, strict=True):
            column.add(row, cells[place])
    for place, column in zip(places, columns, strict=True):
        levels = np.array(list(column.levels), dtype=object)
        yield place, Coded(_as_codes(column.codes, len(levels)), levels), column.first, column.problem


def _as_codes(codes: array[int], levels: int) -> NDArray[Any]:
    return np.frombuffer(codes, np.uint32).astype(np.min_scalar_type(max(0, levels - 1)))
