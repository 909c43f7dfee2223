"""The texts by which a recipe and the command line describe the user's own data: a size, a locale, kinds of columns."""

from __future__ import annotations

import re
from collections.abc import Sequence

from memgen.data.kinds import check_kinds
from memgen.data.written import LOCALES
from memgen.errors import MemgenError, unknown

LARGEST = 10_000
"""Pixels of a side."""


def parse_size(text: str) -> tuple[int, int] | None:
    """Height and width that images are made to have; None for "", as they are.

    >>> parse_size("28x20"), parse_size("")
    ((28, 20), None)
    """
    if not text:
        return None
    match = re.fullmatch(r"(\d{1,9})x(\d{1,9})", text, re.ASCII)
    size = (int(match[1]), int(match[2])) if match else (0, 0)
    if not all(1 <= side <= LARGEST for side in size):
        raise MemgenError(f"a size is HEIGHTxWIDTH in pixels, as in 28x28, each from 1 to {LARGEST:,}; not {text!r}")
    return size


def parse_locale(text: str) -> str:
    """
    >>> parse_locale("de-de")
    'de-DE'
    """
    known = {name.lower(): name for name in LOCALES}
    if text.lower() not in known:
        raise unknown("locale", text, LOCALES)
    return known[text.lower()]


def parse_kinds(texts: Sequence[str]) -> dict[str, str]:
    """Kinds of columns by name; the name of a column may have a "=" in it, a kind has none.

    >>> parse_kinds(["age=count", "a=b=real"])
    {'age': 'count', 'a=b': 'real'}
    """
    kinds: dict[str, str] = {}
    for text in texts:
        name, equals, kind = (part.strip() for part in text.rpartition("="))
        if not equals or not name:
            raise MemgenError(f"a kind is given as COLUMN=KIND, as in age=count; not {text!r}")
        if kinds.get(name, kind) != kind:
            raise MemgenError(f"the column {name!r} is given two kinds, {kinds[name]} and {kind}")
        kinds[name] = kind
    check_kinds(kinds)
    return kinds
