"""Layer specifications: a net is described by a list of small records. The table LAYERS lists the kinds of layer.

A shape is that of one row: (units,) of a vector, (height, width, channels) of an image. The feature axis is last in
both, so norms, attentions, memories and compositions are the same for either: an image reads the memory at every
position, and all positions share the slots.

    >>> from memgen.core.layers import NORMS
    >>> specs = [ViewSpec((8, 8, 1)), ConvSpec(4, size=3, stride=2, slots=5), DenseSpec(10)]
    >>> layers, shape = build_layers(specs, (64,), NORMS["batch"])
    >>> [type(layer).__name__ for layer in layers], shape
    (['View', 'MemoryLayer', 'View', 'Dense'], (10,))
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol, runtime_checkable

from torch import nn

from memgen.core.convolution import Conv, Upsample, View
from memgen.core.layers import Dense, MemoryLayer
from memgen.core.memory import ATTENTIONS, COMPOSITIONS, SPARSE_ATTENTIONS, Memory
from memgen.errors import MemgenError, unknown

Shape = tuple[int, ...]
Norm = Callable[[int], nn.Module]


@dataclass(frozen=True)
class Reading:
    """How layers read their memory."""

    attention: str = "sigmoid"
    composition: str = "mlp"
    top: int = 32
    """Number of slots that a sparse attention chooses."""

    def around(self, dense: nn.Module, units: int, slots: int) -> nn.Module:
        """The layer with a memory of `slots` slots; the layer itself if `slots` is 0."""
        if slots == 0:
            return dense
        sparse = self.attention in SPARSE_ATTENTIONS
        if sparse:
            attention = SPARSE_ATTENTIONS[self.attention](units, slots, self.top)
        else:
            attention = ATTENTIONS[self.attention](units, slots)
        return MemoryLayer(dense, attention, Memory(units, slots, sparse), COMPOSITIONS[self.composition](units))


@runtime_checkable
class LayerSpec(Protocol):
    """The specification of a layer."""

    def output(self, inputs: Shape) -> Shape:
        """The shape of the output for inputs of a given shape."""
        ...

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        """A module that returns an Activation, or a tensor if it has no parameters."""
        ...


@dataclass(frozen=True)
class DenseSpec:
    """h = phi(norm(W h_in + b)), with a memory of `slots` slots."""

    units: int
    slots: int = 0

    def output(self, inputs: Shape) -> Shape:
        return (self.units,)

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        return reading.around(Dense(math.prod(inputs), self.units, norm), self.units, self.slots)


@dataclass(frozen=True)
class ConvSpec:
    """A convolution with size x size filters; all positions read the same memory of `slots` slots."""

    channels: int
    size: int = 3
    stride: int = 1
    slots: int = 0

    def output(self, inputs: Shape) -> Shape:
        height, width, _ = _image(inputs, "conv")
        return -(-height // self.stride), -(-width // self.stride), self.channels

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        if self.size % 2 == 0:
            raise MemgenError(f"a conv layer needs an odd size, so that it has a middle, not {self.size}")
        conv = Conv(_image(inputs, "conv")[2], self.channels, self.size, self.stride, norm)
        return reading.around(conv, self.channels, self.slots)


@dataclass(frozen=True)
class UpsampleSpec:
    """Every position becomes factor x factor positions."""

    factor: int = 2

    def output(self, inputs: Shape) -> Shape:
        height, width, channels = _image(inputs, "upsample")
        return height * self.factor, width * self.factor, channels

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        return Upsample(self.factor)


@dataclass(frozen=True)
class ViewSpec:
    """The same numbers in another shape: a vector as an image."""

    shape: Shape

    def output(self, inputs: Shape) -> Shape:
        if math.prod(inputs) != math.prod(self.shape):
            raise MemgenError(f"{math.prod(inputs)} numbers cannot be seen as {_words(self.shape)}")
        return self.shape

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        return View(inputs, self.output(inputs))


LAYERS: dict[str, type[DenseSpec | ConvSpec | UpsampleSpec | ViewSpec]] = {
    "dense": DenseSpec,
    "conv": ConvSpec,
    "upsample": UpsampleSpec,
    "view": ViewSpec,
}
"""kind -> a record with `output(shape)` and `build(shape, norm, reading)`."""


def layer_spec(table: Mapping[str, Any]) -> DenseSpec | ConvSpec | UpsampleSpec | ViewSpec:
    """The record of a layer's table in a recipe.

    >>> layer_spec({"kind": "conv", "channels": 16, "size": 5})
    ConvSpec(channels=16, size=5, stride=1, slots=0)
    >>> layer_spec({"kind": "pool"})
    Traceback (most recent call last):
    memgen.errors.MemgenError: unknown kind of layer 'pool'. Choices: dense, conv, upsample, view
    """
    kind, values = table.get("kind", "dense"), {key: value for key, value in table.items() if key != "kind"}
    if kind not in LAYERS:
        raise unknown("kind of layer", str(kind), LAYERS)
    names = [field.name for field in fields(LAYERS[kind])]
    for name, value in values.items():
        if name not in names:
            raise unknown(f"setting of a {kind} layer", name, names)
        values[name] = _number(kind, name, value) if name != "shape" else tuple(_number(kind, name, n) for n in value)
    try:
        return LAYERS[kind](**values)
    except TypeError:
        raise MemgenError(
            f"a {kind} layer needs {', '.join(names)}, and this has {', '.join(values) or 'none'}"
        ) from None


def _number(kind: str, name: str, value: object) -> int:
    least = 0 if name == "slots" else 1
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise MemgenError(f"{name} of a {kind} layer must be a whole number from {least} on, not {value!r}")
    return value


def build_layers(
    specs: Sequence[LayerSpec], inputs: Shape, norm: Norm, reading: Reading | None = None
) -> tuple[list[nn.Module], Shape]:
    """The layers in the order in which they run, and the shape of the last one's output, which is always a vector: an
    image is flattened before a dense layer and at the end."""
    layers: list[nn.Module] = []
    for spec in specs:
        if isinstance(spec, DenseSpec):
            inputs = _flatten(layers, inputs)
        layers.append(spec.build(inputs, norm, reading or Reading()))
        inputs = spec.output(inputs)
    return layers, _flatten(layers, inputs)


def output_of(specs: Sequence[LayerSpec], inputs: Shape) -> int:
    """Number of features of the last layer's output."""
    for spec in specs:
        inputs = spec.output(inputs)
    return math.prod(inputs)


def _flatten(layers: list[nn.Module], inputs: Shape) -> Shape:
    if len(inputs) > 1:
        layers.append(View(inputs, (math.prod(inputs),)))
    return (math.prod(inputs),)


def _image(shape: Shape, kind: str) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise MemgenError(
            f"a {kind} layer needs an image of height x width x channels, not {_words(shape)}; a view makes one"
        )
    return shape[0], shape[1], shape[2]


def _words(shape: Shape) -> str:
    return " x ".join(map(str, shape))
