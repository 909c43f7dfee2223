"""The layers with memory of a model, and how to read or replace what passes between their parts.

Nothing in the model knows about inspection. A forward hook on `attention` reads h_a, or takes one slot out of it; a
hook on `memory` replaces h_m; a hook on `dense` replaces h_g.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, cast, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from memgen.core.layers import MemoryLayer, Module
from memgen.core.memory import Preference
from memgen.errors import MemgenError

MOST_SLOTS = 10_000
"""Every slot is decoded, silenced and drawn by itself."""


class Place(NamedTuple):
    """A layer with memory."""

    name: str
    layer: MemoryLayer

    @property
    def slots(self) -> int:
        return len(cast(Tensor, self.layer.memory.M))


@runtime_checkable
class NamedLayers(Protocol):
    """A model that says in which order its layers with memory are counted."""

    def memory_layers(self) -> dict[str, MemoryLayer]: ...


def places(model: Module) -> list[Place]:
    """The layers with memory, by the names that the model gives them, from the data upwards; else as modules."""
    if isinstance(model, NamedLayers):
        return [Place(name, layer) for name, layer in model.memory_layers().items()]
    return [Place(name, module) for name, module in model.named_modules() if isinstance(module, MemoryLayer)]


def require_memory(model: Module) -> list[Place]:
    """The same, of a model that can be inspected."""
    if not (layers := places(model)):
        raise MemgenError("this model has no memory to look into; train one with model.slots, such as digits-mem-vae")
    if (most := max(place.slots for place in layers)) > MOST_SLOTS:
        raise MemgenError(f"every slot is looked at by itself, so up to {MOST_SLOTS:,} slots; this model has {most:,}")
    return layers


@contextmanager
def hooked(module: nn.Module, change: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, what the module returns is change(what it returned); None leaves it."""
    handle = module.register_forward_hook(lambda module, inputs, output: change(output))
    try:
        yield
    finally:
        handle.remove()


def replaced(place: Place, value: float) -> Any:
    """Inside, h_m of this layer is a constant: its memory is disabled."""
    return hooked(place.layer.memory, lambda h_m: torch.full_like(h_m, value))


def without(place: Place, slot: int) -> Any:
    """Inside, one slot of this layer is never read."""

    def silence(h_a: Preference) -> Preference:
        index = torch.arange(h_a.weights.shape[-1], device=h_a.weights.device) if h_a.index is None else h_a.index
        return Preference(h_a.weights.masked_fill(index == slot, 0.0), h_a.index)

    return hooked(place.layer.attention, silence)


def dense(h_a: Preference, slots: int) -> Float[Tensor, "*rows slots"]:
    """The weight of every slot, where an attention names only the chosen ones."""
    if h_a.index is None:
        return h_a.weights
    return h_a.weights.new_zeros(*h_a.weights.shape[:-1], slots).scatter_add(-1, h_a.index, h_a.weights)
