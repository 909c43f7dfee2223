"""Text tables: which line is a header, what separates the cells, and what a cell says."""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

from memgen.errors import MemgenError

MISSING = {"", "nan", "na", "n/a", "null", "none", "?"}
"""Cells of a table that stand for a missing value, in any case."""
MARK = "\ufeff"
"""Of the byte order, which some programs put before the first line."""


class Opening(NamedTuple):
    """How a text table begins."""

    head: str
    """What stands before the first line that has something in it."""
    body: str
    delimiter: str
    named: bool
    """Whether the first line of the body is a header."""


def read_opening(path: Path, header: str = "auto") -> Opening:
    """The text of a table; whether it has a header is seen from its first line ("auto") or said ("yes", "no")."""
    text = read_text(path)
    lines = text.removeprefix(MARK).splitlines(keepends=True)
    first = next((i for i, line in enumerate(lines) if line.strip()), None)
    if first is None:
        raise MemgenError(f"{path} is empty")
    head = text[: len(text) - len(text.removeprefix(MARK))] + "".join(lines[:first])
    delimiter = max(",;\t", key=lines[first].count)
    cells = split(lines[first].rstrip("\r\n"), delimiter)
    named = header == "yes" or (header == "auto" and is_header(cells))
    return Opening(head, text[len(head) :], delimiter, named)


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise MemgenError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None


def split(line: str, delimiter: str) -> list[str]:
    """The cells of a line with their very text, quotes and blanks included.

    >>> split('1, "2",,3', ",")
    ['1', ' "2"', '', '3']
    """
    cell = rf'((?: *"(?:[^"]|"")*" *)|[^{delimiter}]*)(?:{delimiter}|$)'
    found = re.findall(cell, line)
    # The pattern meets the end of a line once more, unless the line ends in a delimiter, behind which a cell is empty.
    return found if line.endswith(delimiter) or not line else found[:-1]


def is_header(cells: list[str]) -> bool:
    """Names only, or the numbers 0, 1, 2, ... that pandas writes where columns have no names.

    >>> is_header(["age", "town"]), is_header(["0", "1", "2"]), is_header(["3", "Bern"])
    (True, True, False)
    """
    numbers = [number(cell) for cell in cells]
    if len(cells) > 2 and numbers == list(range(len(cells))):
        return True
    words = [cell for cell in cells if not is_missing(cell)]
    return (
        bool(words) and all(re.search("[^\\W\\d]", cell) for cell in words) and not any(n is not None for n in numbers)
    )


def bare(cell: str) -> str:
    return cell.strip().removeprefix('"').removesuffix('"').strip()


def is_missing(cell: str) -> bool:
    return bare(cell).lower() in MISSING


def number(cell: str) -> float | None:
    try:
        return float(bare(cell))
    except ValueError:
        return None


def comma_hint(cell: str) -> str:
    """What to say of a cell that is no number.

    >>> comma_hint("3,14"), comma_hint("three")
    ('; decimals need a point', '')
    """
    return "; decimals need a point" if re.fullmatch(r"[-+]?\d+,\d+", bare(cell)) else ""
