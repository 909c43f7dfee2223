"""Figures of the content and use of a memory."""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib import colormaps, rc_context
from torch import Tensor

from memgen.report.figures.base import COLOURS, FAINT, INK, MAP, STYLE, Figure, canvas
from memgen.report.figures.images import image_rows, numbered_images
from memgen.tasks.inspection import DEAD, Inspection, LayerInspection

FLAT = 0.05
"""Difference in grey level from which slots are visibly different."""
LETTERS = 12
"""Largest length of a class's name."""
Labels = list[int] | list[str]
PREFERRED = 3
"""Number of slots shown for every class, as in the paper."""


class Words(NamedTuple):
    """Words for rows and columns of the data in the captions."""

    rows: str
    values: str


def memory_figures(inspection: Inspection, train: Float[Tensor, "M D"], shape: tuple[int, ...]) -> list[Figure]:
    """All figures of an inspection. Pictures need images, figures of classes need labels."""
    figures = []
    words = Words("images", "pixels") if shape else Words("rows", "values")
    if inspection.pixels is not None:
        figures += [heat_map(layer, inspection.labels, words) for layer in inspection.layers] + [
            graphs(inspection, words)
        ]
    if shape:
        figures.append(disabled(inspection, shape))
        for layer in inspection.layers:
            if layer.classes is not None:
                figures.append(class_slots(layer, inspection.labels, shape))
            figures.append(neighbours(layer, train, shape))
    for layer in inspection.layers:
        figures += [use(layer, inspection, words), ablations(layer, inspection, words)]
    return figures


def short(labels: Labels) -> list[str]:
    """
    >>> short(["cat", "a very long name"])
    ['cat', 'a very long…']
    """
    names = list(map(str, labels))
    return [name if len(name) <= LETTERS else name[: LETTERS - 1] + "…" for name in names]


def _flat(layer: LayerInspection) -> str:
    """A sentence for the caption if the pictures of all slots look the same; else ""."""
    spread = float((layer.pictures - layer.pictures.mean(0)).abs().amax())
    return "" if spread > FLAT else f" All these slots look alike (within {spread:.2g}): alone, they show nothing."


def _file(prefix: str, layer: LayerInspection) -> str:
    return f"{prefix}-{layer.name.replace(' ', '-')}"


def heat_map(layer: LayerInspection, labels: Labels, words: Words) -> Figure:
    """Class x slot preference."""
    assert layer.classes is not None
    classes, slots = layer.classes.shape
    with rc_context(STYLE):
        drawn = canvas(7.2, max(1.6, 0.55 + 0.2 * classes))
        axes = drawn.subplots()
        image = axes.imshow(layer.classes.numpy(), aspect="auto", cmap=MAP, interpolation="nearest", vmin=0)
        axes.set_yticks(range(classes), short(labels))
        axes.set_xlabel("slot")
        axes.set_ylabel("class")
        axes.spines[:].set_visible(False)
        drawn.colorbar(image, ax=axes, label="mean preference", pad=0.01)
    table = [
        {"class": label} | {f"slot {j}": f"{value:.6g}" for j, value in enumerate(row)}
        for label, row in zip(labels, layer.classes.tolist(), strict=True)
    ]
    caption = (
        f"Preference of every class for the {slots} slots of {layer.name}: normalised attention, mean over the "
        f"{words.rows} of the class; every map has a colour scale of its own."
    )
    return Figure(_file("preference", layer), caption, drawn, table=table)


def graphs(inspection: Inspection, words: Words) -> Figure:
    """Correlation between classes as graphs: one per layer, and one of raw pixels, or values."""
    assert inspection.pixels is not None
    matrices = {layer.name: layer.correlation for layer in inspection.layers} | {
        f"raw {words.values}": inspection.pixels
    }
    labels = inspection.labels
    angle = 2 * math.pi * np.arange(len(labels)) / len(labels)
    at = np.stack([np.sin(angle), np.cos(angle)], 1)
    with rc_context(STYLE):
        drawn = canvas(2.4 * len(matrices), 2.95)
        for axes, (name, matrix) in zip(
            drawn.subplots(1, len(matrices), squeeze=False)[0], matrices.items(), strict=True
        ):
            assert matrix is not None
            for i, j, strength in edges(matrix):
                axes.plot(
                    *at[[i, j]].T, color=colormaps["Greys"](0.15 + 0.85 * strength), lw=4 * strength, zorder=strength
                )
            axes.scatter(*at.T, s=190, color="white", edgecolor=COLOURS[0], lw=1.4, zorder=2)
            for label, (x, y) in zip(short(labels), at, strict=True):
                axes.text(x, y, label, ha="center", va="center", fontsize=8, zorder=3)
            resembles = {layer.name: layer.pixel_resemblance for layer in inspection.layers}.get(name)
            note = "" if resembles is None else f"\nresemblance to {words.values} {resembles:.2f}"
            axes.text(0, -1.28, name + note, ha="center", va="top", fontsize=8)
            axes.set(xlim=(-1.25, 1.25), ylim=(-1.75, 1.2), aspect="equal")
            axes.set_axis_off()
    values = {
        "labels": labels,
        "correlation": {name: [] if matrix is None else matrix.tolist() for name, matrix in matrices.items()},
        "resemblance_to_pixels": {layer.name: layer.pixel_resemblance for layer in inspection.layers},
    }
    caption = (
        f"Correlation between classes, by the slots that they prefer and by raw {words.values}: wider and darker is "
        "more correlated, no line is a correlation of 0 or less; the resemblance is the correlation between two such "
        "sets of lines."
    )
    return Figure("class-correlation", caption, drawn, values=values)


def edges(matrix: Float[Tensor, "classes classes"]) -> list[tuple[int, int, float]]:
    """Pairs with a positive correlation."""
    values = matrix.tolist()
    pairs = [(i, j, values[i][j]) for i in range(len(values)) for j in range(i)]
    return [(i, j, min(1.0, value)) for i, j, value in pairs if value > 0]


def disabled(inspection: Inspection, shape: tuple[int, ...]) -> Figure:
    caption = (
        "Means of p(x|z) for the same draws of z, with the memory intact and disabled: its reading h_m replaced "
        "by ones (as in the paper) or by zeros, in one layer or in all."
    )
    return image_rows("memory-disabled", caption, inspection.disabled, shape)


def class_slots(layer: LayerInspection, labels: Labels, shape: tuple[int, ...]) -> Figure:
    """The three preferred slots of every class as images, with their values."""
    assert layer.classes is not None
    best = layer.classes.topk(min(PREFERRED, layer.classes.shape[1]), -1)
    ranks = range(best.values.shape[1])
    images = [
        [(f"{best.values[c, r]:.2f}", layer.pictures[best.indices[c, r]]) for c in range(len(labels))] for r in ranks
    ]
    table: list[dict[str, Any]] = [
        {
            "class": label,
            "rank": r + 1,
            "slot": int(best.indices[c, r]),
            "preference": f"{float(best.values[c, r]):.6g}",
        }
        for c, label in enumerate(labels)
        for r in ranks
    ]
    caption = (
        f"For every class (above) its {len(ranks)} preferred slots of {layer.name}, decoded alone (h_g = 0, h_m = "
        "the slot), with the class's preference for them (below)."
    )
    caption += _flat(layer)
    names = [("1st", "2nd", "3rd")[r] for r in ranks]
    return numbered_images(_file("class-slots", layer), caption, images, shape, names, short(labels), table)


def neighbours(layer: LayerInspection, train: Float[Tensor, "M D"], shape: tuple[int, ...]) -> Figure:
    """The most read slots as pictures, and the training images that are nearest to them."""
    distances, indices = layer.neighbours
    k = indices.shape[1]
    images = [[(f"slot {slot}", layer.pictures[slot]) for slot in layer.shown]]
    shown = range(len(layer.shown))
    images += [[(f"{distances[i, r]:.1f}", train[indices[i, r]]) for i in shown] for r in range(k)]
    table: list[dict[str, Any]] = [
        {"slot": slot, "rank": r + 1, "training_row": int(indices[i, r]), "distance": f"{float(distances[i, r]):.6g}"}
        for i, slot in enumerate(layer.shown)
        for r in range(k)
    ]
    caption = (
        f"The {len(layer.shown)} most read slots of {layer.name} decoded alone (top), and below each the training "
        "images that are nearest to its picture, with their Euclidean distance."
    )
    caption += _flat(layer)
    names = ["slot", *(f"near {r + 1}" for r in range(k))]
    return numbered_images(_file("slot-neighbours", layer), caption, images, shape, names, table=table)


def use(layer: LayerInspection, inspection: Inspection, words: Words) -> Figure:
    """How often each slot is read."""
    usage = layer.usage
    order = usage.share.argsort(descending=True)
    slots = len(order)
    with rc_context(STYLE):
        drawn = canvas(7.2, 2.2)
        axes = drawn.subplots()
        axes.bar(
            range(slots), usage.share[order].numpy(), color=COLOURS[0], width=0.85, label="mean share of the preference"
        )
        axes.axhline(1 / slots, color=COLOURS[1], lw=1, ls="--", label="even share")
        axes.set_xlim(-0.6, slots - 0.4)
        axes.set_xlabel(f"slots of {layer.name}, ranked, most read first")
        axes.set_ylabel("share")
        axes.legend(loc="upper right")
    table = [
        {
            "slot": int(j),
            "share": f"{float(usage.share[j]):.6g}",
            "used": f"{float(usage.used[j]):.6g}",
            "top": f"{float(usage.top[j]):.6g}",
            "dead": int(j) in usage.dead,
        }
        for j in order.tolist()
    ]
    caption = (
        f"How {inspection.rows:,} {words.rows} spread their reading over the {slots} slots of {layer.name}: entropy "
        f"{usage.entropy:.2f} nats, as if {math.exp(usage.entropy):.1f} slots were read evenly; {len(usage.dead)} dead "
        f"(in none of the {words.rows} more than {DEAD:g} of an even share)."
    )
    return Figure(_file("usage", layer), caption, drawn, table=table)


def ablations(layer: LayerInspection, inspection: Inspection, words: Words) -> Figure:
    """The gain in log p(x) from each slot, sorted."""
    ablation = layer.ablation
    order = ablation.mean.argsort(descending=True)
    with rc_context(STYLE):
        drawn = canvas(7.2, 2.2)
        axes = drawn.subplots()
        errors = ablation.standard_error[order]
        axes.bar(
            range(len(order)),
            ablation.mean[order].numpy(),
            yerr=errors.numpy() if bool(errors.isfinite().all()) else None,
            color=COLOURS[2],
            ecolor=FAINT,
            error_kw={"lw": 0.8},
            width=0.85,
        )
        axes.axhline(0, color=INK, lw=0.8)
        axes.set_xlim(-0.6, len(order) - 0.4)
        axes.set_xlabel(f"slots of {layer.name}, ranked, most useful first")
        axes.set_ylabel("nats lost")
    table = [
        {
            "slot": j,
            "nats": f"{float(ablation.mean[j]):.6g}",
            "standard_error": f"{float(ablation.standard_error[j]):.6g}",
        }
        for j in order.tolist()
    ]
    caption = (
        f"What log p(x) loses when one slot of {layer.name} alone is silenced, mean over {inspection.ablated_rows:,} "
        f"{words.rows} with its standard error ({inspection.samples:,} importance samples, the same z throughout)."
    )
    return Figure(_file("ablation", layer), caption, drawn, table=table)
