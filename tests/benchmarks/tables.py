"""A table with columns of every kind."""

from __future__ import annotations

import numpy as np
import pandas as pd


def mixed(rows: int = 4000) -> pd.DataFrame:
    """Numbers (one of them mostly zero) and levels."""
    rng = np.random.default_rng(0)
    word = rng.choice(["a", "b", "c"], rows, p=[0.6, 0.3, 0.1])
    frame = pd.DataFrame({"x": rng.normal(5, 2, rows), "zeros": rng.random(rows) > 0.9, "word": word})
    return frame.astype({"zeros": float, "word": object})
