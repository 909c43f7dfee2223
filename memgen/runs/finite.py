"""Numbers for JSON, which has no NaN and no infinity."""

from __future__ import annotations

import json
import math
from typing import Any


def finite(value: Any) -> Any:
    """The value with NaN and infinity replaced by None, also inside lists and tables.

    >>> finite({"bound": [1.5, float("nan")], "epoch": 3})
    {'bound': [1.5, None], 'epoch': 3}
    """
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def as_json(value: Any) -> bytes:
    """The content of a JSON file; null stands for NaN."""
    return (json.dumps(finite(value), indent=1, allow_nan=False) + "\n").encode()
