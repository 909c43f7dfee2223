"""The product by oneDNN against torch's own, on any processor that has it."""

from __future__ import annotations

from unittest.mock import patch

import pytest
import torch
from torch import Tensor, nn

from benchmarks.products import models
from memgen import accelerate
from memgen.core import products
from memgen.core.layers import BatchNorm, Dense
from memgen.core.products import Linear, full_width, linear
from memgen.recipes.build import build

pytestmark = pytest.mark.skipif(
    not hasattr(torch.ops.mkldnn, "_linear_pointwise"), reason="torch has no oneDNN here, so there is one product"
)


@pytest.fixture(autouse=True)
def always(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the processor and however small the product."""
    monkeypatch.setattr(products, "_available", lambda: True)
    monkeypatch.setattr(products, "LARGE", 0)


def tensors(*shapes: tuple[int, ...]) -> list[Tensor]:
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(shape, generator=generator).requires_grad_() for shape in shapes]


@pytest.mark.parametrize("rows", [(7,), (3, 5), (2, 4, 6), (1,), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_values_and_gradients_are_those_of_float64(rows: tuple[int, ...], bias: bool) -> None:
    single = tensors((*rows, 9), (11, 9), *([(11,)] if bias else []))
    double = [value.detach().double().requires_grad_() for value in single]
    found, expected = linear(*single), nn.functional.linear(*double)
    assert type(found.grad_fn).__name__ == "_LinearBackward"
    torch.testing.assert_close(found.double(), expected, atol=1e-5, rtol=1e-5)
    for out in (found, expected):
        out.sin().sum().backward()
    for a, b in zip(single, double, strict=True):
        assert a.grad is not None
        torch.testing.assert_close(a.grad.double(), b.grad, atol=1e-5, rtol=1e-5)


def test_only_the_gradients_that_are_needed_are_made() -> None:
    h, W, b = tensors((4, 3), (5, 3), (5,))
    linear(h.detach(), W.detach(), b).sum().backward()
    assert (h.grad, W.grad) == (None, None)
    assert b.grad is not None
    with torch.no_grad():
        assert linear(h, W, b).grad_fn is None


def test_the_benchmark_compares_models_without_an_accelerated_step() -> None:
    for recipe in models().values():
        columns = None if recipe.data.name == "mnist" else 50
        assert accelerate.training_step(build(recipe, columns), recipe.objective, 100) is None


def test_rows_that_lie_elsewhere_are_the_same() -> None:
    h, W, b = tensors((6, 4), (5, 4), (5,))
    for other in (h.t().contiguous().t(), torch.nn.functional.pad(h, (1, 2))[:, 1:-2]):
        torch.testing.assert_close(linear(other, W, b), linear(h, W, b))


def test_what_it_does_not_serve_is_torchs() -> None:
    """Another precision, a transform, another device, autocast."""
    h, W, b = tensors((4, 3), (5, 3), (5,))
    found = linear(h.double(), W.double(), b.double())
    assert found.dtype is torch.float64
    slopes = torch.func.vmap(torch.func.grad(lambda row: linear(row, W, b).sum()))(h.detach())
    torch.testing.assert_close(slopes, W.sum(0).expand(4, 3))
    assert linear(*(value.to("meta") for value in (h, W, b))).shape == (4, 5)
    with torch.autocast("cpu"):
        assert linear(h, W, b).dtype is torch.bfloat16


def test_a_layer_has_the_names_of_torchs_and_uses_it() -> None:
    assert [*Linear(3, 4).state_dict()] == [*nn.Linear(3, 4).state_dict()]
    for layer in (Linear(3, 4), Dense(3, 4, BatchNorm)):
        with patch.object(products, "_product", wraps=products._product) as called:
            layer(torch.randn(5, 3, generator=torch.Generator().manual_seed(0)))
        assert called.call_count == 1


@pytest.mark.parametrize(
    ("about", "full"),
    [
        ("vendor_id : AuthenticAMD\ncpu family\t: 26\n", True),
        ("vendor_id : AuthenticAMD\ncpu family\t: 25\n", False),
        ("vendor_id : GenuineIntel\ncpu family\t: 26\n", False),
        ("", False),
    ],
)
def test_processors_that_compute_with_whole_vectors(about: str, full: bool) -> None:
    assert full_width(about) == full
