"""How training went."""

from __future__ import annotations

from typing import Any

from matplotlib import rc_context

from memgen.figures.base import COLOURS, STYLE, Figure, canvas

LINES = {
    "bound": ("training bound, mean over the epoch", "-", 0),
    "train_bound": ("training rows, exact statistics", "o-", 2),
    "valid_bound": ("validation rows, exact statistics", "s-", 1),
}
"""Key of a metric -> its words, style and colour."""


def training_curves(metrics: list[dict[str, Any]]) -> Figure:
    """The bounds against the epoch."""
    with rc_context(STYLE):
        drawn = canvas(4.6, 2.6)
        axes = drawn.subplots()
        for key, (words, style, colour) in LINES.items():
            points = [(line["epoch"], line[key]) for line in metrics if key in line]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=COLOURS[colour], lw=1.3, ms=3.5, label=words)
        late = [line["bound"] for line in metrics][len(metrics) // 10 :]
        if len(late) > 3:  # the first epochs would squeeze all that matters into a line
            best = [line[key] for line in metrics for key in LINES if key in line]
            low, high = min(late), max(best)
            axes.set_ylim(low - 0.05 * (high - low), high + 0.08 * (high - low))
        axes.set_xlabel("epoch")
        axes.set_ylabel("bound, nats")
        axes.legend(loc="lower right", fontsize=7)
    caption = (
        "The bound on log p(x) while training, higher is better; the gap between training and validation rows is "
        "over-fitting."
        if any("valid_bound" in line for line in metrics)
        else "The bound on log p(x) while training, higher is better."
    )
    return Figure(
        "training", caption, drawn, table=[{key: line.get(key) for key in _keys(metrics)} for line in metrics]
    )


def _keys(metrics: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for line in metrics for key in line))
