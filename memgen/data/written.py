"""How the cells of a column are written: numbers with separators and decimals, and dates.

A format is a short text. That of numbers is "0", "0.00" (two decimals), "0.##" (at most two), "#,##0.00" (groups of
three digits) or "0,00" (a decimal comma); that of dates is one of Python's, such as "%d.%m.%Y". "" is no format.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import datetime
from itertools import product
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

LOCALES = {
    "auto": "",
    "en-US": ",.m",
    "en-GB": ",.d",
    "de-CH": "'.d",
    "de-DE": ".,d",
    "fr-FR": " ,d",
}
"""Name -> what separates groups of digits, the decimal mark, and whether the day or the month comes first in a date."""
SEPARATORS = [",.", "'.", "\u2019.", " .", ".,", " ,", "\u00a0,", "\u202f,", "\u00a0.", "\u202f."]
"""Of groups and of decimals, in the order in which they are tried."""
SPACES = {" ": " \u00a0\u202f", "'": "'\u2019"}
"""Characters that stand for the separator of a locale."""
MOST_DECIMALS = 8
ENOUGH = 10
"""With fewer different values, the decimals of numbers without a text are chance."""
SAMPLE = 1000


class Digits(NamedTuple):
    """A format of numbers."""

    group: str
    mark: str
    least: int
    """Decimals that are always written."""
    most: int

    @staticmethod
    def of(format: str) -> Digits | None:
        """
        >>> Digits.of("#,##0.00"), Digits.of("%Y-%m-%d")
        (Digits(group=',', mark='.', least=2, most=2), None)
        """
        match = re.fullmatch(r"(?:#(.)##)?0(?:([.,])(0*)(#*))?", format)
        if match is None:
            return None
        group, mark, zeros, more = (part or "" for part in match.groups())
        return Digits(group, mark or ".", len(zeros), len(zeros + more))

    def __str__(self) -> str:
        decimals = "0" * self.least + "#" * (self.most - self.least)
        return (f"#{self.group}##0" if self.group else "0") + (self.mark + decimals if decimals else "")

    def read(self, cell: str) -> float:
        """A number; ValueError if it is none.

        >>> Digits(".", ",", 2, 2).read("1.234,50")
        1234.5
        """
        text = cell.strip()
        if "_" in text or (self.mark == "," and self.group != "." and "." in text):
            raise ValueError(cell)
        text = text.replace(self.group, "") if self.group else text
        return float(text.replace(self.mark, "."))

    def write(self, value: float) -> str:
        """
        >>> Digits("'", ".", 0, 2).write(-1234567.5), Digits("", ",", 2, 2).write(3.0)
        ("-1'234'567.5", '3,00')
        """
        whole, _, decimals = f"{round(value, self.most) + 0.0:,.{self.most}f}".partition(".")
        while len(decimals) > self.least and decimals.endswith("0"):
            decimals = decimals[:-1]
        return whole.replace(",", self.group) + (self.mark + decimals if decimals else "")


def decimals_of(x: Float64[NDArray[np.float64], " n"]) -> int | None:
    """The number of decimals with which all these numbers can be written; None if these are many.

    >>> decimals_of(np.array([1.5, 3.25, -2.0])), decimals_of(np.array([1 / 3]))
    (2, None)
    """
    first = x[:SAMPLE]
    for decimals in range(MOST_DECIMALS + 1):
        if all(bool((np.round(part, decimals) == part).all()) for part in (first, x)):
            return decimals
    return None


def format_of_values(x: Float64[NDArray[np.float64], " n"]) -> str:
    """The format of numbers that have no text.

    >>> format_of_values(np.arange(20.0)), format_of_values(np.arange(20) / 4), format_of_values(np.arange(20) / 3)
    ('0', '0.##', '')
    """
    decimals = decimals_of(x)
    if decimals is None or (decimals and len(np.unique(x[:SAMPLE])) < ENOUGH):
        return ""
    return str(Digits("", ".", 0, decimals))


def format_of_cells(
    cells: Sequence[str], x: Float64[NDArray[np.float64], " n"], group: str = "", mark: str = "."
) -> str:
    """The format of some of a column's cells and of all of its numbers. Where all cells have as many decimals,
    any other number gets as many.

    >>> format_of_cells(["1.50", "2.00"], np.array([1.5, 2.0])), format_of_cells(["1.5", "2"], np.array([1.5, 2.0]))
    ('0.00', '0.#')
    """
    widths = {len(cell.strip().partition(mark)[2]) for cell in cells}
    decimals = decimals_of(x)
    if any(re.search("[eEnN]", cell) for cell in cells) or decimals is None:
        return ""
    fixed = len(widths) == 1 and max(widths) >= decimals
    most = max(decimals, *widths) if fixed else decimals
    return str(Digits(group, mark, most if fixed else 0, most))


def number_format(cells: Sequence[str], locale: str = "auto") -> Digits | None:
    """The separators of cells that are numbers, but not plain ones; None if they are no numbers.

    >>> number_format(["1,234.5", "12"]), number_format(["3,14"]), number_format(["1,23"], "en-US")
    (Digits(group=',', mark='.', least=0, most=8), Digits(group='.', mark=',', least=0, most=8), None)
    """
    choices = SEPARATORS
    if locale != "auto":
        known = LOCALES[locale]
        choices = [other + known[1] for other in SPACES.get(known[0], known[0])]
    for strict, choice in product((True, False), choices):
        group, mark = choice[0], choice[1]
        ungrouped = r"\d{1,3}" if strict and locale == "auto" and any(group in cell for cell in cells) else r"\d+"
        number = rf"\s*[-+]?(?:\d{{1,3}}(?:{re.escape(group)}\d{{3}})+|{ungrouped})(?:{re.escape(mark)}\d*)?\s*"
        if all(re.fullmatch(number, cell) for cell in cells):
            return Digits(group, mark, 0, MOST_DECIMALS)
    return None


# ---- dates

DATES = (
    "%Y-%m-%d",
    "%Y/%m/%d",
    "%Y.%m.%d",
    *(f"{date}{year}" for date, year in product(("%d.%m.", "%d/%m/", "%m/%d/", "%d-%m-", "%m-%d-"), ("%Y", "%y"))),
    *("%d %b %Y", "%d %B %Y", "%d-%b-%Y", "%d-%b-%y", "%b %d, %Y", "%B %d, %Y", "%b %d %Y", "%Y-%m"),
)
CLOCKS = ("%H:%M", "%H:%M:%S")
TIMES = ("", " %H:%M", " %H:%M:%S", "T%H:%M", "T%H:%M:%S", "T%H:%M:%SZ")
FORMATS = (*(date + time for date, time in product(DATES, TIMES)), *CLOCKS)
EXAMPLES = "2024-12-31, 31.12.2024, 31/12/2024, 31 Dec 2024, 2024-12-31 23:59, 23:59"


def date_format(cells: Sequence[str], locale: str = "auto") -> str | None:
    """The format in which all cells are dates; None if there is none. The day comes before the month, unless the locale
    or the dates say otherwise.

    >>> date_format(["31.1.2024", "1.12.2024"]), date_format(["1/2/24"], "en-US"), date_format(["12/31/2024"])
    ('%-d.%-m.%Y', '%-m/%-d/%y', '%m/%d/%Y')
    """
    if not cells or not re.search(r"\d[-/.: ]|[a-z] \d", cells[0].lower()):
        return None
    first = "m" if LOCALES[locale].endswith("m") else "d"
    fitting = sorted((f for f in FORMATS if _is_date(cells[0], f)), key=lambda f: f"%{first}" not in f[:3])
    chosen = next((format for format in fitting if all(_is_date(cell, format) for cell in cells)), None)
    if chosen is None:
        return None
    short = re.sub("%([dmH])", r"%-\1", chosen)
    return max(chosen, short, key=lambda f: sum(write_date(read_date(cell, f), f) == cell.strip() for cell in cells))


def _is_date(cell: str, format: str) -> bool:
    try:
        return bool(read_date(cell, format))
    except ValueError:
        return False


def read_date(cell: str, format: str) -> datetime:
    """A date or time; ValueError if the cell is none in this format."""
    return datetime.strptime(cell.strip(), format.replace("%-", "%"))


def write_date(value: datetime, format: str) -> str:
    """
    >>> write_date(datetime(2024, 3, 1), "%-d.%-m.%Y"), write_date(datetime(2024, 3, 1, 12), "")
    ('1.3.2024', '2024-03-01 12:00:00')
    """
    if not format:
        return value.isoformat(" ") if value.time() != value.min.time() else value.date().isoformat()
    plain = re.sub("%-([dmH])", lambda match: str(int(value.strftime(f"%{match[1]}"))), format)
    return value.strftime(plain)


def order_of(format: str) -> str:
    """Which of day and month is first, where the digits of a date do not show it.

    >>> order_of("%d/%m/%Y"), order_of("%Y-%m-%d")
    ('day first', '')
    """
    if match := re.match(r"%-?([dm])[/-]%-?[dm]", format):
        return "day first" if match[1] == "d" else "month first"
    return ""
