"""The exceptions that memgen raises for bad input and for work that failed, and the message for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

LONGEST = 4000
"""Characters of a message."""
MOST_CHOICES = 200
"""That a message lists."""
LONGEST_REASON = 300
"""Characters of another library's words in a message of ours."""

CONTROLS = (*range(9), *range(11, 32), *range(127, 160), *range(0x2028, 0x202F), *range(0x2066, 0x206A))
SURROGATES = range(0xD800, 0xE000)
UNPRINTABLE = dict.fromkeys((*CONTROLS, *SURROGATES), "?")
"""Characters that would command a terminal, turn text around, or cannot be encoded; tab and line feed stay."""


def printable(text: str) -> str:
    """Text for a terminal, with names from files that others wrote.

    >>> printable("a name\x1b[2J")
    'a name?[2J'
    """
    return text if text.isprintable() else text.translate(UNPRINTABLE)


class MemgenError(ValueError):
    """Bad input: a line that says what is wrong, where, and what to do; the command line prints it and exits with 2.

    It stays one line of printable characters and of bearable length, whatever names from a file are in it.
    """

    def __init__(self, message: object = "") -> None:
        line = printable(" ".join(str(message).splitlines()))
        super().__init__(line if len(line) <= LONGEST else line[: LONGEST - 3] + "...")


class FailedError(MemgenError):
    """The input was good, and the work failed; the command line exits with 1."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> MemgenError:
    """The error for a name that does not exist: names the nearest one and lists all.

    >>> print(unknown("attention", "sofmax", ["sigmoid", "softmax"]))
    unknown attention 'sofmax'; did you mean 'softmax'? Choices: sigmoid, softmax
    """
    names, given = list(choices), str(name)[:LONGEST_REASON]
    near = get_close_matches(given, names[:MOST_CHOICES], n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    more = f" and {len(names) - MOST_CHOICES:,} more" if len(names) > MOST_CHOICES else ""
    return MemgenError(f"unknown {kind} {given!r}{hint} Choices: {', '.join(names[:MOST_CHOICES])}{more}")


def reason(error: BaseException) -> str:
    """What a library says of bad input, in one line of printable characters and of bearable length.

    >>> reason(ValueError("no header\\nin line 1")), reason(EOFError())
    ('no header', 'EOFError')
    """
    line = next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
    return "".join(char if char.isprintable() else "?" for char in line[:LONGEST_REASON])
