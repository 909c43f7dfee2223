"""Columns as arrays of Python objects."""

from __future__ import annotations

from typing import Any

import numpy as np

NAN = float("nan")


def objects(*values: object) -> np.ndarray[Any, Any]:
    out = np.empty(len(values), dtype=object)
    out[:] = values
    return out
