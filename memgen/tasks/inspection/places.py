"""The layers with memory of a model, and hooks that read or replace the values between their parts.

The model has no code for inspection. A forward hook on `attention` reads h_a, or sets the weight of one slot to zero; a
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
from memgen.core.likelihoods import Factorised
from memgen.core.memory import Preference
from memgen.core.model import GenerativeModel
from memgen.errors import MemgenError

MOST_SLOTS = 10_000
"""Limit of an inspection, which decodes, removes and draws every slot separately."""


class Place(NamedTuple):
    """A layer with memory."""

    name: str
    layer: MemoryLayer

    @property
    def slots(self) -> int:
        return len(cast(Tensor, self.layer.memory.M))


@runtime_checkable
class NamedLayers(Protocol):
    """A model that names its layers with memory."""

    def memory_layers(self) -> dict[str, MemoryLayer]: ...


def places(model: Module) -> list[Place]:
    """The layers with memory, by the names of `memory_layers`, from the data upwards; otherwise by module names."""
    if isinstance(model, NamedLayers):
        return [Place(name, layer) for name, layer in model.memory_layers().items()]
    return [Place(name, module) for name, module in model.named_modules() if isinstance(module, MemoryLayer)]


def require_memory(model: Module) -> list[Place]:
    """`places`, with an error if the model cannot be inspected."""
    if not (layers := places(model)):
        raise MemgenError("this model has no memory to look into; train one with model.slots, such as digits-mem-vae")
    if (most := max(place.slots for place in layers)) > MOST_SLOTS:
        raise MemgenError(f"every slot is looked at by itself, so up to {MOST_SLOTS:,} slots; this model has {most:,}")
    return layers


@contextmanager
def hooked(module: nn.Module, change: Callable[[Any], Any]) -> Iterator[None]:
    """A context in which the module's output is replaced by change(output), unless that is None."""
    handle = module.register_forward_hook(lambda module, inputs, output: change(output))
    try:
        yield
    finally:
        handle.remove()


def replaced(place: Place, value: float) -> Any:
    """A context in which h_m of this layer is a constant: its memory is disabled."""
    return hooked(place.layer.memory, lambda h_m: torch.full_like(h_m, value))


def dense(h_a: Preference, slots: int) -> Float[Tensor, "*rows slots"]:
    """The weights of all slots; zero for those that a sparse attention has not chosen."""
    if h_a.index is None:
        return h_a.weights
    return h_a.weights.new_zeros(*h_a.weights.shape[:-1], slots).scatter_add(-1, h_a.index, h_a.weights)


def decided(model: GenerativeModel, p: Factorised) -> Float[Tensor, "*rows D"]:
    """The means of p(x|z); of categories the likeliest level."""
    return model.likelihood.decide(model.likelihood.expected(p)).cpu()
