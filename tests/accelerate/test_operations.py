"""Single operations in C against their definitions, with extreme values and many threads."""

from __future__ import annotations

import math
import os
import subprocess
import sys

import pytest
import torch

from memgen.accelerate.calls import bind
from memgen.accelerate.rows import gradient_of_rows
from memgen.core.memory import pairs_of_ranks
from tests.accelerate.native import needs_library


@needs_library
@pytest.mark.parametrize("slots", [1, 3, 2048, 2049, 2**22 + 5])
def test_a_sparse_gradient_has_each_row_once_and_in_order(slots: int) -> None:
    """However many digits the number of a slot has: the kernel sorts some digits at a time."""
    generator = torch.Generator().manual_seed(slots)
    index = torch.randint(slots, (70, 5), generator=generator)
    index[:20] = index[20:40]  # read more than once
    index[-1, -1] = slots - 1
    weights, to_out = torch.randn(70, 5, generator=generator), torch.randn(70, 2, generator=generator)
    found = gradient_of_rows(torch.empty(slots, 2), index, weights, to_out)
    assert found.is_coalesced()
    assert found.indices()[0].equal(index.unique())
    parts = weights.double().unsqueeze(-1) * to_out.double().unsqueeze(-2)
    every = torch.zeros(slots, 2, dtype=torch.float64).index_add_(0, index.flatten(), parts.flatten(0, 1))
    torch.testing.assert_close(found.values().double(), every[index.unique()], rtol=1e-5, atol=1e-5)


@needs_library
@pytest.mark.parametrize("columns", [7, 784, 1600, 5003])
def test_bernoulli_of_coins_is_a_power_of_two(columns: int) -> None:
    """Logits of zero: 2^-columns for any x, however far that is below the least float."""
    x, out = (torch.rand(3, columns, generator=torch.Generator().manual_seed(0)) < 0.5).float(), torch.zeros(6)
    bind("bernoulli", torch.zeros(6, columns), torch.zeros(columns), x, 2, out)()
    torch.testing.assert_close(out, torch.full((6,), -columns * math.log(2)), atol=0, rtol=1e-6)


@needs_library
def test_logits_where_a_careless_exponential_overflows() -> None:
    products, x, out = torch.tensor([[-200.0, 200.0, 0.0, 88.5]]), torch.tensor([[1.0, 0.0, 1.0, 0.0]]), torch.zeros(1)
    bind("bernoulli", products, torch.zeros(4), x, 1, out)()
    expected = (x * products - torch.nn.functional.softplus(products)).sum(-1)
    torch.testing.assert_close(out, expected)


@needs_library
def test_the_largest_sums_of_numbers_that_are_none_are_somewhere() -> None:
    """A training that has failed must be able to say so: no slot outside of the memory is read."""
    half = torch.ones(3, 10)
    half[0], half[1, ::2] = torch.nan, torch.inf
    sums, index = torch.zeros(3, 6), torch.zeros(3, 6, dtype=torch.int64)
    bind("largest_sums", half, half, pairs_of_ranks(6, 10), sums, index)()
    assert bool(((index >= 0) & (index < 100)).all())
    assert not bool(sums[:2].isfinite().any())


@needs_library
@pytest.mark.parametrize("settings", [{}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}])
def test_more_threads_than_rows_and_fewer_than_asked_for(settings: dict[str, str]) -> None:
    """Every operation gives what it gives on one thread, but for rounding."""
    answer = subprocess.run(
        [sys.executable, "-c", "from tests.accelerate.operands import many_threads; many_threads(64)"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr
