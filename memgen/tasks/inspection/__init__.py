"""A look inside the memory: what each slot is for, by reading and replacing what passes between the parts of a layer.

Layers are counted from the data upwards, as in the paper: layer 1 is next to x.
"""

from memgen.tasks.inspection.changes import ALL, Change, Reading, changed, changing, read, without
from memgen.tasks.inspection.places import (
    MOST_SLOTS,
    Place,
    dense,
    hooked,
    places,
    replaced,
    require_memory,
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
    Effect,
    ablation,
    disabled_samples,
    effect,
    filled,
    nearest,
    slot_pictures,
)

__all__ = [
    "ALL",
    "DEAD",
    "MOST_SLOTS",
    "Ablation",
    "Change",
    "Effect",
    "Inspection",
    "LayerInspection",
    "Place",
    "Reading",
    "Usage",
    "ablation",
    "by_class",
    "changed",
    "changing",
    "correlation",
    "dense",
    "disabled_samples",
    "effect",
    "filled",
    "hooked",
    "inspect",
    "nearest",
    "places",
    "preferences",
    "read",
    "replaced",
    "require_memory",
    "resemblance",
    "slot_pictures",
    "usage",
    "without",
]
