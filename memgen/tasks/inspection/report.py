"""The whole inspection of a model's memory as one record."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxtyping import Float, Int
from torch import Tensor

from memgen.core.batch import UNKNOWN, Batch
from memgen.core.model import GenerativeModel
from memgen.tasks.inspection.places import Place, require_memory
from memgen.tasks.inspection.preferences import Usage, by_class, correlation, preferences, resemblance, usage
from memgen.tasks.inspection.slots import Ablation, ablation, disabled_samples, filled, nearest, slot_pictures


@dataclass(frozen=True)
class LayerInspection:
    """The results for the memory of one layer."""

    name: str
    usage: Usage
    ablation: Ablation
    pictures: Float[Tensor, "slots D"]
    neighbours: tuple[Float[Tensor, "shown k"], Int[Tensor, "shown k"]]
    """Distance and index of the training rows that are nearest to the pictures of the most read slots (`shown`)."""
    shown: list[int]
    classes: Float[Tensor, "classes slots"] | None
    """Mean preference of each class."""
    correlation: Float[Tensor, "classes classes"] | None
    pixel_resemblance: float | None
    """`resemblance` of the correlation by the memory and that of raw pixels."""


@dataclass(frozen=True)
class Inspection:
    """The results for all memories of a model."""

    layers: list[LayerInspection]
    labels: list[int] | list[str]
    """The classes, by number or by name; empty without classes."""
    pixels: Float[Tensor, "classes classes"] | None
    """Correlation between the classes' mean images, or rows."""
    disabled: dict[str, Float[Tensor, "n D"]]
    rows: int
    ablated_rows: int
    samples: int


SHOWN = 10
"""Number of slots whose picture is shown with its neighbours."""


def inspect(
    model: GenerativeModel,
    batch: Batch,
    scored: Batch,
    train: Float[Tensor, "M D"],
    *,
    values: Float[Tensor, "N E"] | None = None,
    samples: int = 100,
    seed: int = 0,
    tick: Callable[[int], None] = lambda rows: None,
) -> Inspection:
    """The inspection of a model.

    `batch` has the rows whose preferences are computed (grey images, as in the paper), with labels of any classes.
    `scored` has the rows whose log p(x) is compared (binary for a Bernoulli likelihood). `train` has the rows among
    which neighbours are searched. The correlation of the classes by the memory is compared with that by `values` of
    the rows, by default x.
    """
    labels, layers = batch.label, require_memory(model)
    classes = [] if labels is None else labels[labels != UNKNOWN].unique().tolist()
    raw = filled(batch.values if values is None else values)
    pixels = correlation(by_class(raw, labels)) if labels is not None and len(classes) > 1 else None
    preferences_of = preferences(model, batch, seed=seed)

    def inspect_layer(place: Place) -> LayerInspection:
        h, pictures = preferences_of[place.name], slot_pictures(model, place)
        use = usage(h)
        shown = use.share.argsort(descending=True)[:SHOWN].tolist()
        mean = None if labels is None else by_class(h, labels)
        between = None if mean is None or pixels is None else correlation(mean)
        return LayerInspection(
            place.name,
            use,
            ablation(model, place, scored, samples=samples, seed=seed, tick=tick),
            pictures,
            nearest(pictures[shown], filled(train)),
            shown,
            mean,
            between,
            None if between is None or pixels is None else resemblance(between, pixels),
        )

    disabled = disabled_samples(model, seed=seed)
    return Inspection(
        [inspect_layer(place) for place in layers], classes, pixels, disabled, len(batch), len(scored), samples
    )
