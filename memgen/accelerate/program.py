"""Lists of calls with all their operands, which program.c makes one after the other without Python in between."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor, nn

from memgen.accelerate.library import library

Value = Tensor | ctypes.Array[Any] | int | float | None
"""What becomes an operand of a call."""


class Operand(ctypes.Union):
    """A whole number, a float, or an address."""

    _fields_ = (("n", ctypes.c_int64), ("f", ctypes.c_double), ("p", ctypes.c_void_p))

    @classmethod
    def of(cls, value: Value) -> Operand:
        if isinstance(value, Tensor):
            return cls(p=value.data_ptr())
        if isinstance(value, ctypes.Array):
            return cls(p=ctypes.addressof(value))
        if isinstance(value, float):
            return cls(f=value)
        return cls(p=None) if value is None else cls(n=value)


class Call(ctypes.Structure):
    """As program.c has it."""

    _fields_ = (("work", ctypes.c_void_p), ("operands", Operand * 16))


class Tape:
    """Calls to be made one after the other; program.c says what they do. Tensors are float32, row by row."""

    def __init__(self) -> None:
        self.calls: list[Call] = []
        self.kept: list[Any] = []
        """Operands, which a call knows by their addresses alone."""

    def add(self, name: str, *operands: Value) -> None:
        work = ctypes.cast(getattr(library(), f"call_{name}"), ctypes.c_void_p)
        self.calls.append(Call(work, (Operand * 16)(*map(Operand.of, operands))))
        self.kept += operands

    def product(self, a: Tensor, b: Tensor, out: Tensor, more: float = 0.0) -> None:
        """out = a b + more * out; a and b may be transposed matrices, and all three some columns of one."""
        if (*a.shape, b.shape[1]) != (len(out), len(b), out.shape[1]):
            raise ValueError(f"{tuple(a.shape)} times {tuple(b.shape)} is not {tuple(out.shape)}")
        (across_a, step_a), (across_b, step_b) = map(_layout, (a, b))
        if out.stride(1) != 1:
            raise ValueError("the numbers of a row of a product lie side by side")
        steps = (step_a, step_b, max(out.stride(0), out.shape[1]))
        self.add("product", across_a, across_b, *out.shape, a.shape[1], *steps, a, b, out, more)

    def linear(self, linear: nn.Linear, h: Tensor, out: Tensor) -> None:
        """out = W h + b"""
        self.add("bias", out, *out.shape, linear.bias)
        self.product(h, linear.weight.t(), out, 1.0)


def _layout(matrix: Tensor) -> tuple[bool, int]:
    """Whether it is stored column by column, and how far two of its stored rows, or columns, are apart."""
    (rows, columns), (down, right) = matrix.shape, matrix.stride()
    return (False, max(down, columns)) if right == 1 else (True, max(right, rows))


class Program:
    """One list for each of several threads, each with a share of the rows.

    `gradients` has for each of some tensors its copies in all shares, which are added up in the first; `widest` is the
    greatest number of units of a layer whose rows are normalised together.
    """

    def __init__(self, lists: list[list[Call]], gradients: list[list[Tensor]], widest: int) -> None:
        self.kept = [(Call * len(calls))(*calls) for calls in lists]
        self.lists = (ctypes.c_void_p * len(lists))(*map(ctypes.addressof, self.kept))
        self.lengths = (ctypes.c_long * len(lists))(*map(len, lists))
        copies = [copy for copies in gradients for copy in copies]
        self.copies = (ctypes.c_void_p * len(copies))(*(copy.data_ptr() for copy in copies))
        self.sizes = (ctypes.c_long * len(gradients))(*(copies[0].numel() for copies in gradients))
        self.tables = torch.empty(2, len(lists), 2 * widest + 1, dtype=torch.float32, device="cpu")

    def run(self) -> bool:
        """Make all calls; False if there were fewer threads than lists, and nothing was done."""
        tables = (self.tables.data_ptr(), self.tables.shape[-1])
        gradients = (self.copies, self.sizes, len(self.sizes))
        kernels = cast(ctypes.CDLL, library())
        return not kernels.run(self.lists, self.lengths, len(self.lengths), *tables, *gradients)


@cache
def blas() -> bool:
    """Tell program.c where torch's own product of matrices is; False if it cannot be found. It is MKL's on most
    machines, whose number of threads can be set for each thread by itself."""
    kernels = library()
    if kernels is None:
        return False
    try:
        torch_cpu = ctypes.CDLL(str(Path(torch.__file__).parent / "lib" / "libtorch_cpu.so"))
        product, threads = torch_cpu.sgemm_, torch_cpu.MKL_Set_Num_Threads_Local
    except (OSError, AttributeError):
        return False
    kernels.use_blas(ctypes.cast(product, ctypes.c_void_p), ctypes.cast(threads, ctypes.c_void_p))
    return True
