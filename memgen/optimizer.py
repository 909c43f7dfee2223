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
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from memgen.native.library import addresses, library, serves


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


class Gradients:
    """The gradients of a step, dense and row-sparse ones, and for the kernels where the numbers of the dense ones lie.

    Steps that are written down (fused/) leave them in the same places every time, so that this is made once; made anew
    in every step a step of the recipe digits-mem-vae takes a fifth longer.
    """

    def __init__(self, slots: list[Slot]) -> None:
        self.given = [(slot.value, slot.value.grad) for slot in slots]
        for slot in slots:
            if slot.value.grad is not None and slot.last is not None:
                slot.value.grad = _each_row_once(slot.value.grad)
        having = [slot for slot in slots if slot.value.grad is not None]
        self.dense = [slot for slot in having if slot.last is None]
        self.sparse = [slot for slot in having if slot.last is not None]
        self.slots = (*self.dense, *self.sparse)
        self.entries = [_entries(slot) for slot in self.slots]
        self.native = bool(having) and all(
            serves(slot.value, entries) for slot, entries in zip(self.slots, self.entries, strict=True)
        )
        if self.native:
            rows = [(s.value, s.value.grad, s.first, s.second, s.average) for s in self.dense]
            self.tensors = [tensor for row in rows for tensor in row]
            self.table, self.sizes = addresses(self.tensors), _sizes([slot.value for slot in self.dense])
            self.all_entries, self.all_sizes = addresses(self.entries), _sizes(self.entries)
            self.places = self._places()

    def _places(self) -> list[tuple[int, bool]]:
        return [(tensor.data_ptr(), tensor.is_contiguous()) for tensor in self.tensors if tensor is not None]

    @property
    def stand(self) -> bool:
        """Whether the parameters still have these gradients, and all lies where it was."""
        return all(value.grad is gradient for value, gradient in self.given) and self._places() == self.places

    @property
    def lasting(self) -> bool:
        """Whether the next step may find the same; row-sparse gradients are others in every step."""
        return self.native and not self.sparse

    def norm(self) -> Tensor:
        if not self.native:
            return torch.nn.utils.get_total_norm(self.entries)
        kernels = library()
        assert kernels is not None
        return torch.tensor(math.sqrt(kernels.squares(self.all_entries, self.all_sizes, len(self.entries))))


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
                averages[name].data if averages else None,
                torch.zeros(len(parameter), dtype=torch.int32, device=parameter.device) if name in sparse else None,
            )
            for name, parameter in model.named_parameters()
        ]
        self.found: Gradients | None = None

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
            self.found = Gradients(self.slots)
        found, norm = self.found, self.found.norm()
        scale = (settings.clip_norm / (norm + 1e-6)).clamp(max=1.0) if settings.clip_norm else norm.new_ones(())
        if found.native:
            self._native(found, settings, scale)
        else:
            self._plain(found, settings, scale)
        increment_version([slot.value for slot in found.slots])  # as if autograd had seen the change
        self.found = found if found.lasting else None
        return norm

    def _decay(self, settings: Settings) -> float:
        """Of the average; its first value is a copy."""
        return settings.ema if self.t > 1 else 0.0

    def _native(self, found: Gradients, settings: Settings, scale: Tensor) -> None:
        """One pass instead of many, and no call per parameter: without it a step at K = 1 takes 1.5 times as long."""
        kernels = library()
        assert kernels is not None
        numbers = (
            settings.rate / (1 - settings.beta1**self.t),
            settings.beta1,
            settings.beta2,
            settings.epsilon,
            math.sqrt(1 - settings.beta2**self.t),
            float(scale),
            settings.clip_value,
            1 - settings.rate * settings.weight_decay,
            1 - settings.beta1,
            1 - settings.beta2,
            1 - self._decay(settings),
        )
        packed = (ctypes.c_float * len(numbers))(*numbers)
        kernels.adam(found.table, found.sizes, len(found.dense), packed)
        for slot in found.sparse:
            rows, gradient, missed = self._touched(slot, settings)
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

    def _plain(self, found: Gradients, settings: Settings, scale: Tensor) -> None:
        """The formulas above, for any device and precision."""
        dense = found.dense
        averages = [slot.average for slot in dense if slot.average is not None]
        gradients = [_entries(slot) * scale for slot in dense]
        first, second = [slot.first for slot in dense], [slot.second for slot in dense]
        self._formulas([slot.value.data for slot in dense], gradients, first, second, averages, settings)
        for slot in found.sparse:
            rows, gradient, missed = self._touched(slot, settings)
            own = [slot.value.data, slot.first, slot.second]
            w, m_1, m_2 = (tensor[rows] for tensor in own)
            # The average catches up with the steps in which the row stood still.
            average = [] if slot.average is None else [torch.lerp(w, slot.average[rows], missed.unsqueeze(1))]
            self._formulas([w], [gradient * scale], [m_1], [m_2], average, settings)
            for tensor, new in zip(own, (w, m_1, m_2), strict=True):
                tensor[rows] = new
            if slot.average is not None:
                slot.average[rows] = average[0]

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

    def _touched(self, slot: Slot, settings: Settings) -> tuple[Tensor, Tensor, Tensor]:
        """Rows, their gradients, and what each row's average has missed: ema^(steps in which the row stood still)."""
        assert slot.last is not None
        assert slot.value.grad is not None
        rows, gradient = slot.value.grad.indices()[0], slot.value.grad.values()
        still = self.t - 1 - slot.last[rows]
        slot.last[rows] = self.t
        return rows, gradient, (settings.ema**still).float()

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


def _each_row_once(gradient: Tensor) -> Tensor:
    """coalesce(), which sorts all the rows, only if a row may stand there twice; one read gives each once."""
    rows = gradient._indices()[0]
    return gradient._coalesced_(True) if bool((rows[1:] > rows[:-1]).all()) else gradient.coalesce()


def _entries(slot: Slot) -> Tensor:
    assert slot.value.grad is not None
    return slot.value.grad.values() if slot.last is not None else slot.value.grad


def _sizes(tensors: list[nn.Parameter] | list[Tensor]) -> ctypes.Array[ctypes.c_long]:
    return (ctypes.c_long * len(tensors))(*(tensor.numel() for tensor in tensors))
