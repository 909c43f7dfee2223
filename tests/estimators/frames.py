"""Tables to fit the estimators on, and the settings of small estimators."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

QUICK: dict[str, Any] = {"epochs": 3, "hidden": (4,), "slots": (3,), "latent": 2, "n_samples": 5, "batch_size": 64}


def numbers(n: int = 80, d: int = 4, seed: int = 0) -> NDArray[np.float64]:
    rng = np.random.default_rng(seed)
    return rng.normal(size=(n, d)) @ rng.normal(size=(d, d)) + 10


def people(n: int = 80, seed: int = 0) -> Any:
    """Columns of every kind, with missing values."""
    rng = np.random.default_rng(seed)
    t = rng.normal(size=n)
    frame = pd.DataFrame(
        {
            "town": np.where(t > 0.5, "Bern", np.where(t > -0.5, "Basel", "Chur")),
            "height": 170 + 8 * t + rng.normal(size=n),
            "income": np.exp(8 + t),
            "visits": rng.poisson(np.exp(1 + t)).astype(float),
            "member": rng.random(n) < 1 / (1 + np.exp(-2 * t)),
        }
    )
    return frame.astype({"member": object}).mask(rng.random(frame.shape) < 0.15)
