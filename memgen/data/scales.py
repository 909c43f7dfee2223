"""The units of a column of numbers: what is subtracted and divided by before a model reads it.

They change with the units of the column as the values do, so the numbers that a model reads do not depend on them.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import NDArray

from memgen.data.guessing import DAY, spread_of
from memgen.data.written import Digits

ENOUGH = 20
"""Different whole numbers, so that a divisor of all their distances is no chance."""
MINUTE = 60.0
PRECISION = 1e-7
"""A deviation that is smaller, relative to the mean, is that of a constant column, in single precision."""

Numbers = Float64[NDArray[np.float64], " n"]


class Units(NamedTuple):
    """(value - offset) / scale is what a model reads; `step` is the distance of neighbouring values, 0 for none."""

    offset: float = 0.0
    scale: float = 1.0
    step: float = 0.0


def scale_of(kind: str, x: Numbers, digits: Digits | None) -> Units:
    """The units of the training values x of a column of this kind.

    >>> scale_of("integer", np.array([10.0, 20.0, 30.0]), None)
    Units(offset=20.0, scale=8.16496580927726, step=1.0)
    """
    return UNITS[kind](x)._replace(**({"step": 10.0**-digits.most} if digits and kind in CONTINUOUS else {}))


def moments(x: Numbers) -> Units:
    """Mean and standard deviation. A mean of equal numbers may differ from them in the last bit."""
    mean = float(x[0] if (x == x[0]).all() else x.mean())
    deviation = float(x.std())
    return Units(mean, deviation if deviation > PRECISION * abs(mean) else 1.0)


def quartiles(x: Numbers) -> Units:
    """Median and distance of the quartiles, which a few values far out do not move."""
    spread = spread_of(x)
    return Units(float(np.median(x)), spread) if spread > 0 else moments(x)


def logarithms(x: Numbers) -> Units:
    """The geometric mean of the values above 0."""
    positive = x[x > 0]
    return Units(scale=math.exp(float(np.log(positive).mean())) if len(positive) else 1.0)


def grid(x: Numbers) -> Units:
    """The grid on which whole numbers lie: their distances have the step as a divisor, and the offset is on it."""
    levels = np.unique(x)
    distances = np.diff(levels)
    whole = len(levels) >= ENOUGH and distances.max() < 2**53
    return on_grid(x, float(np.gcd.reduce(distances.astype(np.int64))) if whole else 1.0)


def clock(x: Numbers) -> Units:
    """Whole minutes, or seconds."""
    return on_grid(x, MINUTE if bool((x % MINUTE == 0).all()) else 1.0)


def on_grid(x: Numbers, step: float) -> Units:
    mean, deviation, _ = moments(x)
    low = float(x.min())
    return Units(low + round((mean - low) / step) * step, deviation, step)


UNITS: dict[str, Callable[[Numbers], Units]] = {
    "real": moments,
    "positive": logarithms,
    "heavy_tailed": quartiles,
    "zero_inflated": logarithms,
    "count": lambda x: Units(step=1.0),
    "integer": grid,
    "date": lambda x: on_grid(x, DAY),
    "time": clock,
}
"""Kind of a column of numbers -> its units."""
CONTINUOUS = ("real", "positive", "heavy_tailed", "zero_inflated")
