"""Settings that suit the user's own data, from its number of rows and columns."""

from __future__ import annotations

import math

from memgen.recipe import Recipe

STEPS = 2500
"""Of a training on a small table."""


def auto_recipe(rows: int, columns: int, encoded: int, image: bool = False) -> Recipe:
    """The recipe `auto` for so many training rows and columns, of which Q sees `encoded`.

    >>> auto_recipe(500, 10, 10).model.latent
    (9,)
    """
    batch = max(16, min(100, rows // 8))
    epochs = max(20, math.ceil(STEPS * batch / rows))
    table = {
        "about": f"chosen for {rows:,} rows and {columns:,} columns",
        "model": {
            "hidden": [64, 64],
            "latent": max(1, min(encoded - 1, 32)),
            "slots": [20, 10],
            "norm": "none",
            "mask": True,
            "skip": True,
            "start": "linear",
            "sigma_floor": 0.01,
        },
        "objective": {"samples": 10},
        "training": {"epochs": epochs, "batch_size": batch, "rate": 3e-3, "ema": 0.99, "evaluate_every": 0},
    }
    if image:
        table["model"] = {"hidden": [200, 200], "latent": 50, "slots": [50, 20], "mask": True}
        table["objective"] = {"samples": 1}
    return Recipe.from_dict(table, "auto")
