"""Calls of C operations with checked operands.

`bind` checks every operand against the table in operations.py before the C library gets its address.
"""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any, cast

import torch
from torch import Tensor, nn

from memgen.accelerate.library import library
from memgen.accelerate.operations import OPERANDS, OPERATIONS, Operation, Parameter

Value = Tensor | Sequence[Tensor | None] | int | float | None
"""An operand of an operation."""
DTYPES = {"float": torch.float32, "strided": torch.float32, "int64": torch.int64, "double": torch.float64}
LARGEST = 2**53
"""The largest count: products of counts must stay whole numbers in C."""


class Operand(ctypes.Union):
    """A whole number, a float or an address."""

    _fields_ = (("n", ctypes.c_int64), ("f", ctypes.c_double), ("p", ctypes.c_void_p))


class CallStructure(ctypes.Structure):
    """The structure of a call in program.c."""

    _fields_ = (("work", ctypes.c_void_p), ("operands", Operand * OPERANDS))


class Call:
    """An operation with its operands, which can be executed any number of times.

    The operands are stored as `alive`, because C has only their addresses.
    """

    def __init__(self, operation: Operation, arguments: list[Any], alive: list[Any], sizes: dict[str, int]) -> None:
        operands = [Operand(**{member: value}) for member, value in zip(operation.members, arguments, strict=True)]
        self.operation, self.alive, self.sizes = operation, alive, sizes
        self.work = getattr(library(), f"call_{operation.name}")
        place = ctypes.cast(self.work, ctypes.c_void_p)
        self.structure = CallStructure(place, (Operand * OPERANDS)(*operands))

    def __call__(self) -> None:
        """Execute the call by itself, on torch's threads."""
        check(self.work(self.structure.operands, None), self.operation.name)


def check(error: int, what: str) -> None:
    """Raise the exception of an error code of C."""
    if error == 1:
        raise MemoryError(f"{what}: there is no memory left")
    if error:
        raise IndexError(f"{what}: an index or a size is out of range")


def bind(name: str, *values: Value) -> Call:
    """The call of an operation, or a TypeError or ValueError that names the operation and its operand."""
    operation = OPERATIONS[name]
    if len(values) != len(operation.parameters):
        names = ", ".join(operation.parameters) or "nothing"
        raise TypeError(f"{name} takes {len(operation.parameters)} operands ({names}), not {len(values)}")
    operands = dict(zip(operation.parameters, values, strict=True))
    sizes: dict[str, int] = {}
    lists: dict[str, tuple[int, ...]] = {}
    for key, parameter in operation.parameters.items():
        _check_kind(f"{name}, operand {key}", parameter, operands[key])
        _read_sizes(f"{name}, operand {key}", parameter, operands[key], sizes, lists)
    for key, parameter in operation.parameters.items():
        _check_shape(f"{name}, operand {key}", parameter, operands[key], sizes)
    alive: list[Any] = [*values]
    arguments: list[Any] = []
    for argument in operation.arguments:
        if argument in lists:
            alive.append((ctypes.c_long * len(lists[argument]))(*lists[argument]))
            arguments.append(ctypes.addressof(alive[-1]))
        elif argument in operands:
            arguments += _arguments(operation.parameters[argument], operands[argument], alive)
        elif argument != "worker":
            arguments.append(sizes[argument])
    return Call(operation, arguments, alive, sizes)


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


def _tensors(parameter: Parameter, value: Value) -> Sequence[Tensor]:
    """The tensors of an operand whose kind is right: none of a number, several of a list."""
    if parameter.scalar or value is None:
        return []
    return cast(Sequence[Tensor], value if parameter.length else [value])


def _read_sizes(
    where: str, parameter: Parameter, value: Value, sizes: dict[str, int], lists: dict[str, tuple[int, ...]]
) -> None:
    """Read the values of named sizes off an operand. Those of a list whose tensors have any shape go to `lists`."""
    tensors = _tensors(parameter, value)
    if parameter.scalar == "count":
        sizes[parameter.name] = cast(int, value)
    if parameter.length and value is not None:
        _same(where, sizes, parameter.length, len(tensors))
    if not parameter.any_shape:
        for tensor in tensors:
            _read_shape(where, parameter, tensor, sizes)
    elif value is not None:
        actual = tuple(tensor.numel() for tensor in tensors)
        expected = lists.setdefault(parameter.shape[0][1:], actual)
        if actual != expected:
            raise ValueError(f"{where} must have tensors of sizes {expected}, not {actual}")


def _read_shape(where: str, parameter: Parameter, tensor: Tensor, sizes: dict[str, int]) -> None:
    if tensor.ndim != len(parameter.shape):
        expected = f"[{', '.join(parameter.shape)}]"
        raise ValueError(f"{where} must have the shape {expected}, not {tuple(tensor.shape)}")
    for size, actual in zip(parameter.shape, tensor.shape, strict=True):
        if size.isidentifier():
            _same(where, sizes, size, actual)


def _same(where: str, sizes: dict[str, int], size: str, actual: int) -> None:
    expected = int(size) if size.isdigit() else sizes.setdefault(size, actual)
    if expected != actual:
        raise ValueError(f"{where}: {size} is {expected} elsewhere, and {actual} here")


def _check_shape(where: str, parameter: Parameter, value: Value, sizes: dict[str, int]) -> None:
    if parameter.any_shape:
        return
    for tensor in _tensors(parameter, value):
        expected = tuple(evaluate(size, sizes) for size in parameter.shape)
        if tuple(tensor.shape) != expected:
            raise ValueError(f"{where} must have the shape {expected}, not {tuple(tensor.shape)}")


def evaluate(size: str, sizes: dict[str, int]) -> int:
    """The value of a size in a shape.

    >>> evaluate("2*units+1", {"units": 5})
    11
    """
    if size in sizes:
        return sizes[size]
    total = 0
    for term in size.split("+"):
        product = 1
        for factor in term.split("*"):
            product *= int(factor) if factor.isdigit() else sizes[factor]
        total += product
    return total


def _arguments(parameter: Parameter, value: Any, alive: list[Any]) -> list[Any]:
    """The arguments of the C function for an operand."""
    if parameter.scalar:
        return [value]
    if value is None:
        return [None]
    if parameter.length:
        alive.append((ctypes.c_void_p * len(value))(*(tensor.data_ptr() for tensor in value)))
        return [ctypes.addressof(alive[-1])]
    if parameter.base == "strided":
        across, step = layout(parameter.name, value)
        if parameter.out and across:
            raise ValueError(f"product, operand {parameter.name}: its rows must lie side by side")
        return [value.data_ptr(), step] if parameter.out else [value.data_ptr(), int(across), step]
    return [value.data_ptr()]


def layout(name: str, matrix: Tensor) -> tuple[bool, int]:
    """Whether a matrix is stored column by column, and the stride between its stored rows or columns."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    if (right == 1 or columns <= 1) and (down >= columns or rows <= 1):
        return False, max(down, columns, 1)
    if down == 1 and (right >= rows or columns <= 1):
        return True, max(right, rows, 1)
    raise ValueError(f"product, operand {name}: neither its rows nor its columns lie side by side")
