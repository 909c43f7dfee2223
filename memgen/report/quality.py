"""The sections of a report about rows drawn from models of tables."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import numpy as np

from memgen.report.gather import Gathered
from memgen.report.sections import Section, Table
from memgen.report.synthetic import DRAWS, HIDDEN, LEVELS, Synthesis


def quality(gathered: Sequence[Gathered]) -> Iterator[Section]:
    """For every table model: its columns, the distance of rows, and the coverage of intervals."""
    found = [(one.subject.name, one.synthesis) for one in gathered if one.synthesis is not None]
    if found:
        several = len(gathered) > 1
        yield summary(found)
        for name, one in found:
            yield by_column(f" of {name}" if several else "", one)


def summary(found: Sequence[tuple[str, Synthesis]]) -> Section:
    """Averages over columns and pairs."""
    heads = ["run", "columns: synthetic", "columns: test", "pairs", "closest: synthetic", "closest: test", "copies"]
    rows = []
    for name, one in found:
        pairs = np.tril_indices(len(one.names), -1)
        change = np.abs(one.association_synthetic - one.association_train)[pairs]
        means = [np.nanmean(one.distance_synthetic), np.nanmean(one.distance_test)]
        medians = [np.median(one.closest_synthetic), np.median(one.closest_test)]
        pair = f"{change.mean():.3f}" if len(change) else ""
        rows.append([name, *(f"{x:.3f}" for x in means), pair, *(f"{x:.3f}" for x in medians), f"{one.copies:,}"])
    note = (
        "Columns: the mean distance of a column to that of the training rows, from 0 to 1, of as many synthetic rows "
        "as there are test rows, and of the test rows, which shows what chance alone does. Pairs: the mean absolute "
        "difference of the associations of training rows and synthetic rows. Closest: the median distance to the "
        "closest training row. Copies: synthetic rows whose every value is that of a training row; tables of few "
        "levels have some by chance."
    )
    return Section("Synthetic rows", Table(heads, rows), note)


def by_column(of_run: str, one: Synthesis) -> Section:
    """Distance and coverage of each column."""
    heads = ["column", "distance: synthetic", "distance: test", "hidden values", *(f"{p:.0%} interval" for p in LEVELS)]
    rows = []
    for i, name in enumerate(one.names):
        n = float(one.hidden[i])
        covered = [share(float(fraction[i]), n) for fraction in one.covered] if n else ["", ""]
        rows.append(
            [
                name,
                *(decimals(x[i]) for x in (one.distance_synthetic, one.distance_test)),
                f"{n:.0f}" if n else "",
                *covered,
            ]
        )
    if n := float(one.hidden.sum()):
        total = [share(float(np.nansum(fraction * one.hidden)) / n, n) for fraction in one.covered]
        rows.append(["all numbers", "", "", f"{n:.0f}", *total])
    note = (
        "Distance to the column of the training rows: the largest difference of the cumulative distributions of "
        "numbers (Kolmogorov and Smirnov), the total variation of levels. Intervals: the fraction of hidden test "
        f"values that lie between the quantiles of {DRAWS} completions, ± its standard error; {HIDDEN:.0%} of the "
        "values were hidden at random. An interval that is right contains as many as its name says."
    )
    return Section(f"Columns and intervals{of_run}", Table(heads, rows), note)


def decimals(value: float) -> str:
    return f"{value:.3f}" if math.isfinite(value) else ""


def share(fraction: float, n: float) -> str:
    """A fraction of n values with its standard error.

    >>> share(0.9, 100.0)
    '90% ± 3%'
    """
    return f"{fraction:.0%} ± {math.sqrt(fraction * (1 - fraction) / n):.0%}"
