"""Settings that suit the user's own data, from its number of rows and columns.

They were chosen on the tables CHOOSING of benchmarks/tables.py alone (see docs/estimators.md).
"""

from __future__ import annotations

import math
from typing import Any

from memgen.recipes.settings import Recipe

STEPS = 800
"""Steps of a training on FEW rows; with more rows they grow as the square root of the number of rows."""
FEW = 500
EPOCHS = 20
"""The least number of epochs."""


def auto_recipe(rows: int, columns: int, encoded: int, image: bool = False) -> Recipe:
    """The recipe `auto` for a number of training rows and columns; `encoded` counts the inputs of Q, one per category.

    >>> auto_recipe(500, 10, 10).model.latent
    (9,)
    """
    settings = _image(rows) if image else _table(rows, encoded)
    return Recipe.from_dict({"about": f"chosen for {rows:,} rows and {columns:,} columns", **settings}, "auto")


def _table(rows: int, encoded: int) -> dict[str, Any]:
    batch = max(1, min(128, rows))
    steps = STEPS * max(1.0, math.sqrt(rows / FEW))
    units = 64 if encoded <= 32 else 128
    model = {
        "hidden": [units, units],
        # One less than the columns: then the linear path can be a Gaussian with full covariance.
        "latent": max(1, min(encoded - 1, 32)),
        "slots": default_slots(2),
        "norm": "none",
        "skip": True,
        "sigma_floor": 0.01,
    }
    epochs = max(EPOCHS, math.ceil(steps / math.ceil(rows / batch)))
    training = {
        "epochs": epochs,
        "batch_size": batch,
        "rate": 5e-3,
        "weight_decay": 0.05,
        "ema": 0.98,
        "keep": "best",
        "evaluate_every": max(1, epochs // 20),
    }
    return {"model": model, "objective": {"samples": 10}, "training": training}


def default_slots(layers: int) -> list[int]:
    """
    >>> default_slots(2)
    [20, 10]
    """
    return [20, 10, *([10] * layers)][:layers]


def _image(rows: int) -> dict[str, Any]:
    batch = max(1, min(100, rows // 4))
    steps = 4 * STEPS * max(1.0, math.sqrt(rows / FEW))
    return {
        "model": {"hidden": [200, 200], "latent": 50, "slots": [50, 20]},
        "training": {
            "epochs": max(EPOCHS, math.ceil(steps / math.ceil(rows / batch))),
            "batch_size": batch,
            "rate": 2e-3,
            "ema": 0.99,
            "keep": "best",
        },
    }
