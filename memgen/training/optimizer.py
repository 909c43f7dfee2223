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

import math
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.graph import increment_version

from memgen import accelerate
from memgen.accelerate.adam import TINY, Moments, Numbers, Rows

if TYPE_CHECKING:
    from memgen.accelerate.adam import AdamStep


class Settings(NamedTuple):
    """The settings of one step."""

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
    """A parameter and the optimizer's state for it."""

    name: str
    value: nn.Parameter
    first: Tensor
    second: Tensor
    average: Tensor | None
    """The same parameter of the averaged model."""
    last: Tensor | None
    """Row-sparse parameters: the step that last touched each row, 0 for never."""

    @property
    def moments(self) -> Moments:
        return Moments(self.value, self.first, self.second, self.average)

    @property
    def rows(self) -> Tensor:
        """The rows of a row-sparse parameter that were ever touched."""
        assert self.last is not None
        return self.last.nonzero()[:, 0]


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
                # Zeros are written now: otherwise the first use of a row in training costs a page fault.
                torch.zeros_like(parameter),
                torch.zeros_like(parameter),
                averages.get(name),
                torch.zeros(len(parameter), dtype=torch.int32, device=parameter.device) if name in sparse else None,
            )
            for name, parameter in model.named_parameters()
        ]
        self.accelerated: deque[AdamStep] = deque(maxlen=2)
        """Steps for the latest gradients. Two, because the batches of an epoch have at most two sizes, and the planned
        step of each size has its own gradients."""

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "accelerated": deque(maxlen=2)}  # an AdamStep holds addresses, which differ in a copy

    def clear(self) -> None:
        """Forget the gradients."""
        self.accelerated.clear()
        for slot in self.slots:
            slot.value.grad = None

    @property
    def tensors(self) -> list[Tensor]:
        """What a step changes: the weights, their moments and their average."""
        every = ((slot.value, slot.first, slot.second, slot.average) for slot in self.slots)
        return [tensor for of_slot in every for tensor in of_slot if tensor is not None]

    @torch.no_grad()
    def step(self, settings: Settings) -> Float[Tensor, ""]:
        """One step along the gradients; returns their norm before clipping. What has no gradient is left alone."""
        self.t += 1
        dense = [slot for slot in self.slots if slot.last is None]
        sparse = [slot for slot in self.slots if slot.last is not None and slot.value.grad is not None]
        read = [self._read(slot, settings) for slot in sparse]
        accelerated = self._accelerated(dense, read)
        changed = [slot for slot in dense if slot.value.grad is not None]
        if accelerated is not None:
            norm = accelerated(self._numbers(settings), read)
        else:
            norm = self._plain(changed, read, settings)
        # as if autograd had seen the change
        increment_version([slot.value for slot in (*changed, *sparse)])
        return norm

    def _accelerated(self, dense: list[Slot], read: list[Rows]) -> AdamStep | None:
        """The accelerated step for the present gradients, if they are supported."""
        for step in self.accelerated:
            if step.stands(read):
                return step
        new = accelerate.optimizer_step([slot.moments for slot in dense], read)
        if new is not None:
            self.accelerated.append(new)
        return new

    def _decay(self, settings: Settings) -> float:
        """The decay of the average; its first value is a copy of the weights."""
        return settings.ema if self.t > 1 else 0.0

    def _read(self, slot: Slot, settings: Settings) -> Rows:
        """The rows of a row-sparse parameter that a step has read. An average lags by ema^(steps without an update)."""
        assert slot.last is not None
        gradient = _rows_once(slot)
        rows = gradient.indices()[0]
        still = self.t - 1 - slot.last[rows]
        slot.last[rows] = self.t
        return Rows(slot.moments, gradient.values(), rows, (settings.ema**still).to(slot.value))

    def _numbers(self, settings: Settings) -> Numbers:
        """The step's numbers with the corrections for t in rate and epsilon."""
        root = math.sqrt(1 - settings.beta2**self.t)
        return Numbers(
            settings.rate * root / (1 - settings.beta1**self.t),
            settings.beta1,
            settings.beta2,
            max(settings.epsilon * root, TINY),
            settings.clip_norm,
            settings.clip_value,
            1 - settings.rate * settings.weight_decay,
            self._decay(settings),
        )

    def _plain(self, dense: list[Slot], read: list[Rows], settings: Settings) -> Tensor:
        """The formulas above, for any device and precision."""
        gradients = [slot.value.grad for slot in dense if slot.value.grad is not None]
        norm = torch.nn.utils.get_total_norm([*gradients, *(rows.gradient for rows in read)])
        scale = (settings.clip_norm / (norm + 1e-6)).clamp(max=1.0) if settings.clip_norm else norm.new_ones(())
        averages = [slot.average for slot in dense if slot.average is not None]
        first, second = [slot.first for slot in dense], [slot.second for slot in dense]
        scaled = [gradient * scale for gradient in gradients]
        self._formulas([slot.value.data for slot in dense], scaled, first, second, averages, settings)
        for moments, gradient, index, missed in read:
            tensors = [moments.value.data, moments.first, moments.second]
            w, m_1, m_2 = (tensor[index] for tensor in tensors)
            # The average catches up with the steps in which the row did not change.
            average = moments.average
            caught_up = [] if average is None else [torch.lerp(w, average[index], missed.unsqueeze(1))]
            self._formulas([w], [gradient * scale], [m_1], [m_2], caught_up, settings)
            for tensor, new in zip(tensors, (w, m_1, m_2), strict=True):
                tensor[index] = new
            if average is not None:
                average[index] = caught_up[0]
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
        """Update in place. Each call is for all tensors, which saves a GPU ten calls per tensor."""
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

    @torch.no_grad()
    def catch_up(self, ema: float) -> None:
        """Bring the average of every row to the present step, before it is read."""
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


def _rows_once(slot: Slot) -> Tensor:
    """A row-sparse gradient with its rows in order, each at most once."""
    gradient = slot.value.grad
    assert gradient is not None
    if not gradient.is_coalesced():
        # coalesce() sorts; but autograd only forgets that one read gives each row once, and in order.
        rows = gradient._indices()[0]
        in_order = bool((rows[1:] > rows[:-1]).all())
        slot.value.grad = gradient = gradient._coalesced_(True) if in_order else gradient.coalesce()
    return gradient
