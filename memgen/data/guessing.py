"""The rules that infer a column's kind from its values."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from memgen.data.truths import are_truths, spellings
from memgen.data.values import Values, shorten, some
from memgen.data.written import Digits, date_format, number_format, order_of, write_date
from memgen.errors import MemgenError

MOST_LEVELS = 1000
"""Text with more levels is an identifier or free text."""
LARGEST_WHOLE = 2.0**53
"""Every larger number in double precision is whole, so that this says nothing about a column."""
LARGEST_COUNT = 1000
SKEWED = 1.0
"""The least skewness of a positive column."""
ENOUGH_FOR_TWO = 20
"""With fewer values, a column of many different numbers may show only two of them."""
ENOUGH_ROWS = 8
"""With fewer values the skewness is not computed."""
MANY_ZEROS = 0.2
"""The least fraction of zeros of a zero-inflated column whose other values are not skewed."""
MOST_ORDERED = 10
"""The largest number of an ordinal column."""
WIDE = 100
"""Positive whole numbers over a wider range may be log-normal: the distance of neighbours is small beside it."""
SMALL = 4
"""The least distance of a whole amount from zero, where it is not just the next number."""
FAR = 15.0
"""The least distance from the median, in units of the spread, of the farthest value of a heavy-tailed column."""
NORMAL_QUARTILES = 1.349
"""The distance of the quartiles of a normal distribution, in standard deviations."""
DAY = 86_400.0
"""Seconds."""

Numbers = Float64[NDArray[np.float64], " n"]


class Guess(NamedTuple):
    kind: str
    why: str


def guess(name: str, values: Values, format: str = "") -> Guess:
    """The first rule that applies, of the values that are not missing:

    | values | kind |
    |---|---|
    | text, all of it spellings of true and false | binary, with their spellings merged |
    | text, most of whose values occur once or twice | refused: an identifier or free text |
    | text of digits, with zeros before them | code |
    | text with two levels, truth values | binary |
    | text with one level, or more than two | categorical |
    | dates; with a time of day | date; time |
    | one number | real |
    | 0 and 1, or two other numbers among twenty or more | binary |
    | whole numbers from 0 or 1, at most 1,000, that vary as events at random do or more: variance >= mean, up to chance; unless half of them are 0 and no other is below 5 | count |
    | zeros, at least 20% or among positive numbers that are skewed; of whole numbers, if they go beyond 100 or none is from 1 to 4 | zero_inflated |
    | each of the whole numbers from 0 or 1 to at most 10, at least twice | ordinal |
    | positive numbers, skewed to the right, and their logarithms far less; whole ones if their range exceeds 100 | positive |
    | numbers of which one lies 15 times the spread (by quartiles) from the median | heavy_tailed |
    | other whole numbers | integer |
    | other numbers | real |
    """  # noqa: E501
    if values.form == "text":
        return _guess_text(name, values.observed.tolist())
    if values.form == "truth":
        return Guess("binary", "true or false")
    if values.form == "date":
        return _guess_date(values.observed, format)
    kind, why = _guess_number(values.observed)
    return Guess(kind, why + read_as(format))


def read_as(format: str) -> str:
    """What is said of numbers that are not written as Python writes them.

    >>> read_as("#,##0.00"), read_as("0.00")
    (', read as 1,234,567.50 (another way: --locale)', '')
    """
    digits = Digits.of(format)
    plain = digits is None or not (digits.group or digits.mark == ",")
    return "" if plain or digits is None else f", read as {digits.write(1234567.5)} (another way: --locale)"


def _guess_text(name: str, texts: list[str]) -> Guess:
    levels = set(texts)
    if len(levels) > 2 and are_truths(levels):
        merged = (f"{first} ({some(others, 9)})" for first, *others in spellings(texts).values() if others)
        return Guess("binary", f"truth values, {len(levels)} spellings merged: {'; '.join(merged)}")
    if len(levels) > min(MOST_LEVELS, max(2, len(texts) / 2)):
        raise MemgenError(
            f"column {name!r} has {len(levels)} levels of text in {len(texts)} values, such as "
            f"{shorten(texts[0], 40)!r}: {_what_text_is(list(levels))}"
        )
    what = f"{len(levels)} level{'s' * (len(levels) > 1)} of text"
    if all(level.isascii() and level.isdigit() for level in levels):
        return Guess("code", f"{what}: digits with zeros before them" if is_zero_led(levels) else what)
    return Guess("binary" if len(levels) == 2 else "categorical", what)


def _what_text_is(levels: list[str]) -> str:
    """What many different texts are; a CSV file's dates and numbers are read before they come here."""
    if date_format(levels) is not None:
        return "dates as text; make dates of them"
    separated = not all(level.isdigit() for level in levels) and number_format(levels) is not None
    return "numbers as text; make numbers of them" if separated else "an identifier or free text"


def is_zero_led(levels: set[str]) -> bool:
    return any(len(level) > 1 and level.startswith("0") for level in levels)


def _guess_date(x: Numbers, format: str) -> Guess:
    first, last = (write_date(np.datetime64(int(s), "s").item(), format) for s in (x.min(), x.max()))
    kind = "date" if bool((x % DAY == 0).all()) and "%H" not in format else "time"
    dates = x.astype(np.int64).astype("datetime64[s]")
    days = (dates.astype("datetime64[D]") - dates.astype("datetime64[M]")).astype(int) + 1
    order = order_of(format) if days.max() <= 12 else ""  # else they show it
    other = "en-US: month" if order == "day first" else "en-GB: day"
    hint = f", read {order} (--locale {other} first)" if order else ""
    return Guess(kind, f"{'dates' if kind == 'date' else 'times'} from {first} to {last}{hint}")


def _guess_number(x: Numbers) -> Guess:
    """
    >>> [_guess_number(np.array(x)).kind for x in ([0.0, 2.0, 7.0], [2.5, 2.5], [0.0, 1.0], [-1.0, 0.0, 1.0])]
    ['count', 'real', 'binary', 'integer']
    >>> _guess_number(1e18 * np.array([1.5, 2.5, 4.25])).kind
    'real'
    >>> _guess_number(np.exp(np.linspace(-3, 3, 50)))
    Guess(kind='positive', why='skewed to the right, from 0.0498 to 20.1')
    """
    low, high = float(x.min()), float(x.max())
    distinct = len(np.unique(x))
    if distinct == 1:
        return Guess("real", f"constant, {low:.6g}")
    if distinct == 2 and ((low, high) == (0, 1) or len(x) >= ENOUGH_FOR_TWO):
        return Guess("binary", "two different numbers")
    whole = bool((x == np.floor(x)).all()) and max(-low, high) <= LARGEST_WHOLE
    extent = f"from {low:.15g} to {high:.15g}" if whole else f"from {plainly(low)} to {plainly(high)}"
    what = f"whole numbers {extent}" if whole else f"numbers {extent}"
    if whole and _is_count(x, low, high):
        return Guess("count", what)
    if low == 0 and len(x) >= ENOUGH_FOR_TWO and distinct > 2 and _is_inflated(x, whole):
        return Guess("zero_inflated", f"{(x == 0).mean():.0%} zeros, the others to {high:.15g}")
    if whole and _is_ordinal(x, low, high):
        return Guess("ordinal", what)
    if low > 0 and (not whole or high - low > WIDE) and _is_skewed(x):
        return Guess("positive", f"skewed to the right, {extent}")
    if is_heavy_tailed(x):
        return Guess("heavy_tailed", f"{what}, a few far from the others")
    if whole:
        numbered = len(x) >= ENOUGH_FOR_TWO and bool((np.diff(x) == 1).all())
        return Guess("integer", what + (", in order: a number of the row? (--ignore)" if numbered else ""))
    return Guess("real", what)


def plainly(number: float) -> str:
    """A number in three digits or more, and without an exponent where that is short.

    >>> plainly(0.04978), plainly(1025375.06), plainly(1e20)
    ('0.0498', '1025375', '1e+20')
    """
    return f"{number:.0f}" if 1000 <= abs(number) < 1e15 else f"{number:.3g}"


def _is_count(x: Numbers, low: float, high: float) -> bool:
    # The variance of n values of a Poisson distribution, over their mean, has a standard deviation of sqrt(2/n).
    chance = 2 * (2 / len(x)) ** 0.5 if low == 0 and len(x) >= ENOUGH_FOR_TWO else 0.0
    if low not in (0, 1) or high > LARGEST_COUNT or x.var() < (1 - chance) * x.mean():
        return False
    return not (len(x) >= ENOUGH_FOR_TWO and (x == 0).mean() > 0.5 and x[x > 0].min() > SMALL)


def _is_inflated(x: Numbers, whole: bool) -> bool:
    """Many zeros, or several among positive numbers that are skewed. Small whole numbers are not amounts."""
    zeros, others = (x == 0).mean(), x[x > 0]
    if whole and others.max() <= WIDE and others.min() <= SMALL:
        return False
    return bool(zeros >= MANY_ZEROS or (zeros * len(x) > 1 and _is_skewed(others)))


def _is_ordinal(x: Numbers, low: float, high: float) -> bool:
    """Each of a few neighbouring whole numbers at least twice, as of ratings."""
    if low not in (0, 1) or high > MOST_ORDERED:
        return False
    levels, times = np.unique(x, return_counts=True)
    return len(x) >= ENOUGH_FOR_TWO and len(levels) == high - low + 1 > 2 and bool((times > 1).all())


def _is_skewed(x: Numbers) -> bool:
    """Skewed to the right by far more than its logarithm is to either side."""
    if len(x) < ENOUGH_ROWS:
        return False
    skew = skewness(x)
    return skew > SKEWED and abs(skewness(np.log(x))) < skew / 2


def is_heavy_tailed(x: Numbers) -> bool:
    """Whether a value lies far from the median, in units of the spread of the middle half."""
    spread = spread_of(x)
    return len(x) >= ENOUGH_FOR_TWO and spread > 0 and float(np.abs(x - np.median(x)).max()) > FAR * spread


def spread_of(x: Numbers) -> float:
    """The distance of the quartiles, which is the standard deviation of normal values.

    >>> spread_of(np.array([0.0, 1.0, 2.0, 3.0, 1e9])) < 2
    True
    """
    low, high = np.quantile(x, [0.25, 0.75])
    return float(high - low) / NORMAL_QUARTILES


def skewness(x: Numbers) -> float:
    """mean(((x - m) / s)^3)

    >>> round(skewness(np.array([0.0, 0.0, 3.0])), 3)
    0.707
    """
    scaled = x / max(float(np.abs(x).max()), np.finfo(float).tiny)  # whose powers do not overflow
    deviation = scaled - scaled.mean()
    s = float(deviation.std())
    return float(((deviation / s) ** 3).mean()) if s > 0 else 0.0
