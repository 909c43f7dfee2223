"""A look inside the memory: what each slot is for, by reading and replacing what passes between the parts of a layer.

Layers are counted from the data upwards, as in the paper: layer 1 is next to x.
"""

from memgen.tasks.inspection.places import (
    MOST_SLOTS,
    Place,
    dense,
    hooked,
    places,
    replaced,
    require_memory,
    without,
)
from memgen.tasks.inspection.preferences import (
    DEAD,
    Usage,
    by_class,
    correlation,
    preferences,
    resemblance,
    usage,
)
from memgen.tasks.inspection.report import Inspection, LayerInspection, inspect
from memgen.tasks.inspection.slots import (
    Ablation,
    ablation,
    disabled_samples,
    filled,
    nearest,
    slot_pictures,
)

__all__ = [
    "DEAD",
    "MOST_SLOTS",
    "Ablation",
    "Inspection",
    "LayerInspection",
    "Place",
    "Usage",
    "ablation",
    "by_class",
    "correlation",
    "dense",
    "disabled_samples",
    "filled",
    "hooked",
    "inspect",
    "nearest",
    "places",
    "preferences",
    "replaced",
    "require_memory",
    "resemblance",
    "slot_pictures",
    "usage",
    "without",
]
