"""Adam in one pass over the weights; `training.optimizer` has the formulas."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import attrgetter, is_
from typing import NamedTuple

import torch
from torch import Tensor, nn

from memgen.accelerate.calls import bind
from memgen.accelerate.library import serves

TINY = torch.finfo(torch.float32).tiny
"""The smallest divisor, so that a gradient of zero changes nothing for any epsilon."""


class Moments(NamedTuple):
    """A parameter and its state in the optimizer."""

    value: nn.Parameter
    first: Tensor
    second: Tensor
    average: Tensor | None


class Rows(NamedTuple):
    """The rows of a parameter that a step has read, each once: gradients, and the steps missed by the average."""

    moments: Moments
    gradient: Tensor
    where: Tensor
    missed: Tensor


class Numbers(NamedTuple):
    """The constants of one step."""

    rate: float
    """Corrected: times sqrt(1 - beta2^t) / (1 - beta1^t), so that one division is enough."""
    beta1: float
    beta2: float
    epsilon: float
    """Corrected: times sqrt(1 - beta2^t)."""
    clip_norm: float
    clip_value: float
    keep: float
    """1 - rate * weight decay."""
    ema: float


class AdamStep:
    """Norm and update of all parameters whose gradients are dense.

    It stores the addresses of its tensors. Planned steps leave the gradients at the same addresses, so that it is built
    once. If it is built in every step, a step of the recipe digits-mem-vae takes a fifth longer.
    """

    def __init__(self, moments: Sequence[Moments]) -> None:
        self.values = [m.value for m in moments]
        self.gradients = [value.grad for value in self.values]
        dense = [m for m in moments if m.value.grad is not None]
        gradients = [gradient for gradient in self.gradients if gradient is not None]
        averages = None if any(m.average is None for m in dense) else [m.average for m in dense]
        columns = [[*column] for column in zip(*((m.value, m.first, m.second) for m in dense), strict=True)] or [[]] * 3
        self.total, self.numbers = torch.zeros((), dtype=torch.float64), torch.zeros(10)
        self.squares = bind("squares", gradients, self.total)
        self.update = bind("adam", columns[0], gradients, *columns[1:], averages, self.numbers)
        self.tensors = [*columns[0], *gradients, *(a for a in averages or () if a is not None)]
        """All tensors except the moments, which only the optimizer has."""
        self.places = [*map(Tensor.data_ptr, self.tensors)]

    def stands(self, read: Sequence[Rows]) -> bool:
        """Whether the gradients and all addresses are unchanged, and C supports the rows."""
        return (
            serves(*(tensor for rows in read for tensor in (rows.moments.value, rows.gradient)))
            and all(map(is_, map(attrgetter("grad"), self.values), self.gradients))
            and [*map(Tensor.data_ptr, self.tensors)] == self.places
            and all(map(Tensor.is_contiguous, self.tensors))
        )

    def __call__(self, numbers: Numbers, read: Sequence[Rows]) -> Tensor:
        """Change all parameters and return the norm of the gradients before clipping."""
        self.squares()
        total = float(self.total)
        if read:
            bind("squares", [rows.gradient for rows in read], self.total)()
            total += float(self.total)
        norm = math.sqrt(total)
        scale = min(numbers.clip_norm / (norm + 1e-6), 1.0) if numbers.clip_norm else 1.0  # a NaN stays one
        self.numbers.copy_(_packed(numbers, scale))
        self.update()
        for moments, gradient, where, missed in read:
            value, first, second, average = moments
            bind("adam_rows", value, gradient, first, second, average, where, missed, self.numbers)()
        return torch.tensor(norm)


def _packed(numbers: Numbers, scale: float) -> Tensor:
    """The constants in the order of kernels.c."""
    rate, beta1, beta2, epsilon, _, clip_value, keep, ema = numbers
    complements = (1 - beta1, 1 - beta2, 1 - ema)
    return torch.tensor([rate, beta1, beta2, max(epsilon, TINY), scale, clip_value, keep, *complements])


def supports(moments: Sequence[Moments], read: Sequence[Rows]) -> bool:
    """Whether C supports all tensors; either all parameters or none have an average."""
    tensors = [tensor for m in moments for tensor in m if tensor is not None]
    gradients = [m.value.grad for m in moments if m.value.grad is not None]
    tensors += [tensor for rows in read for tensor in (*rows.moments, rows.gradient) if tensor is not None]
    return len({m.average is None for m in moments}) <= 1 and serves(*tensors, *gradients)
