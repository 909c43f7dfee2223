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
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, Protocol, get_args, runtime_checkable

from pydantic import AfterValidator, ConfigDict, Field
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import nn

from memgen.core.convolution import Conv, Upsample, View
from memgen.core.layers import Dense, MemoryLayer
from memgen.core.memory import ATTENTIONS, COMPOSITIONS, SPARSE_ATTENTIONS, Memory
from memgen.errors import MemgenError

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


def _odd(size: int) -> int:
    if size % 2 == 0:
        raise MemgenError(f"a conv layer needs an odd size, so that it has a middle, not {size}")
    return size


RECORD = ConfigDict(extra="forbid", frozen=True)
LARGEST = 100_000_000
"""Units, slots, samples or rows; a product of two such sizes is a number of torch."""
Size = Annotated[int, Field(strict=True, ge=1, le=LARGEST)]
Slots = Annotated[int, Field(strict=True, ge=0, le=LARGEST)]


@checked_dataclass(config=RECORD)
class DenseSpec:
    """h = phi(norm(W h_in + b)), with a memory of `slots` slots."""

    units: Size
    slots: Slots = 0
    kind: Literal["dense"] = Field(default="dense", kw_only=True)

    def output(self, inputs: Shape) -> Shape:
        return (self.units,)

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        return reading.around(Dense(math.prod(inputs), self.units, norm), self.units, self.slots)


@checked_dataclass(config=RECORD)
class ConvSpec:
    """A convolution with size x size filters; all positions read the same memory of `slots` slots."""

    channels: Size
    size: Annotated[Size, AfterValidator(_odd)] = 3
    stride: Size = 1
    slots: Slots = 0
    kind: Literal["conv"] = Field(default="conv", kw_only=True)

    def output(self, inputs: Shape) -> Shape:
        height, width, _ = _image(inputs, "conv")
        return -(-height // self.stride), -(-width // self.stride), self.channels

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        conv = Conv(_image(inputs, "conv")[2], self.channels, self.size, self.stride, norm)
        return reading.around(conv, self.channels, self.slots)


@checked_dataclass(config=RECORD)
class UpsampleSpec:
    """Every position becomes factor x factor positions."""

    factor: Size = 2
    kind: Literal["upsample"] = Field(default="upsample", kw_only=True)

    def output(self, inputs: Shape) -> Shape:
        height, width, channels = _image(inputs, "upsample")
        return height * self.factor, width * self.factor, channels

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        return Upsample(self.factor)


@checked_dataclass(config=RECORD)
class ViewSpec:
    """The same numbers in another shape: a vector as an image."""

    shape: tuple[Size, ...]
    kind: Literal["view"] = Field(default="view", kw_only=True)

    def output(self, inputs: Shape) -> Shape:
        if math.prod(inputs) != math.prod(self.shape):
            raise MemgenError(f"{math.prod(inputs)} numbers cannot be seen as {_words(self.shape)}")
        return self.shape

    def build(self, inputs: Shape, norm: Norm, reading: Reading) -> nn.Module:
        return View(inputs, self.output(inputs))


Layer = DenseSpec | ConvSpec | UpsampleSpec | ViewSpec
LAYERS: dict[str, type[Layer]] = {record.kind: record for record in get_args(Layer)}
"""kind -> a record with `output(shape)` and `build(shape, norm, reading)`. A recipe has it as a table with its kind."""


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
