"""Every wrong operand is an error of Python, before C is called."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import Tensor

from memgen.accelerate.calls import Value, bind
from memgen.accelerate.operations import OPERATIONS, Operation, Parameter
from memgen.accelerate.program import Plan, Program
from tests.accelerate.native import needs_library
from tests.accelerate.operands import operands


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
    strided, any_shape = parameter.base == "strided", parameter.any_shape
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
