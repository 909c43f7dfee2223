"""Memory that is kept from one step to the next, and given back after the last."""

from __future__ import annotations

import resource
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from memgen.accelerate import allocator
from memgen.accelerate.allocator import kept_memory

needs_glibc = pytest.mark.skipif(
    allocator._library() is None, reason="the C library is another one than glibc, or the user has set it up"
)
SIZE = 2**24
"""Floats of 64 MB, more than glibc would ever keep by itself."""


def faults() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


def resident() -> int:
    """Bytes that the process has now."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


def touched() -> int:
    """Page faults of one large block that is filled and freed."""
    before = faults()
    torch.ones(SIZE)
    return faults() - before


def settled() -> int:
    """The same after some others: holes that are a little too small make room for a larger one first."""
    return [touched() for _ in range(20)][-1]


@needs_glibc
def test_memory_is_kept_inside_and_given_back_after() -> None:
    """Blocks that were freed are there again without a fault for every page; nested uses end with the outermost."""
    pages = 4 * SIZE // resource.getpagesize()
    with kept_memory():
        with kept_memory():
            assert settled() < pages / 100
        assert settled() < pages / 100
        inside = resident()
    assert inside - resident() > 3 * SIZE


@needs_glibc
def test_memory_is_given_back_after_an_error() -> None:
    inside = []

    def fail() -> None:
        with kept_memory():
            settled()
            inside.append(resident())
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert inside[0] - resident() > 3 * SIZE


SETTLED = (
    "from memgen.accelerate import allocator; assert allocator._library() is None; allocator.kept_memory().__enter__()"
)


@pytest.mark.parametrize("setting", [{"MALLOC_ARENA_MAX": "1"}, {"GLIBC_TUNABLES": "glibc.malloc.mmap_max=9"}])
def test_what_the_user_has_settled_stays(setting: dict[str, str]) -> None:
    subprocess.run([sys.executable, "-c", SETTLED], check=True, env=setting, timeout=120)
