"""The calls into C: products against float64, every wrong operand refused, a sanitizer for all operations."""

from __future__ import annotations

import math
import os
import platform
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from memgen.accelerate.calls import Value, bind
from memgen.accelerate.library import FLAGS, library, sources
from memgen.accelerate.operations import OPERATIONS, Operation, Parameter
from memgen.accelerate.program import Plan, Program, blas
from memgen.accelerate.rows import gradient_of_rows
from memgen.core.memory import pairs_of_ranks
from tests.operands import operands

needs_library = pytest.mark.skipif(library() is None, reason="there is no C compiler here, so memgen runs plain torch")
needs_blas = pytest.mark.skipif(not blas(), reason="there is no C compiler here, or a torch without MKL")


def compiler() -> list[str]:
    return shlex.split(os.environ.get("CC") or "cc")


@pytest.fixture
def one_thread() -> Iterator[None]:
    """On several threads a product that is not small is torch's."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


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
    """The small one is done by this thread alone, the large one by torch's; and all are where nobody wants our own."""
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
from tests.test_operations import blas, done, product
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
        [sys.executable, "-c", "from tests.operands import many_threads; many_threads(64)"],
        env=os.environ | settings,
        capture_output=True,
        text=True,
    )
    assert answer.returncode == 0, answer.stderr


def wrong_values(operation: Operation) -> Iterator[tuple[str, list[Value]]]:
    """Every kind of wrong operand in every place, beside right ones."""
    right = operands(operation)
    yield "too few", right[:-1]
    yield "too many", [*right, 1]
    for i, parameter in enumerate(operation.parameters.values()):
        for what, value in wrong_values_of(right[i], parameter):
            if not (what in ("one entry more", "too short") and free(operation, parameter)):
                yield f"{parameter.name}: {what}", [*right[:i], value, *right[i + 1 :]]


def free(operation: Operation, parameter: Parameter) -> bool:
    """Whether a tensor may be as long, or a list, as it likes, because no other has that size."""
    every = [size for other in operation.parameters.values() for size in (*other.shape, other.length)]
    size = parameter.length or parameter.shape[0]
    return size.isidentifier() and sum(size in re.findall(r"\w+", other) for other in every) == 1


def wrong_values_of(value: Value, parameter: Parameter) -> Iterator[tuple[str, Any]]:
    yield "a text", "text"
    if not parameter.optional:
        yield "None", None
    if isinstance(value, list):
        yield "no list", value[0]
        yield "too short", value[:-1]
        for what, wrong in wrong_tensors(value[0], parameter):
            yield f"a tensor, {what}", [wrong, *value[1:]]
    elif isinstance(value, Tensor):
        yield "a number", 1
        yield from wrong_tensors(value, parameter)
    else:
        yield "a tensor", torch.zeros(1)
        yield "another type", {bool: 1, int: 1.0, float: 1}[type(value)]
        if type(value) is int:
            yield "a negative count", -1
            yield "a huge count", 2**60


def wrong_tensors(value: Tensor, parameter: Parameter) -> Iterator[tuple[str, Tensor]]:
    yield "no memory", value.to("meta")
    yield "sparse", value.to_sparse()
    yield "half precision", value.to(torch.float16)
    yield "another type", value.to(torch.int32 if value.is_floating_point() else torch.float32)
    yield "negated but for its bit", torch._neg_view(value)
    strided, any_shape = parameter.base == "strided", parameter.shape[:1] == ("*sizes",)
    if value.ndim > 1 and not strided:
        yield "column by column", value.transpose(0, 1).contiguous().transpose(0, 1)
    if value.ndim and not strided:
        yield "every other row", torch.cat([value, value])[::2]
    if any_shape:
        return
    yield "one dimension more", value.unsqueeze(0)
    if value.ndim:
        yield "one entry more", torch.cat([value, value[:1]])
        yield "one dimension less", value[0]


@needs_library
@pytest.mark.parametrize("name", OPERATIONS)
def test_every_wrong_operand_is_an_error_of_python(name: str) -> None:
    """That names the operation, before C is called."""
    bind(name, *operands(OPERATIONS[name]))
    if OPERATIONS[name].parameters:
        for _, values in wrong_values(OPERATIONS[name]):
            with pytest.raises((TypeError, ValueError), match=name):
                bind(name, *values)


@needs_library
def test_lists_of_tensors_have_the_same_sizes() -> None:
    right = operands(OPERATIONS["adam"])
    for i in range(1, 5):
        with pytest.raises(ValueError, match="adam"):
            bind("adam", *right[:i], [torch.zeros(3), torch.zeros(20)], *right[i + 1 :])


@needs_library
def test_matrices_of_a_product_lie_row_by_row_or_column_by_column() -> None:
    a, b, out = torch.zeros(4, 6), torch.zeros(6, 5), torch.zeros(4, 5)
    bind("product", a, b, out, 0.0)
    for wrong in (
        (torch.zeros(4, 12)[:, ::2], b, out),
        (torch.zeros(1, 6).expand(4, 6), b, out),
        (a, torch.zeros(6, 1).expand(6, 5), out),
        (a, b, torch.zeros(5, 4).t()),
        (a, b, torch.zeros(4, 10)[:, ::2]),
    ):
        with pytest.raises(ValueError, match="product"):
            bind("product", *wrong, 0.0)


@needs_library
@pytest.mark.parametrize(
    "name", [name for name in OPERATIONS if any(p.base == "int64" for p in OPERATIONS[name].parameters.values())]
)
def test_an_index_that_is_out_of_range_is_an_error(name: str) -> None:
    """C looks at the numbers of an index, which may come from anywhere."""
    operation, looked_at = OPERATIONS[name], 0
    for i, parameter in enumerate(operation.parameters.values()):
        if parameter.base != "int64" or parameter.out:
            continue
        for wrong in (-1, 10**6):
            values = operands(operation)
            index = values[i]
            assert isinstance(index, Tensor)
            index.view(-1)[-1] = wrong
            with pytest.raises(IndexError, match=name):
                bind(name, *values)()
            looked_at += 1
    assert looked_at or name in ("flushing", "use_own_products", "own_products_done")


@needs_library
def test_workers_that_would_wait_for_each_other_for_ever_are_refused() -> None:
    plans = Plan(), Plan()
    plans[0].add("barrier")
    with pytest.raises(ValueError, match="wait"):
        Program([*plans], [])
    plans[1].add("barrier")
    with pytest.raises(ValueError, match="copy"):
        Program([*plans], [[torch.zeros(3)]])
    with pytest.raises(ValueError, match="add"):
        Program([*plans], [[torch.zeros(3), torch.zeros(4)]])


def compile_with(options: list[str], folder: Path) -> str:
    """What the compiler says."""
    for name, text in sources().items():
        (folder / name).write_bytes(text)
    command = [*compiler(), *FLAGS, *options, "-shared", str(folder / "program.c"), "-o", str(folder / "k.so"), "-lm"]
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=300).stderr


@needs_library
@pytest.mark.parametrize("options", [[], ["-mno-avx512f"], ["-mno-avx512f", "-mno-fma"]])
def test_the_compiler_has_nothing_to_say(options: list[str], tmp_path: Path) -> None:
    if options and platform.machine() != "x86_64":
        pytest.skip("the options are those for x86")
    assert compile_with(["-Wall", "-Wextra", *options], tmp_path) == ""


WITHOUT_MEMORY = """
from memgen.accelerate.calls import bind
from memgen.accelerate.operations import OPERATIONS
from memgen.accelerate.program import Plan, Program, blas
from tests.operands import operands
blas()
refused = []
for name, operation in OPERATIONS.items():
    try:
        bind(name, *operands(operation))()
    except MemoryError:
        refused.append(name)
plan = Plan()
plan.add("gather", *operands(OPERATIONS["gather"]))
try:
    Program([plan], []).run()
except MemoryError:
    refused.append("program")
print(*refused)
"""


@needs_library
def test_where_there_is_no_memory_there_is_a_memory_error(tmp_path: Path) -> None:
    environment = os.environ | {"MEMGEN_CACHE": str(tmp_path), "CC": f"{shlex.join(compiler())} -DNO_MEMORY_AT_ALL"}
    answer = subprocess.run([sys.executable, "-c", WITHOUT_MEMORY], env=environment, capture_output=True, text=True)
    assert answer.returncode == 0, answer.stderr
    asking = ["gather", "normalise_sums", "mlp_backward", "keys_backward", "sort_slots", "bernoulli_backward", "weigh"]
    assert set(answer.stdout.split()) == {*asking, "squares", "program"}


def sanitizer() -> str | None:
    """The compiler's address sanitizer, which must be in a process before all else; None where there is none."""
    if library() is None or platform.system() != "Linux":
        return None
    found = subprocess.run([*compiler(), "-print-file-name=libasan.so"], capture_output=True, text=True).stdout.strip()
    return found if Path(found).is_absolute() else None


@pytest.mark.skipif(sanitizer() is None, reason="the C compiler has no libasan.so, so nothing watches its memory")
def test_all_operations_run_under_the_address_and_undefined_behaviour_sanitizers(tmp_path: Path) -> None:
    """Each with several sizes, and whole steps, in a process that ends at the first byte beside a matrix."""
    options = "-g -fsanitize=address,undefined -fno-sanitize-recover=all"
    environment = os.environ | {
        "MEMGEN_CACHE": str(tmp_path),
        "CC": f"{shlex.join(compiler())} {options}",
        "LD_PRELOAD": str(sanitizer()),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    answer = subprocess.run([sys.executable, "-c", STEP], env=environment, capture_output=True, text=True, timeout=600)
    assert answer.returncode == 0, answer.stderr[-3000:]
    assert int(answer.stdout) >= len(OPERATIONS)


STEP = """
import torch
from tests.operands import run_all
from tests.test_accelerate import CASES, case, rows, PlannedStep
print(run_all())
for name in ("with memory", "several samples", "product keys, dreg", "Gaussian rows with a floor"):
    model, recipe = case(CASES[name])
    step, K = PlannedStep(model, recipe.objective, recipe.objective.samples, 11), recipe.objective.samples
    for workers in (1, 2):
        step.compile(workers)
        assert step(rows(model), model.noise(K, 11, torch.Generator().manual_seed(2))).isfinite().all()
"""


BEYOND = """
import ctypes, torch
from memgen.accelerate.calls import bind
call = bind("sum_rows", torch.zeros(8, 64), False, torch.zeros(64))
call.structure.operands[1].n = 9  # a row more than there is
call()
"""


@pytest.mark.skipif(sanitizer() is None, reason="the C compiler has no libasan.so, so nothing watches its memory")
def test_the_sanitizer_sees_a_read_beyond_a_matrix(tmp_path: Path) -> None:
    """Else the test before this one would prove nothing."""
    environment = os.environ | {
        "MEMGEN_CACHE": str(tmp_path),
        "CC": f"{shlex.join(compiler())} -fsanitize=address,undefined",
        "LD_PRELOAD": str(sanitizer()),
        "ASAN_OPTIONS": "detect_leaks=0",
    }
    answer = subprocess.run([sys.executable, "-c", BEYOND], env=environment, capture_output=True, text=True)
    assert answer.returncode != 0
    assert "heap-buffer-overflow" in answer.stderr
