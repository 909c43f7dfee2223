"""Calls of C operations with checked operands.

`bind` holds every operand against the table in operations.py, before the C library sees an address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from memgen.accelerate.library import library
from memgen.accelerate.operations import OPERANDS, OPERATIONS, Operation, Parameter

Value = Tensor | Sequence[Tensor | None] | int | float | None
"""What an operation takes."""
DTYPES = {"float": torch.float32, "strided": torch.float32, "int64": torch.int64, "double": torch.float64}
LARGEST = 2**53
"""A count is at most so large: its products stay whole numbers in C."""


class Operand(ctypes.Union):
    """A whole number, a float, or an address."""

    _fields_ = (("n", ctypes.c_int64), ("f", ctypes.c_double), ("p", ctypes.c_void_p))


class CallStructure(ctypes.Structure):
    """A call as program.c has it."""

    _fields_ = (("work", ctypes.c_void_p), ("operands", Operand * OPERANDS))


class Call:
    """An operation with its operands, ready to be made, as often as one likes.

    The operands are kept, because C knows them by address alone.
    """

    def __init__(self, operation: Operation, arguments: list[Any], kept: list[Any], sizes: dict[str, int]) -> None:
        operands = [Operand(**{member: value}) for member, value in zip(operation.members, arguments, strict=True)]
        self.operation, self.kept, self.sizes = operation, kept, sizes
        self.work = getattr(library(), f"call_{operation.name}")
        place = ctypes.cast(self.work, ctypes.c_void_p)
        self.structure = CallStructure(place, (Operand * OPERANDS)(*operands))

    def __call__(self) -> None:
        """Make it by itself, on the threads that torch has."""
        check(self.work(self.structure.operands, None), self.operation.name)


def check(error: int, what: str) -> None:
    """Raise what an error code of C stands for."""
    if error == 1:
        raise MemoryError(f"{what}: there is no memory left")
    if error:
        raise IndexError(f"{what}: an index or a size is out of range")


def bind(name: str, *values: Value) -> Call:
    """The call of an operation, or a TypeError or ValueError that names the operation and its operand."""
    operation = OPERATIONS[name]
    parameters = [*operation.parameters.values()]
    if len(values) != len(parameters):
        names = ", ".join(operation.parameters) or "nothing"
        raise TypeError(f"{name} takes {len(parameters)} operands ({names}), not {len(values)}")
    given = dict(zip(operation.parameters, values, strict=True))
    sizes: dict[str, int] = {}
    lists: dict[str, tuple[int, ...]] = {}
    for parameter in parameters:
        where = f"{name}, operand {parameter.name}"
        _check_kind(where, parameter, given[parameter.name])
        _read_sizes(where, parameter, given[parameter.name], sizes, lists)
    for parameter in parameters:
        _check_shape(f"{name}, operand {parameter.name}", parameter, given[parameter.name], sizes)
    arguments: list[Any] = []
    kept: list[Any] = [*values]
    for argument in operation.arguments:
        if argument in lists:
            kept.append((ctypes.c_long * len(lists[argument]))(*lists[argument]))
            arguments.append(ctypes.addressof(kept[-1]))
        elif argument in operation.parameters:
            arguments += _arguments(operation.parameters[argument], given[argument], kept)
        elif argument != "worker":
            arguments.append(sizes[argument])
    return Call(operation, arguments, kept, sizes)


def _check_kind(where: str, parameter: Parameter, value: Value) -> None:
    """Number or tensor, precision, device and layout."""
    if parameter.scalar:
        _check_number(where, parameter.scalar, value)
    elif value is None:
        if not parameter.optional:
            raise TypeError(f"{where}: None is no tensor")
    elif parameter.length:
        if not isinstance(value, (list, tuple)):
            raise TypeError(f"{where} must be a list of tensors, not {type(value).__name__}")
        for tensor in value:
            _check_tensor(where, parameter, tensor)
    else:
        _check_tensor(where, parameter, value)


def _check_number(where: str, kind: str, value: Value) -> None:
    expected = {"count": int, "flag": bool}.get(kind, float)
    if type(value) is not expected:
        raise TypeError(f"{where} must be of type {expected.__name__}, not {type(value).__name__}")
    if kind == "count" and not 0 <= value <= LARGEST:  # type: ignore[operator]
        raise ValueError(f"{where} must be a count, not {value}")


def _check_tensor(where: str, parameter: Parameter, value: object) -> None:
    if not isinstance(value, Tensor) or type(value) not in (Tensor, nn.Parameter):
        raise TypeError(f"{where} must be a tensor, not {type(value).__name__}")
    if value.dtype is not DTYPES[parameter.base]:
        raise TypeError(f"{where} must be of type {DTYPES[parameter.base]}, not {value.dtype}")
    if value.device.type != "cpu" or value.layout is not torch.strided:
        raise ValueError(f"{where} must be dense and on the CPU, not {value.layout} on {value.device}")
    if value.is_neg() or (parameter.base != "strided" and not value.is_contiguous()):
        raise ValueError(f"{where} must lie in memory row by row")
    if value.numel() and not value.data_ptr():
        raise ValueError(f"{where} has no memory")


def _read_sizes(
    where: str, parameter: Parameter, value: Value, sizes: dict[str, int], lists: dict[str, tuple[int, ...]]
) -> None:
    """The sizes that are named by themselves in a shape; a list gives its length, and the sizes of its tensors."""
    if parameter.scalar == "count":
        sizes[parameter.name] = value  # type: ignore[assignment]
    if parameter.scalar or value is None:
        return
    if not parameter.length:
        _read_shape(where, parameter, value, sizes)  # type: ignore[arg-type]
        return
    _same(where, sizes, parameter.length, len(value))  # type: ignore[arg-type]
    for size in parameter.shape:
        if size[0] == "*":
            found = tuple(tensor.numel() for tensor in value)  # type: ignore[union-attr]
            if lists.setdefault(size[1:], found) != found:
                raise ValueError(f"{where} must have tensors of sizes {lists[size[1:]]}, not {found}")


def _read_shape(where: str, parameter: Parameter, value: Tensor, sizes: dict[str, int]) -> None:
    if value.ndim != len(parameter.shape):
        expected = f"[{', '.join(parameter.shape)}]"
        raise ValueError(f"{where} must have the shape {expected}, not {tuple(value.shape)}")
    for size, found in zip(parameter.shape, value.shape, strict=True):
        if size.isidentifier():
            _same(where, sizes, size, found)


def _same(where: str, sizes: dict[str, int], size: str, found: int) -> None:
    expected = int(size) if size.isdigit() else sizes.setdefault(size, found)
    if expected != found:
        raise ValueError(f"{where}: {size} is {expected} elsewhere, and {found} here")


def _check_shape(where: str, parameter: Parameter, value: Value, sizes: dict[str, int]) -> None:
    if parameter.scalar or value is None or parameter.shape[:1] == ("*sizes",):
        return
    expected = tuple(evaluate(size, sizes) for size in parameter.shape)
    for tensor in value if parameter.length else [value]:  # type: ignore[union-attr]
        if tuple(tensor.shape) != expected:  # type: ignore[union-attr]
            raise ValueError(f"{where} must have the shape {expected}, not {tuple(tensor.shape)}")  # type: ignore[union-attr]


def evaluate(size: str, sizes: dict[str, int]) -> int:
    """
    >>> evaluate("2*units+1", {"units": 5})
    11
    """
    total = 0
    for term in size.split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor) if factor.isdigit() else sizes[factor]
        total += product
    return total


def _arguments(parameter: Parameter, value: Any, kept: list[Any]) -> list[Any]:
    """What C gets for an operand."""
    if parameter.scalar:
        return [value]
    if value is None:
        return [None]
    if parameter.length:
        kept.append((ctypes.c_void_p * len(value))(*(tensor.data_ptr() for tensor in value)))
        return [ctypes.addressof(kept[-1])]
    if parameter.base == "strided":
        across, step = layout(parameter.name, value)
        if parameter.out and across:
            raise ValueError(f"product, operand {parameter.name}: its rows must lie side by side")
        return [value.data_ptr(), step] if parameter.out else [value.data_ptr(), int(across), step]
    return [value.data_ptr()]


def layout(name: str, matrix: Tensor) -> tuple[bool, int]:
    """Whether a matrix is stored column by column, and how far two of its stored rows, or columns, are apart."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    if (right == 1 or columns <= 1) and (down >= columns or rows <= 1):
        return False, max(down, columns, 1)
    if down == 1 and (right >= rows or columns <= 1):
        return True, max(right, rows, 1)
    raise ValueError(f"product, operand {name}: neither its rows nor its columns lie side by side")
