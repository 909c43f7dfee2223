"""The exceptions that memgen raises for bad input and for work that failed, and the message for an unknown name."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches


class MemgenError(ValueError):
    """Bad input: a line that says what is wrong, where, and what to do; the command line prints it and exits with 2."""


class FailedError(MemgenError):
    """The input was good, and the work failed; the command line exits with 1."""


def unknown(kind: str, name: object, choices: Iterable[str]) -> MemgenError:
    """The error for a name that does not exist: names the nearest one and lists all.

    >>> print(unknown("attention", "sofmax", ["sigmoid", "softmax"]))
    unknown attention 'sofmax'; did you mean 'softmax'? Choices: sigmoid, softmax
    """
    names = list(choices)
    near = get_close_matches(str(name), names, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else "."
    return MemgenError(f"unknown {kind} {str(name)!r}{hint} Choices: {', '.join(names)}")
