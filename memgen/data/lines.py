"""A table as its exact text: lines of cells, written back unchanged but for the values that were filled in."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from memgen.data.cells import Opening, split_rows
from memgen.errors import MemgenError


@dataclass(frozen=True)
class Lines:
    """Rows of cells, and the text before and after them."""

    head: str
    """The text before the first row: a byte-order mark, a line of names."""
    cells: list[list[str]]
    ends: list[str]
    """The text after each row: the end of its line, and any empty lines."""
    numbers: list[int]
    """Which line of the file each row is."""
    delimiter: str
    named: bool
    """Whether the first line is a header."""

    def text(self, cells: list[list[str]]) -> str:
        """The file with these cells."""
        rows = (self.delimiter.join(row) + end for row, end in zip(cells, self.ends, strict=True))
        return self.head + "".join(rows)


def read_lines(path: Path, opening: Opening, columns: int) -> Lines:
    """The rows of a file, each of which must have `columns` cells."""
    head, body, delimiter, named = opening
    cells: list[list[str]] = []
    ends: list[list[str]] = []
    heads = [head]
    numbers: list[int] = []
    line = 1 + _breaks(head)
    for i, (row, end) in enumerate(split_rows(body, delimiter)):
        first_line, text = line, delimiter.join(row)
        line += 1 + (_breaks(text) if '"' in text else 0)
        if named and i == 0:
            heads.append(text + end)
        elif not text and columns > 1:  # an empty line is no row
            (ends[-1] if ends else heads).append(end)
        else:
            check_width(f"{path}, line {first_line},", len(row), columns)
            cells.append(row)
            ends.append([end])
            numbers.append(first_line)
    if not cells:
        raise MemgenError(f"{path} has no rows")
    return Lines("".join(heads), cells, ["".join(parts) for parts in ends], numbers, delimiter, named)


def _breaks(text: str) -> int:
    return len(re.findall(r"\r\n|\r|\n", text))


def check_width(path: object, actual: int, columns: int) -> None:
    if actual != columns:
        what = "too few" if actual < columns else "too many"
        raise MemgenError(f"{path} has {actual} columns, which is {what}: the model has {columns}")
