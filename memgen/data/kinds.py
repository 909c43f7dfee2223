"""Kinds of columns, and the rules that infer a column's kind from its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from memgen.data.values import Values, shorten
from memgen.errors import MemgenError, unknown

KINDS = ("real", "positive", "count", "binary", "categorical")
LEVELLED = ("binary", "categorical")
"""Kinds whose values are a few levels, stored as codes."""
AUTO = "auto"
"""In place of a kind: infer it from the values."""
MOST_LEVELS = 1000
"""Text with more levels is an identifier or free text."""
LARGEST_COUNT = 1000
SKEWED = 1.0
"""The least skewness of a positive column."""
ENOUGH_FOR_TWO = 20
"""With fewer values, a column of many different numbers may show only two of them."""
ENOUGH_ROWS = 8
"""With fewer values the skewness is not computed."""


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


class Guess(NamedTuple):
    kind: str
    why: str


def guess(name: str, values: Values) -> Guess:
    """The first rule that applies, of the values that are not missing:

    | values | kind |
    |---|---|
    | text, most of whose values occur once or twice | refused: an identifier or free text |
    | text with two levels, truth values | binary |
    | text with one level, or more than two | categorical |
    | one number | real |
    | 0 and 1, or two other numbers among twenty or more | binary |
    | whole numbers from 0 or 1, at most 1,000, that vary as events at random do or more: variance >= mean | count |
    | other whole numbers | real |
    | positive numbers, skewed to the right, and their logarithms far less | positive |
    | other numbers | real |
    """
    if values.form == "text":
        return _guess_text(name, values.observed.tolist())
    if values.form == "truth":
        return Guess("binary", "true or false")
    return _guess_number(values.observed)


def _guess_text(name: str, texts: list[str]) -> Guess:
    levels = len(set(texts))
    if levels > min(MOST_LEVELS, max(2, len(texts) / 2)):
        raise MemgenError(
            f"column {name!r} has {levels} levels of text in {len(texts)} values, such as {shorten(texts[0], 40)!r}: "
            "an identifier or free text; drop it, or say that its kind is categorical"
        )
    return Guess("binary" if levels == 2 else "categorical", f"{levels} level{'s' * (levels > 1)} of text")


def _guess_number(x: Float64[NDArray[np.float64], " n"]) -> Guess:
    """
    >>> [_guess_number(np.array(x)).kind for x in ([0.0, 2.0, 7.0], [2.5, 2.5], [0.0, 1.0], [-1.0, 0.0, 1.0])]
    ['count', 'real', 'binary', 'real']
    >>> _guess_number(np.exp(np.linspace(-3, 3, 50)))
    Guess(kind='positive', why='skewed to the right, from 0.0498 to 20.1')
    """
    low, high = float(x.min()), float(x.max())
    extent = f"from {low:.3g} to {high:.3g}"
    distinct = len(np.unique(x))
    if distinct == 1:
        return Guess("real", f"constant, {low:.6g}")
    if distinct == 2 and ((low, high) == (0, 1) or len(x) >= ENOUGH_FOR_TWO):
        return Guess("binary", "two different numbers")
    if bool((x == np.floor(x)).all()):
        random = low in (0, 1) and high <= LARGEST_COUNT and x.var() >= x.mean()
        kind = "count" if random else "real"
        return Guess(kind, f"whole numbers from {low:.15g} to {high:.15g}")
    if low > 0 and _is_skewed(x):
        return Guess("positive", f"skewed to the right, {extent}")
    return Guess("real", f"numbers {extent}")


def _is_skewed(x: Float64[NDArray[np.float64], " n"]) -> bool:
    """Skewed to the right by far more than its logarithm is to either side."""
    if len(x) < ENOUGH_ROWS:
        return False
    skew = skewness(x)
    return skew > SKEWED and abs(skewness(np.log(x))) < skew / 2


def skewness(x: Float64[NDArray[np.float64], " n"]) -> float:
    """mean(((x - m) / s)^3)

    >>> round(skewness(np.array([0.0, 0.0, 3.0])), 3)
    0.707
    """
    scaled = x / max(float(np.abs(x).max()), np.finfo(float).tiny)  # whose powers do not overflow
    deviation = scaled - scaled.mean()
    s = float(deviation.std())
    return float(((deviation / s) ** 3).mean()) if s > 0 else 0.0
