"""What the numbers were measured on."""

from __future__ import annotations

import os
import platform
import resource
import sys
from pathlib import Path
from typing import Any, NamedTuple

import torch

from memgen import __version__
from memgen.accelerate.calls import bind
from memgen.accelerate.library import library


def describe() -> dict[str, Any]:
    return {
        "cpu": processor(),
        "vectors": torch.backends.cpu.get_cpu_capability(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_bytes": memory(),
        "system": platform.platform(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "memgen": __version__,
    }


def processor() -> str:
    """The model's name as Linux gives it, with its numbers, because several share a name; else what Python knows."""
    name, family, model = (_value(Path("/proc/cpuinfo"), key) for key in ("model name", "cpu family", "model"))
    if name is None:
        return platform.processor() or platform.machine()
    return name if family is None else f"{name} (family {family}, model {model})"


def apart() -> float | None:
    """Seconds from when one thread writes a number to when another sees it, at best; None where it cannot be measured.

    The host of a virtual machine decides where its cores lie, and may change it from one minute to the next."""
    if library() is None or torch.get_num_threads() < 2:
        return None
    seconds = torch.zeros((), dtype=torch.float64)
    call = bind("apart", 10_000, seconds)

    def once() -> float:
        call()
        return float(seconds)

    return min(once() for _ in range(5)) or None


def memory() -> int:
    """Bytes in this machine."""
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def free_memory() -> int:
    """Bytes that a new process can have without swapping; where the system does not say, all there are."""
    available = _value(Path("/proc/meminfo"), "MemAvailable")
    return memory() if available is None else _kibibytes(available)


class Ticks(NamedTuple):
    """Time of all processors since the machine was started, in the kernel's units."""

    busy: int
    """In which there was something to do, ..."""
    stolen: int
    """... and in which the host of a virtual machine let others do it."""


def ticks(path: Path = Path("/proc/stat")) -> Ticks | None:
    """None on systems that do not say.

    >>> ticks(Path("/nowhere")) is None
    True
    """
    if not path.is_file():
        return None
    user, nice, system, _, _, irq, softirq, stolen = map(int, path.read_text().splitlines()[0].split()[1:9])
    return Ticks(user + nice + system + irq + softirq + stolen, stolen)


def stolen(before: Ticks | None, after: Ticks | None) -> float | None:
    """Which part of its time a virtual machine did not get, though it had something to do: others were at work, of
    whom nothing is seen from inside.

    >>> stolen(Ticks(1000, 50), Ticks(3000, 250))
    0.1
    """
    if before is None or after is None or after.busy == before.busy:
        return None
    return (after.stolen - before.stolen) / (after.busy - before.busy)


def peak_memory() -> int:
    """The most bytes that this process has held.

    Linux hands getrusage's figure on from the parent of a process, so the kernel's own record comes first.
    """
    high_water = _value(Path("/proc/self/status"), "VmHWM")
    if high_water is not None:
        return _kibibytes(high_water)
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return most if sys.platform == "darwin" else 1024 * most


def _kibibytes(text: str) -> int:
    """
    >>> _kibibytes("12 kB")
    12288
    """
    return 1024 * int(text.split()[0])


def _value(path: Path, key: str) -> str | None:
    """The first `key: value` of a file under /proc; None on systems that have no such file."""
    if not path.is_file():
        return None
    pairs = (line.partition(":") for line in path.read_text().splitlines())
    return next((value.strip() for name, _, value in pairs if name.strip() == key), None)
