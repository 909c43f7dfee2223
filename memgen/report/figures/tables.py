"""Figures about a table and rows drawn from its model."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from jaxtyping import Float64
from matplotlib import rc_context
from numpy.typing import NDArray

from memgen.report.figures.base import COLOURS, MAP, STYLE, Figure, canvas
from memgen.report.synthetic import BINS, Synthesis

ACROSS = 4
"""Columns of the table side by side."""
MOST_COLUMNS = 24
MOST_LEVELS = 12
BARS = 20
"""Intervals of a histogram."""
NAMED = 20
"""The most columns whose names stand at the axes of a matrix."""

Values = Float64[NDArray[np.float64], " n"]


def column_figure(found: Synthesis) -> Figure:
    """Every column of the training rows beside that of synthetic rows."""
    shown = min(MOST_COLUMNS, len(found.names))
    table: list[dict[str, Any]] = []
    with rc_context(STYLE):
        drawn = canvas(9.2, 1.75 * math.ceil(shown / ACROSS) + 0.3)
        axes = drawn.subplots(math.ceil(shown / ACROSS), min(ACROSS, shown), squeeze=False).flatten()
        for i, place in enumerate(axes):
            if i >= shown:
                place.set_visible(False)
                continue
            draw = _levels if found.levels[i] else _numbers
            table += draw(place, found, i)
            place.set_title(shortened(found.names[i], 26), fontsize=8, parse_math=False)
            place.tick_params(labelsize=7)
            place.set_yticks([])
            place.spines["left"].set_visible(False)
        drawn.legend(*axes[0].get_legend_handles_labels(), loc="outside upper left", ncols=2, fontsize=8)
    many = any(len(levels) > MOST_LEVELS for levels in found.levels)
    most = f", of which the {MOST_LEVELS} most frequent are shown" if many else ""
    left_out = f" The first {shown} of {len(found.names)} columns." if shown < len(found.names) else ""
    caption = (
        f"{len(found.train):,} training rows and as many rows drawn from the model: relative frequencies of numbers, "
        "in intervals between the 0.5% and the 99.5% quantile of the training rows (values beyond them are in the "
        f"outermost intervals), and of levels{most}.{left_out}"
    )
    return Figure("columns", caption, drawn, table=table)


def _numbers(place: Any, found: Synthesis, i: int) -> list[dict[str, Any]]:
    real, synthetic = known(found.train[:, i]), known(found.synthetic[:, i])
    edges = borders(real)
    shares = [np.histogram(values.clip(edges[0], edges[-1]), edges)[0] / len(values) for values in (real, synthetic)]
    place.stairs(shares[0], edges, fill=True, color=COLOURS[5], alpha=0.55, label="training rows")
    place.stairs(shares[1], edges, color=COLOURS[1], lw=1.3, label="synthetic rows")
    return [
        {"column": found.names[i], "from": a, "to": b, "level": "", "training": float(p), "synthetic": float(q)}
        for a, b, p, q in zip(edges[:-1].tolist(), edges[1:].tolist(), *shares, strict=True)
    ]


def borders(real: Values) -> Float64[NDArray[np.float64], " borders"]:
    """The borders of the intervals: around every value of a few whole numbers, else at equal distances."""
    low, high = np.quantile(real, [0.005, 0.995])
    if (real == real.round()).all() and high - low <= 2 * BARS:
        return np.arange(np.floor(low) - 0.5, np.ceil(high) + 1)
    return np.linspace(low, high if high > low else low + 1, BARS + 1)


def _levels(place: Any, found: Synthesis, i: int) -> list[dict[str, Any]]:
    codes = np.arange(len(found.levels[i]))
    shares = [(known(rows[:, i])[:, None] == codes).mean(0) for rows in (found.train, found.synthetic)]
    first = np.argsort(-shares[0], kind="stable")[:MOST_LEVELS]
    where = np.arange(len(first))
    place.bar(where - 0.2, shares[0][first], 0.4, color=COLOURS[5], alpha=0.55, label="training rows")
    place.bar(where + 0.2, shares[1][first], 0.4, fill=False, ec=COLOURS[1], lw=1.3, label="synthetic rows")
    names = [shortened(found.levels[i][k], 9 if len(first) < 5 else 6) for k in first]
    size, angle = (7, 0) if len(first) < 5 else (6, 60)
    place.set_xticks(where, names, rotation=angle, fontsize=size, parse_math=False)
    return [
        {"column": found.names[i], "from": "", "to": "", "level": level, "training": float(p), "synthetic": float(q)}
        for level, p, q in zip(found.levels[i], *shares, strict=True)
    ]


def dependence_figure(found: Synthesis) -> Figure:
    """Associations of all pairs of columns: training rows, synthetic rows, and their difference."""
    pairs = found.association_train, found.association_synthetic
    difference, D = pairs[1] - pairs[0], len(found.names)
    with rc_context(STYLE):
        drawn = canvas(9.2, 4.3)
        panels = drawn.subplots(1, 3)
        for axes, matrix, title in zip(panels, pairs, ("training rows", "synthetic rows"), strict=False):
            image = axes.imshow(matrix, vmin=0, vmax=1, cmap=MAP)
            axes.set_title(title)
        drawn.colorbar(image, ax=panels[:2], shrink=0.7, label="Cramér's V", location="bottom", aspect=40)
        change = panels[2].imshow(difference, vmin=-0.5, vmax=0.5, cmap="RdBu_r")
        panels[2].set_title("synthetic minus training")
        drawn.colorbar(change, ax=panels[2], shrink=0.9, label="difference", location="bottom", aspect=20)
        for i, axes in enumerate(panels):
            axes.set_xticks([])
            axes.set_yticks(range(D) if i == 0 and D <= NAMED else [])
        if D <= NAMED:
            panels[0].set_yticklabels([shortened(name, 18) for name in found.names], fontsize=7, parse_math=False)
    caption = (
        "Association of every pair of columns, from 0 (independent) to 1 (one follows from the other): Cramér's V, "
        f"with numbers cut into {BINS} groups of as many training rows each. Of independent columns it is above 0 by "
        "chance, as much in synthetic rows as in training rows, of which there are equally many. Both axes have the "
        "columns in the same order."
    )
    numbers = {"training": pairs[0].tolist(), "synthetic": pairs[1].tolist()}
    return Figure("dependence", caption, drawn, values={"columns": found.names, **numbers})


def privacy_figure(found: Synthesis) -> Figure:
    """Distances to the closest training row."""
    held, synthetic = np.sort(found.closest_test), np.sort(found.closest_synthetic)
    with rc_context(STYLE):
        drawn = canvas(4.6, 3.0)
        axes = drawn.subplots()
        for values, colour, label in ((held, COLOURS[0], "test rows"), (synthetic, COLOURS[1], "synthetic rows")):
            axes.ecdf(values, color=colour, lw=1.5, label=label)
        axes.set_xlabel("distance to the closest training row")
        axes.set_ylabel("fraction of rows")
        axes.set_xlim(0, float(np.quantile(np.concatenate([held, synthetic]), 0.98)) or 1)
        axes.legend(loc="lower right", fontsize=8)
    caption = (
        f"Distance to the closest of {len(found.train):,} training rows, of {len(held):,} test rows and as many "
        "synthetic rows: root mean square over the columns as the model reads them. A curve of synthetic rows to the "
        "left of that of test rows would mean that the model repeats training rows. The farthest 2% are not shown. "
        "This is no proof that nothing about a person can be found out."
    )
    return Figure("privacy", caption, drawn, values={"test": held.tolist(), "synthetic": synthetic.tolist()})


def known(values: Values) -> Float64[NDArray[np.float64], " known"]:
    return values[~np.isnan(values)]


def shortened(text: str, most: int) -> str:
    """
    >>> shortened("a long name", 8)
    'a long …'
    """
    return text if len(text) <= most else f"{text[: most - 1]}…"
