"""Text tables: which line is a header, what separates the cells, and what the text of a cell means."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from memgen.errors import MemgenError

MISSING = {"", "nan", "na", "n/a", "null", "none", "?"}
"""Cells of a table that stand for a missing value, in any case."""
MARK = "\ufeff"
"""The byte-order mark, which some programs write before the first line."""


class Opening(NamedTuple):
    """How a text table begins."""

    head: str
    """The text before the first line that is not blank."""
    body: str
    delimiter: str
    named: bool
    """Whether the first line of the body is a header."""


def read_opening(path: Path, header: str = "auto") -> Opening:
    """The text of a table. `header` says whether its first line is a header: "yes", "no", or "auto" to infer it."""
    text = read_text(path)
    blank = re.match(rf"{MARK}?(?:[^\S\r\n]*(?:\r\n|\r|\n))*", text)
    head = "" if blank is None else blank[0]
    body = text[len(head) :]
    if not body.strip():
        raise MemgenError(f"{path} is empty")
    delimiter = delimiter_of(re.split("[\r\n]", body, maxsplit=1)[0])
    cells, _ = next(split_rows(body, delimiter))
    named = header == "yes" or (header == "auto" and is_header(cells))
    return Opening(head, body, delimiter, named)


def delimiter_of(line: str) -> str:
    """The character that separates the cells of a line: the most frequent candidate outside quotes.

    >>> delimiter_of('a;"b,c,d";e'), delimiter_of("a")
    (';', ',')
    """
    return max(",;\t", key=re.sub('"[^"]*"', "", line).count)


def read_text(path: Path) -> str:
    try:
        return path.read_bytes().decode()
    except UnicodeDecodeError:
        raise MemgenError(f"{path} is not a text file in UTF-8") from None
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None


def split_rows(text: str, delimiter: str) -> Iterator[tuple[list[str], str]]:
    """The cells of each row with their exact text, quotes and blanks included, and the end of its line.

    A line ends where the csv module ends it: at \\r\\n, \\r or \\n outside quotes.

    >>> list(split_rows('1, "2",,3\\r\\n"a\\nb",\\f', ","))
    [(['1', ' "2"', '', '3'], '\\r\\n'), (['"a\\nb"', '\\x0c'], '')]
    """
    after = rf"(?={delimiter}|\r|\n|\Z)"
    pattern = re.compile(rf'( *"(?:[^"]|"")*" *{after}|[^{delimiter}\r\n]*)({delimiter}|\r\n|\r|\n|\Z)')
    cells: list[str] = []
    for match in pattern.finditer(text):
        if match.start() == len(text) and not cells:
            return  # behind the end of the last line there is not one more row
        cells.append(match[1])
        if match[2] != delimiter:
            yield cells, match[2]
            cells = []


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
    """The end of a message about a cell that is no number.

    >>> comma_hint("3,14"), comma_hint("three")
    ('; decimals need a point', '')
    """
    return "; decimals need a point" if re.fullmatch(r"[-+]?\d+,\d+", bare(cell)) else ""
