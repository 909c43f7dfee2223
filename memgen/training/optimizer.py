"""Adam over all parameters: clipping, update and moving average in one pass over the weights.

A parameter whose gradient is sparse (a memory of a million slots of which a step reads thousands) is updated in the
rows that were read, and nothing else of it is touched: not its moments, not its average, and not the checkpoint.
Weight decay reaches a row in the steps that read it.

    g   <- gradient, scaled to a global norm, then cut entry by entry
    m_1 <- beta1 m_1 + (1 - beta1) g,    m_2 <- beta2 m_2 + (1 - beta2) g^2
    w   <- (1 - rate * decay) w - rate / (1 - beta1^t) * m_1 / (sqrt(m_2 / (1 - beta2^t)) + epsilon)
    average <- ema * average + (1 - ema) * w
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Iterable
from dataclasses import dataclass
from operator import attrgetter, is_
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from memgen.accelerate.library import addresses, library, serves

TINY = torch.finfo(torch.float32).tiny
"""Nothing is divided by less, so that a gradient of zero changes nothing however small epsilon is."""


class Settings(NamedTuple):
    """Of one step."""

    rate: float
    epsilon: float
    beta1: float = 0.9
    beta2: float = 0.999
    weight_decay: float = 0.0
    clip_norm: float = 0.0
    clip_value: float = 0.0
    ema: float = 0.0


@dataclass
class Slot:
    """A parameter and what the optimizer knows of it."""

    name: str
    value: nn.Parameter
    first: Tensor
    second: Tensor
    average: Tensor | None
    """The same parameter of the averaged model."""
    last: Tensor | None
    """Row-sparse parameters: the step that last touched each row, 0 for never."""

    @property
    def rows(self) -> Tensor:
        """The rows of a row-sparse parameter that were ever touched."""
        assert self.last is not None
        return self.last.nonzero()[:, 0]


class DenseGradients:
    """The gradients of a step but for row-sparse ones, and where their numbers lie.

    Steps that are written down (fused/) leave them in the same places every time, so that this is made once; made anew
    in every step a step of the recipe digits-mem-vae takes a fifth longer.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self.values = [slot.value for slot in slots]
        self.given = [value.grad for value in self.values]
        self.slots = [slot for slot in slots if slot.value.grad is not None]
        self.gradients = [gradient for gradient in self.given if gradient is not None]
        self.native = serves(*(slot.value for slot in self.slots), *self.gradients)
        """Whether the kernels can take them."""
        rows = [(slot.value, slot.value.grad, slot.first, slot.second, slot.average) for slot in self.slots]
        every = [tensor for row in rows for tensor in row]
        others = [tensor for row in rows for tensor in (row[0], row[1], row[4])]
        self.tensors = [tensor for tensor in others if tensor is not None]
        """All but the moments, which nobody else has."""
        if self.native:
            self.table, self.entries, self.sizes = addresses(every), addresses(self.gradients), _sizes(self.gradients)
            self.places = [*map(Tensor.data_ptr, self.tensors)]

    @property
    def stand(self) -> bool:
        """Whether the parameters still have these gradients, and all lies where it was."""
        return (
            self.native
            and all(map(is_, map(attrgetter("grad"), self.values), self.given))
            and [*map(Tensor.data_ptr, self.tensors)] == self.places
            and all(map(Tensor.is_contiguous, self.tensors))
        )


class Adam:
    """`sparse` names the parameters whose gradients are sparse; `averaged` is the model that holds the average.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> nn.init.ones_(model.weight).sum().backward()
    >>> norm = Adam(model).step(Settings(rate=0.1, epsilon=1e-8))
    >>> norm.item(), round(model.weight.item(), 4)   # a first step has the size of the rate
    (1.0, 0.9)
    """

    def __init__(self, model: nn.Module, averaged: nn.Module | None = None, sparse: Iterable[str] = ()) -> None:
        averages = {} if averaged is None else dict(averaged.named_parameters())
        sparse = set(sparse)
        self.t = 0
        """Finished steps."""
        self.slots = [
            Slot(
                name,
                parameter,
                # Zeros are written now: rows that are first met while training would cost a page fault each.
                torch.zeros_like(parameter),
                torch.zeros_like(parameter),
                averages.get(name),
                torch.zeros(len(parameter), dtype=torch.int32, device=parameter.device) if name in sparse else None,
            )
            for name, parameter in model.named_parameters()
        ]
        self.found: DenseGradients | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "found": None}  # it knows its tensors by addresses; those of a copy are others

    def clear(self) -> None:
        """Forget the gradients."""
        self.found = None
        for slot in self.slots:
            slot.value.grad = None

    @torch.no_grad()
    def step(self, settings: Settings) -> Float[Tensor, ""]:
        """One step along the gradients; returns their norm before clipping. What has no gradient is left alone."""
        self.t += 1
        if self.found is None or not self.found.stand:
            self.found = DenseGradients([slot for slot in self.slots if slot.last is None])
        dense, sparse = self.found, [slot for slot in self.slots if slot.last is not None]
        sparse = [slot for slot in sparse if slot.value.grad is not None]
        entries = [_rows_once(slot) for slot in sparse]
        if dense.native and serves(*(slot.value for slot in sparse), *entries):
            norm = self._native(dense, sparse, entries, settings)
        else:
            norm = self._plain(dense, sparse, entries, settings)
        # as if autograd had seen the change
        increment_version([slot.value for slot in (*dense.slots, *sparse)])
        return norm

    def _decay(self, settings: Settings) -> float:
        """Of the average; its first value is a copy."""
        return settings.ema if self.t > 1 else 0.0

    def _native(self, dense: DenseGradients, sparse: list[Slot], entries: list[Tensor], settings: Settings) -> Tensor:
        """One pass instead of many, and no call per parameter: without it a step at K = 1 takes 1.5 times as long."""
        kernels = library()
        assert kernels is not None
        total = kernels.squares(dense.entries, dense.sizes, len(dense.gradients))
        if sparse:
            total += kernels.squares(addresses(entries), _sizes(entries), len(entries))
        norm = math.sqrt(total)
        scale = min(settings.clip_norm / (norm + 1e-6), 1.0) if settings.clip_norm else 1.0  # a NaN stays one
        root = math.sqrt(1 - settings.beta2**self.t)
        numbers = (
            settings.rate * root / (1 - settings.beta1**self.t),
            settings.beta1,
            settings.beta2,
            max(settings.epsilon * root, TINY),
            scale,
            settings.clip_value,
            1 - settings.rate * settings.weight_decay,
            1 - settings.beta1,
            1 - settings.beta2,
            1 - self._decay(settings),
        )
        packed = (ctypes.c_float * len(numbers))(*numbers)
        kernels.adam(dense.table, dense.sizes, len(dense.slots), packed)
        for slot, gradient in zip(sparse, entries, strict=True):
            rows, missed = self._touched(slot, settings)
            average = None if slot.average is None else slot.average.data_ptr()
            width = slot.value.shape[1]
            kernels.adam_rows(
                *(tensor.data_ptr() for tensor in (slot.value, gradient, slot.first, slot.second)),
                average,
                rows.data_ptr(),
                missed.data_ptr(),
                len(rows),
                width,
                packed,
            )
        return torch.tensor(norm)

    def _plain(self, dense: DenseGradients, sparse: list[Slot], entries: list[Tensor], settings: Settings) -> Tensor:
        """The formulas above, for any device and precision."""
        norm = torch.nn.utils.get_total_norm([*dense.gradients, *entries])
        scale = (settings.clip_norm / (norm + 1e-6)).clamp(max=1.0) if settings.clip_norm else norm.new_ones(())
        averages = [slot.average for slot in dense.slots if slot.average is not None]
        gradients = [gradient * scale for gradient in dense.gradients]
        first, second = [slot.first for slot in dense.slots], [slot.second for slot in dense.slots]
        self._formulas([slot.value.data for slot in dense.slots], gradients, first, second, averages, settings)
        for slot, gradient in zip(sparse, entries, strict=True):
            rows, missed = self._touched(slot, settings)
            own = [slot.value.data, slot.first, slot.second]
            w, m_1, m_2 = (tensor[rows] for tensor in own)
            # The average catches up with the steps in which the row stood still.
            average = [] if slot.average is None else [torch.lerp(w, slot.average[rows], missed.unsqueeze(1))]
            self._formulas([w], [gradient * scale], [m_1], [m_2], average, settings)
            for tensor, new in zip(own, (w, m_1, m_2), strict=True):
                tensor[rows] = new
            if slot.average is not None:
                slot.average[rows] = average[0]
        return norm

    def _formulas(
        self,
        w: list[Tensor],
        g: list[Tensor],
        first: list[Tensor],
        second: list[Tensor],
        average: list[Tensor],
        settings: Settings,
    ) -> None:
        """All change in place. A call is for all tensors: on a GPU there would else be ten calls for each of them."""
        if not w:
            return
        beta1, beta2 = settings.beta1, settings.beta2
        if settings.clip_value:
            torch._foreach_clamp_max_(g, settings.clip_value)
            torch._foreach_clamp_min_(g, -settings.clip_value)
        torch._foreach_lerp_(first, g, 1 - beta1)
        torch._foreach_mul_(second, beta2)
        torch._foreach_addcmul_(second, g, g, 1 - beta2)
        root = torch._foreach_sqrt(second)
        torch._foreach_div_(root, math.sqrt(1 - beta2**self.t))
        torch._foreach_add_(root, settings.epsilon)
        torch._foreach_mul_(w, 1 - settings.rate * settings.weight_decay)
        change = torch._foreach_div(first, root)
        torch._foreach_mul_(change, torch.tensor(settings.rate / (1 - beta1**self.t), device=w[0].device))  # may be inf
        torch._foreach_sub_(w, change)
        if average:
            torch._foreach_lerp_(average, w, 1 - self._decay(settings))

    def _touched(self, slot: Slot, settings: Settings) -> tuple[Tensor, Tensor]:
        """Rows, and what each row's average has missed: ema^(steps in which the row stood still)."""
        assert slot.last is not None
        assert slot.value.grad is not None
        rows = slot.value.grad.indices()[0]
        still = self.t - 1 - slot.last[rows]
        slot.last[rows] = self.t
        return rows, (settings.ema**still).to(slot.value)

    @torch.no_grad()
    def catch_up(self, ema: float) -> None:
        """Bring the average of every row to the present step, before somebody looks at it."""
        for slot in self.slots:
            if slot.last is not None and slot.average is not None:
                rows = slot.rows
                still = (self.t - slot.last[rows]).unsqueeze(1)
                slot.average[rows] = slot.value[rows] + (slot.average[rows] - slot.value[rows]) * (ema**still).float()
                slot.last[rows] = self.t


def slots_used(optimizer: Adam) -> float | None:
    """The fraction of all rows of row-sparse parameters that were ever touched; None where there are no such rows."""
    touched = [(len(slot.rows), len(slot.value)) for slot in optimizer.slots if slot.last is not None]
    return sum(used for used, _ in touched) / sum(rows for _, rows in touched) if touched else None


def _rows_once(slot: Slot) -> Float[Tensor, "rows width"]:
    """What a row-sparse gradient has of each of its rows, once these are in order and none stands there twice."""
    gradient = slot.value.grad
    assert gradient is not None
    if not gradient.is_coalesced():
        # coalesce() sorts; but autograd only forgets that one read gives each row once, and in order.
        rows = gradient._indices()[0]
        in_order = bool((rows[1:] > rows[:-1]).all())
        slot.value.grad = gradient = gradient._coalesced_(True) if in_order else gradient.coalesce()
    return gradient.values()


def _sizes(tensors: list[nn.Parameter] | list[Tensor]) -> ctypes.Array[ctypes.c_long]:
    return (ctypes.c_long * len(tensors))(*(tensor.numel() for tensor in tensors))
