"""Compiled plans: lists of calls that program.c executes in order, without Python in between."""

from __future__ import annotations

import ctypes
from functools import cache
from pathlib import Path

import torch
from torch import Tensor, nn

from memgen.accelerate.calls import Call, CallStructure, Value, bind, check
from memgen.accelerate.library import library


class Plan:
    """The calls of one worker, in order."""

    def __init__(self) -> None:
        self.calls: list[Call] = []

    def add(self, name: str, *operands: Value) -> None:
        self.calls.append(bind(name, *operands))

    def product(self, a: Tensor, b: Tensor, out: Tensor, keep: float = 0.0) -> None:
        """out = a b + keep * out; a and b may be transposed, and all three may be views of columns."""
        self.add("product", a, b, out, keep)

    def linear(self, linear: nn.Linear, h: Tensor, out: Tensor) -> None:
        """out = W h + b"""
        self.add("bias", out, linear.bias)
        self.product(h, linear.weight.t(), out, 1.0)


class Program:
    """One plan per worker. The rows are divided among the workers.

    `gradients` lists the copies of each gradient in all plans; the sum of the copies is written to the first.
    """

    def __init__(self, plans: list[Plan], gradients: list[list[Tensor]]) -> None:
        waiting = [[call.operation.name for call in plan.calls if call.operation.waits] for plan in plans]
        if any(barriers != waiting[0] for barriers in waiting):
            raise ValueError("the workers of a program wait for each other at the same calls")
        self.plans = plans
        self.lists = [(CallStructure * len(plan.calls))(*(call.structure for call in plan.calls)) for plan in plans]
        self.starts = (ctypes.c_void_p * len(plans))(*map(ctypes.addressof, self.lists))
        self.lengths = (ctypes.c_long * len(plans))(*map(len, self.lists))
        for copies in gradients:
            if len(copies) != len(plans):
                raise ValueError("a gradient has a copy in the plan of every worker")
            bind("squares", copies, torch.empty((), dtype=torch.float64))  # checks the operands
            bind("add", *(copy.reshape(1, -1) for copy in (copies[0], copies[-1], copies[0])))
        self.gradients = gradients
        self.copies = (ctypes.c_void_p * (len(gradients) * len(plans)))(
            *(copy.data_ptr() for copies in gradients for copy in copies)
        )
        self.sizes = (ctypes.c_long * len(gradients))(*(copies[0].numel() for copies in gradients))
        units = (call.sizes.get("units", 0) for plan in plans for call in plan.calls if call.operation.waits)
        self.tables = torch.empty(2, len(plans), 2 * max(units, default=0) + 1, dtype=torch.float32, device="cpu")

    def run(self) -> bool:
        """Execute all plans; False if there were fewer threads than plans, and nothing was executed."""
        tables = (self.tables.data_ptr(), self.tables.shape[-1])
        kernels = library()
        assert kernels is not None
        error = kernels.run(
            self.starts, self.lengths, len(self.plans), *tables, self.copies, self.sizes, len(self.sizes)
        )
        if error == -1:
            return False
        check(error, "a planned step")
        return True


@cache
def blas() -> bool:
    """Pass the address of torch's matrix product to program.c; False if there is none.

    It must be that of MKL, whose number of threads can be set per calling thread.
    """
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
