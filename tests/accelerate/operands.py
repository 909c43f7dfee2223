"""Right operands for every operation in C, of any sizes."""

from __future__ import annotations

import torch
from torch import Tensor

from memgen.accelerate.calls import DTYPES, Value, bind, evaluate
from memgen.accelerate.operations import OPERATIONS, Operation, Parameter
from memgen.accelerate.program import blas

SMALL = {"rows": 3, "units": 5, "slots": 9, "side": 3, "top": 2, "pairs": 3, "columns": 7, "samples": 2, "width": 4}
"""Sizes by the names that the table has for them; all others are OTHER."""
OTHER = 2
NARROW = {**SMALL, "units": 1, "rows": 2, "columns": 1, "samples": 1, "width": 1}
WIDE = {**SMALL, "units": 37, "rows": 40, "columns": 130, "samples": 3, "width": 33, "m": 17, "k": 203, "n": 45}


def sizes_of(operation: Operation, sizes: dict[str, int]) -> dict[str, int]:
    names = {*operation.arguments, *(p.length for p in operation.parameters.values() if p.length.isidentifier())}
    return {name: sizes.get(name, OTHER) for name in names}


def operands(operation: Operation, sizes: dict[str, int] = SMALL) -> list[Value]:
    """Random numbers from 0 to 1, and an index of zeros."""
    generator = torch.Generator().manual_seed(0)
    own = sizes_of(operation, sizes)
    return [_value(parameter, own, generator) for parameter in operation.parameters.values()]


def _value(parameter: Parameter, sizes: dict[str, int], generator: torch.Generator) -> Value:
    if parameter.scalar:
        count = sizes.get(parameter.name, OTHER)
        return {"count": count, "flag": True, "number": 1.0, "double": 0.5}[parameter.scalar]
    if parameter.length:
        length = int(parameter.length) if parameter.length.isdigit() else sizes[parameter.length]
        shape = (4, 5) if parameter.shape == ("*sizes",) else _shape(parameter, sizes)
        return [_tensor(parameter, shape, generator) for _ in range(length)]
    return _tensor(parameter, _shape(parameter, sizes), generator)


def _shape(parameter: Parameter, sizes: dict[str, int]) -> tuple[int, ...]:
    return tuple(evaluate(size, sizes) for size in parameter.shape)


def _tensor(parameter: Parameter, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    dtype = DTYPES[parameter.base]
    if dtype is torch.int64:
        return torch.zeros(shape, dtype=dtype)
    return torch.rand(shape, generator=generator, dtype=dtype)


def run_all() -> int:
    """Make every call with several sizes; how many there were."""
    torch.set_num_threads(2)
    blas()
    done = 0
    for operation in OPERATIONS.values():
        for sizes in (SMALL, NARROW, WIDE):
            bind(operation.name, *operands(operation, sizes))()
            done += 1
    return done


def many_threads(threads: int) -> None:
    """Hold what every operation writes on so many threads to what it writes on one."""
    blas()
    sizes = {**WIDE, "rows": 300, "units": 70}
    for operation in OPERATIONS.values():
        if operation.name in ("apart", "flush_denormals", "flushing"):
            continue
        found = []
        for count in (1, threads):
            torch.set_num_threads(count)
            values = operands(operation, sizes)
            bind(operation.name, *values)()
            found.append([part for value in values for part in (value if isinstance(value, list) else [value])])
        for one, many in zip(*found, strict=True):
            if isinstance(one, Tensor) and operation.name != "own_products_done":
                torch.testing.assert_close(one, many, rtol=1e-4, atol=1e-4)
