"""Where and how a training computes: device, threads and execution path, on which the bits of its result depend."""

from __future__ import annotations

import warnings
from typing import Any

import torch

from memgen.errors import MemgenError
from memgen.training.execution import execution_path

COMPILED = "compiled"
"""The execution path of a run whose loss is compiled by torch.compile."""


def choose_device(name: str) -> str:
    """A device that works; "auto" is a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise MemgenError(f"--device {name}: there is no such device here; use cpu, or auto") from None
    return name


def choose_execution(
    device: str, previous: dict[str, Any] | None, compiled: bool = False, ranks: int = 1
) -> dict[str, Any]:
    """Device, threads, version of torch and path, on which the bits of a result depend. They are chosen when a run
    starts; a resumed run keeps the `previous` ones, except for the number of ranks, and threads if that is another."""
    path = path_of(compiled, ranks)
    if previous is None:
        threads, version = torch.get_num_threads(), torch.__version__
        return {"device": choose_device(device), "threads": threads, "torch": str(version), "path": path}
    if device not in ("auto", previous["device"]):
        raise MemgenError(f"this run was started on {previous['device']} and stays there; leave out --device {device}")
    choose_device(previous["device"])
    before = previous["path"]
    if ranks > 1 and before == COMPILED:
        raise MemgenError("this run was started with --compile, which is for one process: resume it without torchrun")
    if before.partition(DIVIDED)[2] == path.partition(DIVIDED)[2]:
        torch.set_num_threads(previous["threads"])
    if previous["torch"] != torch.__version__:
        _warn(f"with torch {previous['torch']}, this is {torch.__version__}")
    if before != path and COMPILED not in (before, path):
        _warn(f"on the path '{before}', this is '{path}'")
    return previous


DIVIDED = ", ranks: "


def path_of(compiled: bool, ranks: int) -> str:
    """The execution path, and the number of ranks if there are several."""
    if ranks > 1:
        return f"plain{DIVIDED}{ranks}"
    return COMPILED if compiled else execution_path()


def _warn(difference: str) -> None:
    warnings.warn(
        f"this run was started {difference}: its end may differ in the last bits from that of an uninterrupted run",
        stacklevel=3,
    )
