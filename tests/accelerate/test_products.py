"""Products in C against float64."""

from __future__ import annotations

import os
import platform
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.accelerate.native import compiler, needs_blas, own_products, product


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On several threads a product that is not small is torch's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@needs_blas
@pytest.mark.parametrize("across", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("keep", [0.0, 1.0, 0.5])
def test_products_in_every_layout_and_of_every_remainder(across: tuple[bool, bool], keep: float) -> None:
    """One number, less and more than a tile in each direction, tiles of every height and width, several parts of the
    inner dimension, many rows; all three matrices are some columns of larger ones, of which nothing else is read or
    written."""
    torch.manual_seed(0)
    tiles = [(m, 3, n) for m in range(1, 14) for n in (8, 16, 24, 32)]
    parts = [(1, 1, 1), (5, 7, 30), (7, 199, 33), (13, 201, 47), (50, 401, 70), (4, 100, 24), (259, 9, 100)]
    for m, k, n in (*tiles, *parts):
        a, b = (
            torch.full((4 + inner, 4 + outer), torch.nan)[2:-2, 2:-2].copy_(torch.randn(inner, outer)).t()
            if turned
            else torch.full((4 + outer, 4 + inner), torch.nan)[2:-2, 2:-2].copy_(torch.randn(outer, inner))
            for turned, outer, inner in zip(across, (m, k), (k, n), strict=True)
        )
        place = torch.randn(m + 2, n + 5)
        before, out = place.clone(), place[1:-1, 2:-3]
        assert product(a, b, out, keep) == (own_products() and keep != 0.5)
        expected = before.double()
        expected[1:-1, 2:-3] = a.double() @ b.double() + keep * before[1:-1, 2:-3].double()
        torch.testing.assert_close(place.double(), expected, atol=2e-6 * k + 1e-6, rtol=1e-6)
        place[1:-1, 2:-3] = before[1:-1, 2:-3]
        assert place.equal(before)


@needs_blas
@pytest.mark.parametrize("own", [True, False])
def test_small_and_large_products_where_there_are_several_threads(own: bool) -> None:
    """Small products are computed by this thread, large ones by torch's; without the library's own, all are BLAS's."""
    torch.manual_seed(0)
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    available = own_products(own)
    try:
        for shape, small in (((20, 30, 40), True), ((300, 200, 100), False)):
            a, b = torch.randn(shape[:2]), torch.randn(shape[1:])
            out = torch.full((shape[0], shape[2]), torch.nan)
            assert product(a, b, out) == (available and own and small)
            torch.testing.assert_close(out.double(), a.double() @ b.double(), atol=1e-4, rtol=1e-6)
    finally:
        own_products(True)
        torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@needs_blas
def test_a_product_forgets_what_was_there_but_no_nan_of_its_own() -> None:
    a, b, out = torch.ones(9, 210), torch.ones(210, 40), torch.full((9, 40), torch.nan)
    a[4, 205] = torch.nan
    product(a, b, out)
    assert out.isnan().any(1).tolist() == [row == 4 for row in range(9)]


NARROW = """
import torch
from memgen.accelerate.program import blas
from tests.accelerate.native import done, product
assert blas()
torch.set_num_threads(1)
torch.manual_seed(0)
tiles = [(m, 3, n) for m in range(1, 8) for n in (8, 16, 24, 32)]
for m, k, n in [(1, 1, 1), (50, 401, 70), (7, 199, 33), (259, 9, 100), *tiles]:
    for turned in ((False, False), (False, True), (True, False)):
        shapes = [shape[::-1] if across else shape for across, shape in zip(turned, ((m, k), (k, n)))]
        a, b = (torch.randn(shape).t() if across else torch.randn(shape) for across, shape in zip(turned, shapes))
        out = torch.full((m, n), torch.nan)
        product(a, b, out)
        torch.testing.assert_close(out.double(), a.double() @ b.double(), atol=2e-6 * k + 1e-6, rtol=1e-6)
print(done() > 0)
"""


@needs_blas
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler's options are those for x86")
@pytest.mark.parametrize(("options", "own"), [("-mno-avx512f", True), ("-mno-avx512f -mno-fma", False)])
def test_products_on_processors_with_narrower_vectors_and_with_none_of_our_own(
    options: str, own: bool, tmp_path: Path
) -> None:
    environment = os.environ | {"MEMGEN_CACHE": str(tmp_path), "CC": f"{shlex.join(compiler())} {options}"}
    answer = subprocess.run([sys.executable, "-c", NARROW], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == [str(own)]
