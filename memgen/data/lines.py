"""A table as its very text: lines of cells, to be written back with nothing changed but what was filled in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from memgen.data.cells import Opening, split
from memgen.errors import MemgenError


@dataclass(frozen=True)
class Lines:
    """Rows of cells, and all that stands around them."""

    head: str
    """What stands before the first row: a byte-order mark, a line of names."""
    cells: list[list[str]]
    ends: list[str]
    """What stands after each row: the end of its line, and any empty lines."""
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
    """The rows of a file, which must have so many columns."""
    head, body, delimiter, named = opening
    lines = body.splitlines(keepends=True)
    if named:
        head += lines.pop(0)
    cells: list[list[str]] = []
    ends: list[str] = []
    numbers: list[int] = []
    for place, line in enumerate(lines, 2 if named else 1):
        text = line.rstrip("\r\n")
        if not text and columns > 1:  # an empty line is no row
            head, ends = (head, [*ends[:-1], ends[-1] + line]) if ends else (head + line, ends)
            continue
        cells.append(split(text, delimiter))
        check_width(f"{path}, line {place},", len(cells[-1]), columns)
        ends.append(line[len(text) :])
        numbers.append(place)
    if not cells:
        raise MemgenError(f"{path} has no rows")
    return Lines(head, cells, ends, numbers, delimiter, named)


def check_width(path: object, found: int, columns: int) -> None:
    if found != columns:
        what = "too few" if found < columns else "too many"
        raise MemgenError(f"{path} has {found} columns, which is {what}: the model has {columns}")
