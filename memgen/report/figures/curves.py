"""Training curves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from matplotlib import rc_context

from memgen.report.figures.base import COLOURS, STYLE, Figure, canvas

LINES = {
    "bound": ("training bound, mean over the epoch", "-", 0),
    "train_bound": ("training rows", "o-", 2),
    "valid_bound": ("validation rows", "s-", 1),
}
"""Key of a metric -> its label, style and colour."""


def shared_limits(runs: Sequence[list[dict[str, Any]]]) -> tuple[float, float] | None:
    """Limits of an axis for all runs: from the worst bound to the best. The worst bound ignores the first tenth of the
    epochs, whose low values would squeeze the rest of the curves.
    """
    late = [line[key] for metrics in runs for line in metrics[len(metrics) // 10 :] for key in LINES if key in line]
    best = [line[key] for metrics in runs for line in metrics for key in LINES if key in line]
    if len(late) < 4:
        return None
    low, high = min(late), max(best)
    return low - 0.05 * (high - low), high + 0.08 * (high - low)


def training_curves(metrics: list[dict[str, Any]], limits: tuple[float, float] | None = None) -> Figure:
    """The bounds against the epoch."""
    with rc_context(STYLE):
        drawn = canvas(4.6, 3.0)
        axes = drawn.subplots()
        for key, (words, style, colour) in LINES.items():
            points = [(line["epoch"], line[key]) for line in metrics if key in line]
            if points:
                axes.plot(*zip(*points, strict=True), style, color=COLOURS[colour], lw=1.3, ms=3.5, label=words)
        axes.set_ylim(limits or shared_limits([metrics]))
        axes.set_xlabel("epoch")
        axes.set_ylabel("bound, nats")
        axes.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), fontsize=7)  # above: no line runs there
    caption = "The bound on log p(x) while training, higher is better."
    if _lowest(metrics) < axes.get_ylim()[0]:
        caption += " Lower bounds of the first epochs are left out."
    if any("train_bound" in line or "valid_bound" in line for line in metrics):
        caption += (
            " Points are bounds on rows that stay the same (evaluate_samples in the settings); the line is the mean of "
            "the steps of an epoch."
        )
    if any("valid_bound" in line for line in metrics):
        caption += " Where that of validation rows falls while that of training rows rises, the model over-fits."
    return Figure(
        "training", caption, drawn, table=[{key: line.get(key) for key in _keys(metrics)} for line in metrics]
    )


def _lowest(metrics: list[dict[str, Any]]) -> float:
    return min(float(line[key]) for line in metrics for key in LINES if key in line)


def _keys(metrics: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(key for line in metrics for key in line))
