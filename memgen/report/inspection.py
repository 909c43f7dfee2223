"""The result of an inspection of the memory, as text for the user and as a record for programs."""

from __future__ import annotations

import math
from typing import Any

from memgen.data import Dataset
from memgen.tasks.inspection import Inspection, LayerInspection


def summary_of(inspection: Inspection, data: Dataset, split: str) -> dict[str, Any]:
    """The main numbers, as a record."""
    return {
        "data": data.name,
        "split": split,
        "rows": inspection.rows,
        "ablated_rows": inspection.ablated_rows,
        "samples": inspection.samples,
        "labels": inspection.labels,
        "layers": [
            {
                "name": layer.name,
                "slots": len(layer.usage.share),
                "entropy": layer.usage.entropy,
                "effective_slots": math.exp(layer.usage.entropy),
                "dead": layer.usage.dead,
                "most_useful": int(layer.ablation.mean.argmax()),
                "most_useful_nats": float(layer.ablation.mean.max()),
                "most_useful_standard_error": float(layer.ablation.standard_error[layer.ablation.mean.argmax()]),
                "resemblance_to_pixels": layer.pixel_resemblance,
            }
            for layer in inspection.layers
        ],
    }


def lines(inspection: Inspection, values: str) -> list[str]:
    """The main numbers as text; `values`: a word for the columns, "pixels" or "values"."""
    text = [line for layer in inspection.layers for line in layer_lines(layer, values)]
    return text if inspection.labels else [*text, "the data have no labels: no figures of classes"]


def layer_lines(layer: LayerInspection, values: str) -> list[str]:
    usage, best = layer.usage, int(layer.ablation.mean.argmax())
    nats, error = float(layer.ablation.mean[best]), float(layer.ablation.standard_error[best])
    doubt = "" if nats > 3 * error else ", which does not stand out"  # it is the best of many
    even = f"as {math.exp(usage.entropy):.1f} slots read evenly"
    text = [
        f"{layer.name}: {len(usage.share)} slots, attention entropy {usage.entropy:.2f} nats ({even}), "
        f"{len(usage.dead)} dead",
        f"{layer.name}: slot {best} adds most to log p(x): {nats:.3f} +- {error:.3f} nats{doubt}",
    ]
    if layer.pixel_resemblance is not None:
        resemblance = f"resemble those of raw {values} by {layer.pixel_resemblance:.2f}"
        text.append(f"{layer.name}: class correlations {resemblance}")
    return text
