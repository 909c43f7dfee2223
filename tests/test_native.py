"""The C kernels against the plain formulas in float64: values and gradients; and what happens without a compiler."""

from __future__ import annotations

import math
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch
from torch import Tensor

from memgen.accelerate import functions as native
from memgen.accelerate import library
from memgen.accelerate.library import flushed_denormals
from memgen.accelerate.program import Program, Tape, blas
from memgen.core.memory import ProductKeys
from memgen.core.model import Batch
from memgen.core.objective import importance, local_reconstruction, loss, plain
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe

kernels = library.library()
needs_kernels = pytest.mark.skipif(kernels is None, reason="there is no C compiler here, so memgen runs plain torch")
SHAPES = [(7, 5), (3, 4, 16), (2, 33, 37), (50, 10, 130)]
"""Less than a vector of units, one, more; one sample, several; one thread, and enough rows for two."""


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Whichever tests came before: close to zero a ReLU may be open in one precision and shut in the other."""
    torch.manual_seed(0)


def compare(
    function: Callable[..., Tensor], arguments: list[Tensor], atol: float = 2e-5, rtol: float = 1e-5
) -> tuple[Tensor, ...]:
    """Values and all gradients in float32 (the kernels) and float64 (plain torch) agree."""
    single = [a.detach().clone().requires_grad_(a.is_floating_point()) for a in arguments]
    double = [a.detach().double().requires_grad_() if a.is_floating_point() else a.detach().clone() for a in arguments]
    assert all(library.serves(a) for a in single if a.is_floating_point())
    found, wanted = function(*single), function(*double)
    torch.testing.assert_close(found.double(), wanted, atol=atol, rtol=rtol)
    direction = torch.randn(found.shape, dtype=torch.float64)
    (found * direction.float()).sum().backward()
    (wanted * direction).sum().backward()
    for a, b in zip(single, double, strict=True):
        assert (a.grad is None) == (b.grad is None)
        if a.grad is not None and b.grad is not None:
            a_grad, b_grad = (g.to_dense() if g.is_sparse else g for g in (a.grad, b.grad))
            size = float(b_grad.abs().max()) + 1e-30
            torch.testing.assert_close(a_grad.double() / size, b_grad / size, atol=atol, rtol=0)
    return tuple(a.grad for a in single if a.grad is not None)


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On several threads a product that is not small is torch's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def product(a: Tensor, b: Tensor, out: Tensor, more: float = 0.0) -> bool:
    """Whether it was one of our own."""
    assert kernels is not None
    tape, before = Tape(), kernels.own_products_done()
    tape.product(a, b, out, more)
    assert Program([tape.calls], [], 0).run()
    return bool(kernels.own_products_done() - before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not blas(), reason="there is no C compiler here, or a torch without MKL")
@pytest.mark.parametrize("across", [(False, False), (False, True), (True, False), (True, True)])
@pytest.mark.parametrize("more", [0.0, 1.0, 0.5])
def test_products_in_every_layout_and_of_every_remainder(across: tuple[bool, bool], more: float) -> None:
    """One number, less and more than a tile in each direction, tiles of every height and width, several parts of the
    inner dimension, many rows; all three matrices are some columns of larger ones, of which nothing else is read or
    written."""
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
        assert product(a, b, out, more) == (bool(kernels.use_own_products(1)) and more != 0.5)
        wanted = before.double()
        wanted[1:-1, 2:-3] = a.double() @ b.double() + more * before[1:-1, 2:-3].double()
        torch.testing.assert_close(place.double(), wanted, atol=2e-6 * k + 1e-6, rtol=1e-6)
        place[1:-1, 2:-3] = before[1:-1, 2:-3]
        assert place.equal(before)


@pytest.mark.skipif(not blas(), reason="there is no C compiler here, or a torch without MKL")
@pytest.mark.parametrize("own", [True, False])
def test_small_and_large_products_where_there_are_several_threads(own: bool) -> None:
    """The small one is done by this thread alone, the large one by torch's; and all are where nobody wants our own."""
    assert kernels is not None
    threads = torch.get_num_threads()
    torch.set_num_threads(2)
    available = bool(kernels.use_own_products(own))
    try:
        for shape, small in (((20, 30, 40), True), ((300, 200, 100), False)):
            a, b = torch.randn(shape[:2]), torch.randn(shape[1:])
            out = torch.full((shape[0], shape[2]), torch.nan)
            assert product(a, b, out) == (available and own and small)
            torch.testing.assert_close(out.double(), a.double() @ b.double(), atol=1e-4, rtol=1e-6)
    finally:
        kernels.use_own_products(1)
        torch.set_num_threads(threads)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.skipif(not blas(), reason="there is no C compiler here, or a torch without MKL")
def test_a_product_forgets_what_was_there_but_no_nan_of_its_own() -> None:
    a, b, out = torch.randn(9, 210), torch.randn(210, 40), torch.full((9, 40), torch.nan)
    a[4, 205] = torch.nan
    product(a, b, out)
    assert out.isnan().any(1).tolist() == [row == 4 for row in range(9)]


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
def test_batch_norm_and_relu(shape: tuple[int, ...]) -> None:
    h = 3 * torch.randn(shape) + 100 * torch.randn(shape[-1])  # means far from zero, where sums of squares lose digits
    compare(native.batch_norm_relu, [h, torch.randn(shape[-1]), torch.randn(shape[-1])], atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
def test_mlp(shape: tuple[int, ...]) -> None:
    def mlp(h_g: Tensor, h_m: Tensor, *coefficients: Tensor) -> Tensor:
        return native.mlp(h_g, h_m, coefficients)

    compare(mlp, [torch.randn(shape), 2 * torch.randn(shape), *torch.randn(9, shape[-1])])


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
def test_standardised_mean(shape: tuple[int, ...]) -> None:
    compare(native.standardised_mean, [5 * torch.randn(shape) + 20], atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("shape", [(1, 7, 5), *SHAPES[1:]])
def test_reparameterise(shape: tuple[int, ...]) -> None:
    noise = torch.randn(shape)

    def both(mean: Tensor, log_variance: Tensor) -> Tensor:
        z, log_q = native.reparameterise(mean, log_variance, noise.to(mean))
        return torch.cat([z.flatten(), log_q.flatten()])

    compare(both, [torch.randn(shape[1:]), 2 * torch.randn(shape[1:])])


@needs_kernels
@pytest.mark.parametrize("shape", SHAPES)
def test_bernoulli(shape: tuple[int, ...]) -> None:
    x = (torch.rand(shape[-2:]) < 0.3).float()
    products = 10 * torch.randn(shape)
    products.view(-1)[:4] = torch.tensor([-200.0, 200.0, 0.0, 88.5])  # where a careless exponential overflows

    def likelihood(products: Tensor, bias: Tensor) -> Tensor:
        return native.bernoulli_log_prob(products, bias, x.to(products))

    compare(likelihood, [products, torch.randn(shape[-1])], atol=1e-4, rtol=1e-6)


@pytest.mark.parametrize("columns", [7, 784, 1600, 5003])
def test_bernoulli_of_coins_is_a_power_of_two(columns: int) -> None:
    """Logits of zero: 2^-columns for any x, however far that is below the least float."""
    x, none = (torch.rand(3, columns) < 0.5).float(), torch.zeros(columns)
    found = native.bernoulli_log_prob(torch.zeros(2, 3, columns), none, x)
    torch.testing.assert_close(found, torch.full((2, 3), -columns * math.log(2)), atol=0, rtol=1e-6)


@needs_kernels
@pytest.mark.parametrize(("rows", "side", "top"), [((6,), 5, 1), ((3, 40), 70, 9), ((2, 5), 33, 32), ((4,), 3, 9)])
def test_the_largest_sums_are_those_of_all_sums(rows: tuple[int, ...], side: int, top: int) -> None:
    """Numbers, order and places by brute force; values and gradients as in float64. Sides of less than a vector, of
    some, and with a rest; one thread, and enough rows for two."""
    keys = ProductKeys(4, side**2, top, squash=torch.sigmoid)
    first, second = torch.randn(*rows, side), torch.randn(*rows, side)
    sums, index = native.largest_sums(first, second, keys.pairs, top)
    every = (first.unsqueeze(-1) + second.unsqueeze(-2)).flatten(-2)
    assert sums.equal(every.topk(top).values)
    assert sums.equal(every.gather(-1, index))
    assert all(len(set(own)) == top for own in index.flatten(0, -2).tolist())
    compare(lambda a, b: native.largest_sums(a, b, keys.pairs, top)[0], [first, second])


@needs_kernels
def test_the_largest_sums_of_numbers_that_are_none_are_somewhere() -> None:
    """A training that has failed must be able to say so: no slot outside of the memory is read."""
    keys = ProductKeys(4, 100, 6, squash=torch.sigmoid)
    half = torch.randn(3, 10)
    half[0], half[1, ::2] = torch.nan, torch.inf
    sums, index = native.largest_sums(half, half, keys.pairs, 6)
    assert bool(((index >= 0) & (index < 100)).all())
    assert not bool(sums[:2].isfinite().any())


@pytest.mark.parametrize("rows", [(6,), (3, 40)])
def test_read_rows_equals_the_dense_product_with_a_sparse_gradient(rows: tuple[int, ...]) -> None:
    """M read by index equals weights scattered over all slots times M; unread slots have no gradient at all."""
    M = torch.randn(50, 17)
    index = torch.stack([torch.randperm(12)[:4] for _ in range(torch.Size(rows).numel())]).view(*rows, 4)
    weights = torch.rand(*rows, 4)

    def by_index(M: Tensor, weights: Tensor) -> Tensor:
        return native.read_rows(M, index, weights)

    def dense(M: Tensor, weights: Tensor) -> Tensor:
        return weights.new_zeros(*rows, 50).scatter_add(-1, index, weights) @ M

    gradients = []
    for function in (by_index, dense):
        arguments = [M.clone().requires_grad_(), weights.clone().requires_grad_()]
        out = function(*arguments)
        out.sin().sum().backward()
        gradients.append([out.detach(), *(a.grad for a in arguments)])
    sparse = gradients[0][1]
    assert sparse is not None
    assert sparse.is_sparse
    assert sparse._indices()[0].tolist() == index.unique().tolist()
    gradients[0][1] = sparse.to_dense()
    for a, b in zip(*gradients, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)
    if kernels is not None:
        compare(by_index, [M, weights])


@pytest.mark.parametrize("slots", [1, 3, 2048, 2049, 2**22 + 5])
def test_a_sparse_gradient_has_each_row_once_and_in_order(slots: int) -> None:
    """However many digits the number of a slot has: the kernel sorts some digits at a time."""
    generator = torch.Generator().manual_seed(slots)
    index = torch.randint(slots, (70, 5), generator=generator)
    index[:20] = index[20:40]  # read more than once
    index[-1, -1] = slots - 1
    weights, to_out = torch.randn(70, 5, generator=generator), torch.randn(70, 2, generator=generator)
    found = native.gradient_of_rows(torch.empty(slots, 2), index, weights, to_out)
    assert found.is_coalesced()
    assert found.indices()[0].equal(index.unique())
    shares = weights.double().unsqueeze(-1) * to_out.double().unsqueeze(-2)
    every = torch.zeros(slots, 2, dtype=torch.float64).index_add_(0, index.flatten(), shares.flatten(0, 1))
    torch.testing.assert_close(found.values().double(), every[index.unique()], rtol=1e-5, atol=1e-5)


@needs_kernels
@pytest.mark.parametrize("K", [1, 6])
def test_a_whole_step_has_the_bound_and_gradients_of_plain_torch(K: int) -> None:
    """In float64, and so without a kernel, the same model has the same bound and gradients, to 1e-5 of each."""
    recipe = Recipe.named("digits-mem-vae").override([f"objective.samples={K}"])
    x = (torch.rand(20, 64) < 0.4).float()
    results = []
    for dtype in (torch.float32, torch.float64):
        model = build(recipe).to(dtype).train()
        with torch.no_grad():  # the mlp composition starts as the identity
            for parameter in model.parameters():
                shake = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
                parameter.add_(0.05 * shake.to(dtype))
        noise = tuple(level.to(dtype) for level in model.noise(K, 20, torch.Generator().manual_seed(1)))
        with flushed_denormals():
            estimate = plain(model, Batch(x.to(dtype)), noise, importance)
            regulariser = local_reconstruction(estimate.inference, recipe.objective.local_reconstruction)
            loss(estimate.surrogate, regulariser).backward()
        gradients = torch.cat([p.grad.double().flatten() for p in model.parameters() if p.grad is not None])
        results.append((estimate.bound.double(), regulariser.detach().double(), gradients))
    for a, b in zip(*results, strict=True):
        assert float((a - b).norm() / b.norm()) < 1e-5


@needs_kernels
def test_denormal_numbers_are_flushed_on_every_thread_and_only_inside() -> None:
    assert kernels is not None
    tiny = torch.full((100_000,), 1e-30)
    with flushed_denormals():
        assert kernels.flushing() == torch.get_num_threads()
        assert (tiny * 1e-10).count_nonzero() == 0
    assert kernels.flushing() == 0
    assert (tiny * 1e-10).count_nonzero() == len(tiny)


@needs_kernels
def test_flushing_changes_a_step_by_nothing_that_matters() -> None:
    """Weights of e^-100 make denormal gradients; without them the gradient is the same to 1e-5."""
    recipe = Recipe.named("digits-mem-vae").override(["objective.samples=8"])
    model = build(recipe).train()
    with torch.no_grad():
        model.likelihood.logits.weight.mul_(30)
    batch, noise = Batch((torch.rand(20, 64) < 0.4).float()), model.noise(8, 20, torch.Generator().manual_seed(1))
    found = []
    for flush in (True, False):
        model.zero_grad()
        if flush:
            with flushed_denormals():
                plain(model, batch, noise, importance).surrogate.sum().backward()
        else:
            plain(model, batch, noise, importance).surrogate.sum().backward()
        found.append(torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None]).double())
    assert float((found[0] - found[1]).norm() / found[1].norm()) < 1e-5


def test_without_a_compiler_and_when_it_fails_there_is_plain_torch(tmp_path: Path) -> None:
    """Also: nothing half-made is left in the cache."""
    code = "from memgen.accelerate.library import library; print(library() is None)"
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    for settings in ({"MEMGEN_NATIVE": "0"}, {"CC": "no-such-compiler"}, {"CC": str(broken)}):
        environment = os.environ | {"MEMGEN_CACHE": str(tmp_path / "cache")} | settings
        answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert answer.stdout.strip() == "True", answer.stderr
    assert not any(tmp_path.glob("cache/native/*"))


NARROW = """
import torch
from memgen.accelerate import library
from memgen.accelerate.program import Program, Tape, blas
assert library.library() is not None and blas()
torch.set_num_threads(1)
tiles = [(m, 3, n) for m in range(1, 8) for n in (8, 16, 24, 32)]
for m, k, n in [(1, 1, 1), (50, 401, 70), (7, 199, 33), (259, 9, 100), *tiles]:
    for turned in ((False, False), (False, True), (True, False)):
        shapes = [shape[::-1] if across else shape for across, shape in zip(turned, ((m, k), (k, n)))]
        a, b = (torch.randn(shape).t() if across else torch.randn(shape) for across, shape in zip(turned, shapes))
        tape, out = Tape(), torch.full((m, n), torch.nan)
        tape.product(a, b, out)
        assert Program([tape.calls], [], 0).run()
        torch.testing.assert_close(out.double(), a.double() @ b.double(), atol=2e-6 * k + 1e-6, rtol=1e-6)
print(library.library().own_products_done() > 0)
"""


@needs_kernels
@pytest.mark.skipif(not blas(), reason="there is a torch without MKL here")
@pytest.mark.skipif(platform.machine() != "x86_64", reason="the compiler's options are those for x86")
@pytest.mark.parametrize(("options", "own"), [("-mno-avx512f", True), ("-mno-avx512f -mno-fma", False)])
def test_products_on_processors_with_narrower_vectors_and_with_none_of_our_own(
    options: str, own: bool, tmp_path: Path
) -> None:
    environment = os.environ | {"MEMGEN_CACHE": str(tmp_path), "CC": f"{os.environ.get('CC') or 'cc'} {options}"}
    answer = subprocess.run([sys.executable, "-c", NARROW], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.split() == [str(own)]


def test_a_machine_with_a_compiler_has_kernels() -> None:
    """Else all that is above would be skipped, and nobody would know that kernels.c no longer compiles."""
    if sys.platform == "linux" and shutil.which("cc") and os.environ.get("MEMGEN_NATIVE") != "0":
        assert kernels is not None


MANY_THREADS = """
import torch
from memgen.accelerate import functions as native
torch.set_num_threads(64)
for rows in (1, 3, 40, 1000):
    h = torch.randn(rows, 700, requires_grad=True)
    vectors = [torch.rand(700, requires_grad=True) for _ in range(11)]
    for function in (lambda h, v: native.batch_norm_relu(h, v[0], v[1]), lambda h, v: native.mlp(h, 2 * h, v[2:])):
        found = function(h, vectors)
        wanted = function(h.double(), [v.double() for v in vectors])
        torch.testing.assert_close(found.double(), wanted, atol=1e-4, rtol=1e-4)
        g = torch.randn(found.shape)
        for a, b in zip(torch.autograd.grad(found, (h, *vectors), g, allow_unused=True),
                        torch.autograd.grad(wanted, (h, *vectors), g.double(), allow_unused=True)):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, atol=2e-3, rtol=1e-3)
"""


@needs_kernels
@pytest.mark.parametrize("settings", [{}, {"OMP_THREAD_LIMIT": "1"}, {"OMP_DYNAMIC": "true"}])
def test_more_threads_than_rows_and_fewer_than_asked_for(settings: dict[str, str]) -> None:
    answer = subprocess.run(
        [sys.executable, "-c", MANY_THREADS], env=os.environ | settings, capture_output=True, text=True
    )
    assert answer.returncode == 0, answer.stderr


@needs_kernels
def test_nan_stays_nan() -> None:
    h = torch.randn(40, 20)
    h[3, 4] = torch.nan
    vectors = torch.rand(11, 20)
    assert native.batch_norm_relu(h, vectors[0], vectors[1])[:, 4].isnan().all()
    assert native.mlp(h, h, list(vectors[:9])).isnan().nonzero().tolist() == [[3, 4]]
    assert native.linear_relu(h, torch.randn(5, 20), torch.zeros(5))[3].isnan().all()
    assert native.standardised_mean(h)[:, 4].isnan().all()
    assert native.bernoulli_log_prob(h, vectors[0], torch.ones(40, 20)).isnan().nonzero().tolist() == [[3]]


def test_what_a_kernel_cannot_take_goes_the_plain_way() -> None:
    """A gradient of the data, a transform of torch: as without kernels."""
    h_g, coefficients = torch.randn(6, 5), list(torch.randn(9, 5))
    x = torch.rand(6, 5, requires_grad=True)
    native.bernoulli_log_prob(h_g, torch.zeros(5), x).sum().backward()
    torch.testing.assert_close(x.grad, h_g)
    slopes = torch.func.vmap(torch.func.grad(lambda h: native.mlp(h, h, coefficients).sum()))(h_g)
    assert slopes.shape == h_g.shape


@pytest.mark.parametrize("index", [[[0, 50]], [[-1, 2]]])
def test_a_slot_that_does_not_exist_is_refused(index: list[list[int]]) -> None:
    with pytest.raises(IndexError, match="49"):
        native.read_rows(torch.zeros(50, 3), torch.tensor(index), torch.ones(1, 2))


@needs_kernels
def test_a_damaged_library_in_the_cache_is_made_again(tmp_path: Path) -> None:
    code = "from memgen.accelerate.library import library; print(library() is None)"
    environment = os.environ | {"MEMGEN_CACHE": str(tmp_path)}
    for _ in range(2):
        answer = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True)
        assert answer.stdout.strip() == "False", answer.stderr
        (made,) = tmp_path.glob("native/*.so")
        made.write_bytes(made.read_bytes()[:1000])
