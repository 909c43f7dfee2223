"""Where memgen keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """MEMGEN_CACHE, else memgen/ in the user's cache folder."""
    if own := os.environ.get("MEMGEN_CACHE"):
        return Path(own)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache").expanduser() / "memgen"
