"""Kinds of columns by name, as they are given; guessing.py infers them from the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from memgen.errors import MemgenError, unknown

KINDS = {
    "real": "real",
    "positive": "positive",
    "heavy_tailed": "heavy_tailed",
    "zero_inflated": "zero_inflated",
    "count": "count",
    "integer": "integer",
    "date": "integer",
    "time": "integer",
    "ordinal": "ordinal",
    "binary": "binary",
    "categorical": "categorical",
    "code": "categorical",
}
"""Kind of a column -> the kind of its likelihood (core/likelihoods/mixed.py)."""
LEVELLED = ("binary", "categorical", "ordinal", "code")
"""Kinds whose values are a few levels, stored as their positions."""
DATED = ("date", "time")
WHOLE = ("count", "integer", *DATED)
"""Kinds of numbers with a smallest distance, whose likelihood is a probability."""
AUTO = "auto"
"""In place of a kind: infer it from the values."""


def given_kinds(names: Sequence[str], kinds: Mapping[str, str] | Sequence[str] | str | None) -> dict[str, str]:
    """A kind or "auto" for every column.

    >>> given_kinds(["age", "town"], {"age": "count"})
    {'age': 'count', 'town': 'auto'}
    """
    if kinds is None or isinstance(kinds, str):
        given = dict.fromkeys(names, kinds or AUTO)
    elif isinstance(kinds, Mapping):
        known = set(names)
        for name in kinds:
            if name not in known:
                raise unknown("column", name, names)
        given = {name: kinds.get(name, AUTO) for name in names}
    else:
        if len(kinds) != len(names):
            raise MemgenError(f"there are {len(kinds)} kinds for {len(names)} columns")
        given = dict(zip(names, kinds, strict=True))
    check_kinds(given)
    return given


def check_kinds(kinds: Mapping[str, str]) -> None:
    for kind in kinds.values():
        if kind not in (*KINDS, AUTO):
            raise unknown("kind of column", kind, (*KINDS, AUTO))
