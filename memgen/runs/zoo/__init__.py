"""Trained models that come with the package: `memgen.load("zoo:mnist-mem-vae")`, `memgen sample zoo:mnist-mem-vae`.

Each is a model file as `memgen.save` writes it, most of its weights in half precision, with the result that was
measured for it inside. `memgen reproduce --ship ROW` puts them here.
"""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from memgen.errors import MemgenError, unknown

PREFIX = "zoo:"
ENDING = ".safetensors"
RESULT = "result"
"""The key of a file's metadata whose value holds the measured numbers, as JSON."""


def folder() -> Path:
    """The folder of the model files."""
    return Path(str(resources.files("memgen") / "runs" / "zoo"))


def names() -> list[str]:
    """The names of all models."""
    return sorted(path.name.removesuffix(ENDING) for path in folder().glob(f"*{ENDING}"))


def resolve(path: str | Path) -> Path:
    """The file of a model named with the prefix `zoo:`. Any other path is returned unchanged.

    >>> resolve("runs/digits").as_posix()
    'runs/digits'
    """
    text = str(path)
    if not text.startswith(PREFIX):
        return Path(path)
    name = text.removeprefix(PREFIX)
    if name not in names():
        raise unknown("model of the zoo", name, names())
    return folder() / f"{name}{ENDING}"


def result(name: str) -> dict[str, Any]:
    """The measured numbers of a model, read without its weights."""
    path = resolve(PREFIX + name)
    try:
        with safe_open(path, framework="pt") as file:
            about = file.metadata() or {}
        measured: dict[str, Any] = json.loads(about[RESULT])
    except (SafetensorError, OSError, KeyError, ValueError):
        raise MemgenError(f"{path} is damaged: it does not say what was measured; install memgen again") from None
    return measured
