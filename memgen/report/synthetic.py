"""How well rows drawn from a model stand for those of a table: columns, pairs of columns, copies, and intervals of what
is filled in."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Float64
from numpy.typing import NDArray
from scipy.stats import chi2_contingency, ks_2samp
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.model import GenerativeModel
from memgen.core.noise import Purpose, generator
from memgen.data import Dataset
from memgen.data.column import decode_column
from memgen.data.columns import Columns
from memgen.data.kinds import LEVELLED
from memgen.runs.scores import encoded, fill
from memgen.tasks.sampling import sample

MOST_ROWS = 2000
"""Training rows, test rows and synthetic rows, at most, of each."""
BINS = 5
"""Groups into which a column of numbers is cut for its association with others."""
HIDDEN = 0.3
"""Fraction of the values that are hidden to see whether intervals contain them."""
DRAWS = 20
"""Completions from which an interval is computed."""
STEPS = 60
LEVELS = (0.5, 0.9)
"""Probabilities of the intervals."""

Rows = Float64[NDArray[np.float64], "n D"]
Reference = Float64[NDArray[np.float64], "m D"]


@dataclass(frozen=True)
class Synthesis:
    """Rows of a table beside rows of its model; NaN is missing."""

    names: list[str]
    levels: list[list[str]]
    """By column; empty for numbers."""
    train: Rows
    test: Reference
    synthetic: Rows
    """As many as training rows."""
    association_train: Float64[NDArray[np.float64], "D D"]
    association_synthetic: Float64[NDArray[np.float64], "D D"]
    distance_test: Float64[NDArray[np.float64], " D"]
    """Of each column of the test rows to the training rows."""
    distance_synthetic: Float64[NDArray[np.float64], " D"]
    """Of each column of as many synthetic rows to the training rows."""
    closest_test: Float64[NDArray[np.float64], " m"]
    """Distance of each test row to the closest training row."""
    closest_synthetic: Float64[NDArray[np.float64], " k"]
    hidden: Float64[NDArray[np.float64], " D"]
    """Number of hidden test values."""
    covered: Float64[NDArray[np.float64], "2 D"]
    """By probability of LEVELS: the fraction of hidden numbers inside their interval; NaN for levels."""

    @property
    def copies(self) -> int:
        """Synthetic rows that are a training row."""
        return int((self.closest_synthetic == 0).sum())


def synthesis(model: GenerativeModel, data: Dataset, limit: int, seed: int) -> Synthesis:
    """Compare a model of a table with its training rows and, for scale, its test rows with them. Intervals are computed
    of the first `limit` test rows."""
    assert data.columns is not None
    levelled = np.array([kind in LEVELLED for kind in data.columns.kinds])
    train, test = spread(data.some("train")), spread(data.some("test"))
    drawn = sample(model, len(train), seed=seed, draw=True).float()
    a, b, c = (in_units(data.columns, rows) for rows in (train, test, drawn))
    few = c[: len(b)]
    hidden, covered = coverage(model, test[:limit], ~levelled, seed)
    return Synthesis(
        list(data.columns.names),
        [[str(level) for level in column.levels] for column in data.columns],
        a,
        b,
        c,
        associations(a, a, levelled),
        associations(c, a, levelled),
        distances(b, a, levelled),
        distances(few, a, levelled),
        closest(model, test, train),
        closest(model, drawn[: len(test)], train),
        hidden,
        covered,
    )


def spread(rows: Float[Tensor, "N D"]) -> Float[Tensor, "n D"]:
    """MOST_ROWS rows at equal distances."""
    return rows[torch.linspace(0, len(rows) - 1, min(MOST_ROWS, len(rows))).round().long()]


def in_units(columns: Columns, x: Float[Tensor, "n D"]) -> Rows:
    """Numbers in the units of the table, levels as their codes."""
    rows = x.double().numpy().copy()
    for i, column in enumerate(columns):
        values = rows[:, i] if column.kind in LEVELLED else decode_column(column, rows[:, i])
        if values.dtype.kind in "fiu":
            rows[:, i] = values
    return rows


def distances(
    x: Rows, reference: Reference, levelled: Bool[NDArray[np.bool_], " D"]
) -> Float64[NDArray[np.float64], " D"]:
    """Of every column between 0 and 1: the largest difference of the cumulative distributions of numbers (Kolmogorov
    and Smirnov), half the sum of the differences of the frequencies of levels (total variation).

    >>> a, b = np.array([[0.0, 0.0], [1.0, 1.0]]), np.array([[0.0, 1.0], [1.0, 1.0]])
    >>> distances(a, b, np.array([False, True])).tolist()
    [0.0, 0.5]
    """
    result = []
    for column, other, is_levelled in zip(x.T, reference.T, levelled, strict=True):
        own, theirs = column[~np.isnan(column)], other[~np.isnan(other)]
        if not len(own) or not len(theirs):
            result.append(np.nan)
        elif is_levelled:
            levels = np.union1d(own, theirs)
            frequencies = [(values[:, None] == levels).mean(0) for values in (own, theirs)]
            result.append(np.abs(frequencies[0] - frequencies[1]).sum() / 2)
        else:
            result.append(ks_2samp(own, theirs).statistic)
    return np.array(result)


def associations(
    x: Rows, reference: Reference, levelled: Bool[NDArray[np.bool_], " D"]
) -> Float64[NDArray[np.float64], "D D"]:
    """Cramer's V of every pair of columns, from 0 (independent) to 1 (one follows from the other). Numbers are cut into
    BINS groups with as many rows of `reference` in each."""
    groups = np.stack([grouped(*pair) for pair in zip(x.T, reference.T, levelled, strict=True)], 1)
    D = groups.shape[1]
    result = np.eye(D)
    for i in range(D):
        for j in range(i):
            result[i, j] = result[j, i] = cramers_v(groups[:, i], groups[:, j])
    return result


def grouped(
    column: Float64[NDArray[np.float64], " n"], reference: Float64[NDArray[np.float64], " m"], levelled: np.bool_
) -> Float64[NDArray[np.float64], " n"]:
    """The number of each value's group; NaN stays."""
    if levelled:
        return column
    edges = np.unique(np.nanquantile(reference, np.arange(1, BINS) / BINS))
    return np.where(np.isnan(column), np.nan, np.searchsorted(edges, column).astype(np.float64))


def cramers_v(a: Float64[NDArray[np.float64], " n"], b: Float64[NDArray[np.float64], " n"]) -> float:
    """sqrt(chi^2 / (n (min(rows, columns) - 1))) of the table of counts of both; 0 where one of them is constant.

    >>> float(cramers_v(np.array([0.0, 0.0, 1.0, 1.0]), np.array([3.0, 3.0, 2.0, 2.0])))
    1.0
    """
    both = ~(np.isnan(a) | np.isnan(b))
    if not both.any():
        return 0.0
    rows, columns = (np.unique(values[both], return_inverse=True)[1] for values in (a, b))
    counts = np.zeros((rows.max() + 1, columns.max() + 1))
    np.add.at(counts, (rows, columns), 1)
    if min(counts.shape) < 2:
        return 0.0
    statistic = chi2_contingency(counts, correction=False).statistic
    return float(np.sqrt(statistic / (counts.sum() * (min(counts.shape) - 1))))


def closest(
    model: GenerativeModel, x: Float[Tensor, "n D"], train: Float[Tensor, "m D"]
) -> Float64[NDArray[np.float64], " n"]:
    """The distance of every row to the closest training row: root mean square over the encoded columns, in which
    numbers have comparable scales. A missing value counts as the column's mean."""
    own, others = (encoded(model, rows).double().nan_to_num() for rows in (x, train))
    parts = [
        torch.cdist(part, others, compute_mode="donot_use_mm_for_euclid_dist").min(1).values for part in own.split(200)
    ]
    distance: Float64[NDArray[np.float64], " n"] = (torch.cat(parts) / own.shape[1] ** 0.5).numpy()
    return distance


def coverage(
    model: GenerativeModel, x: Float[Tensor, "n D"], numeric: Bool[NDArray[np.bool_], " D"], seed: int
) -> tuple[Float64[NDArray[np.float64], " D"], Float64[NDArray[np.float64], "2 D"]]:
    """Hide a fraction HIDDEN of the values at random, complete the rows DRAWS times, and count the hidden numbers that
    lie between the quantiles of their completions."""
    hidden = torch.rand(x.shape, generator=generator(seed, Purpose.MASKS)) < HIDDEN
    batch = Batch(x, ~(hidden | x.isnan()))
    draws = fill(model, batch, what="imputing intervals", steps=STEPS, draws=DRAWS, seed=seed).draws
    known = hidden & ~x.isnan() & torch.from_numpy(numeric)
    counts, covered = known.sum(0).double(), []
    for level in LEVELS:
        low, high = (draws.quantile(p, 0) for p in ((1 - level) / 2, (1 + level) / 2))
        inside = (x >= low) & (x <= high) & known
        covered.append(inside.sum(0) / counts)
    return counts.numpy(), torch.stack(covered).numpy()
