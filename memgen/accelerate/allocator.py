"""Memory that a training frees and asks for again in every step stays with the process.

The C library maps every large block anew and gives it back when it is freed. At K = 50 a step by autograd has many
tensors of ten megabytes and more, and the system clears each of their pages at the first touch: where such memory is
kept, a step takes 0.87 to 0.99 of the time (docs/performance.md). Steps of fused/ allocate nothing but
the gradients of memories that are read by index.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from threading import Lock

# Of <malloc.h>.
M_TRIM_THRESHOLD, M_TOP_PAD, M_MMAP_THRESHOLD, M_MMAP_MAX = -1, -2, -3, -4
KEEPING = {M_MMAP_MAX: 0, M_TRIM_THRESHOLD: -1, M_TOP_PAD: 2**26}
"""No mapped blocks, nothing given back, and 64 MiB more than is asked for."""
USUAL = {M_MMAP_MAX: 65536, M_TRIM_THRESHOLD: 2**26, M_TOP_PAD: 2**17, M_MMAP_THRESHOLD: 2**25}
"""The library's own; but its thresholds, which rise while a program runs, end here where they would have stopped."""


@cache
def _library() -> ctypes.CDLL | None:
    """glibc, unless the user has settled such things."""
    if platform.libc_ver()[0] != "glibc" or any(name.startswith(("MALLOC_", "GLIBC_TUNABLES")) for name in os.environ):
        return None
    return ctypes.CDLL(None)


_depth, _lock = 0, Lock()
"""How many want memory to be kept: the library has one set of thresholds for all."""


@contextmanager
def kept_memory() -> Iterator[None]:
    """Inside, freed memory stays with the process; after the outermost, what is free is given back."""
    _change(+1)
    try:
        yield
    finally:
        _change(-1)


def _change(by: int) -> None:
    global _depth
    libc = _library()
    with _lock:
        _depth += by
        _set(libc, KEEPING if _depth else USUAL)
        if libc is not None and _depth == 0:
            libc.malloc_trim(0)


def _set(libc: ctypes.CDLL | None, values: dict[int, int]) -> None:
    if libc is not None:
        for parameter, value in values.items():
            libc.mallopt(parameter, value)
