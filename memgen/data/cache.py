"""Where memgen keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path

from platformdirs import user_cache_path


def cache_folder() -> Path:
    """MEMGEN_CACHE, else memgen/ in the user's cache folder, for which a relative XDG_CACHE_HOME does not count."""
    if given := os.environ.get("MEMGEN_CACHE"):
        return Path(given)
    folder = user_cache_path("memgen", appauthor=False)
    # Versions of platformdirs for Python 3.10 take a relative XDG_CACHE_HOME, which its specification tells to ignore.
    return folder if folder.is_absolute() else Path.home() / ".cache" / "memgen"
