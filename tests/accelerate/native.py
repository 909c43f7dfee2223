"""The C library in tests: the tests that need it, its compiler, and products by it."""

from __future__ import annotations

import os
import shlex

import pytest
import torch
from torch import Tensor

from memgen.accelerate.calls import bind
from memgen.accelerate.library import library
from memgen.accelerate.program import Plan, Program, blas

needs_library = pytest.mark.skipif(library() is None, reason="there is no C compiler here, so memgen runs plain torch")
needs_blas = pytest.mark.skipif(not blas(), reason="there is no C compiler here, or a torch without MKL")


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or "cc")


def own_products(on: bool = True) -> bool:
    """Whether there are any on this processor."""
    available = torch.zeros((), dtype=torch.int64)
    bind("use_own_products", on, available)()
    return bool(available)


def done() -> int:
    count = torch.zeros((), dtype=torch.int64)
    bind("own_products_done", count)()
    return int(count)


def product(a: Tensor, b: Tensor, out: Tensor, keep: float = 0.0) -> bool:
    """Whether it was one of our own."""
    plan, before = Plan(), done()
    plan.product(a, b, out, keep)
    assert Program([plan], []).run()
    return bool(done() - before)
