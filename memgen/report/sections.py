"""The parts of a page, as its template reads them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

ALL_WORDS = 99
"""The value of `Table.words` for a table without columns of numbers."""


class Table(NamedTuple):
    heads: Sequence[str]
    rows: Sequence[Sequence[str]]
    words: int = 1
    """Columns of words, before those of numbers."""
    differing: Sequence[int] = ()
    """Indices of rows to highlight."""


class Shown(NamedTuple):
    """A figure on the page."""

    run: str
    """The name of the run, if there are several."""
    width: int
    caption: str
    png: str


class Group(NamedTuple):
    """Figures that stand side by side."""

    wide: bool
    figures: list[Shown]


class Section(NamedTuple):
    heading: str
    table: Table | None = None
    note: str = ""
    """The definition of the numbers in the table."""
    lines: Sequence[str] = ()
    groups: Sequence[Group] = ()
    kind: str = ""
