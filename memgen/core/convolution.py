"""Layers for images. The feature axis is last, as in all layers: activations are (K, B, height, width, channels)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor, nn

from memgen.core.layers import Activation


class Folded(nn.Module):
    """A torch module for (rows, channels, height, width), applied to (..., height, width, channels).

    >>> Folded(nn.Conv2d(2, 5, 3))(torch.rand(4, 3, 8, 8, 2)).shape
    torch.Size([4, 3, 6, 6, 5])
    """

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, h: Float[Tensor, "*rows height width channels"]) -> Float[Tensor, "*rows _ _ _"]:
        out: Tensor = self.inner(h.flatten(0, -4).movedim(-1, 1)).movedim(1, -1)
        return out.reshape(*h.shape[:-3], *out.shape[1:])


class Conv(nn.Module):
    """h = phi(norm(W * h_in + b)), phi = ReLU: a convolution.

    A stride s computes one of every s x s positions. The image is padded with zeros.
    """

    def __init__(self, inputs: int, channels: int, size: int, stride: int, norm: Callable[[int], nn.Module]) -> None:
        super().__init__()
        inner = nn.Conv2d(inputs, channels, size, stride, padding=size // 2)
        nn.init.xavier_uniform_(inner.weight)
        nn.init.zeros_(inner.bias)  # type: ignore[arg-type]
        self.linear = Folded(inner)
        self.norm = norm(channels)

    def forward(self, h: Float[Tensor, "*rows height width channels"]) -> Activation:
        pre = self.linear(h)
        return Activation(pre, torch.relu(self.norm(pre)))


class Upsample(nn.Module):
    """Every position becomes factor x factor positions with the same features.

    >>> Upsample(2)(torch.tensor([[[[1.0]]]])).squeeze(-1)
    tensor([[[1., 1.],
             [1., 1.]]])
    """

    def __init__(self, factor: int) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, h: Float[Tensor, "*rows height width channels"]) -> Float[Tensor, "*rows _ _ channels"]:
        return h.repeat_interleave(self.factor, -3).repeat_interleave(self.factor, -2)


class View(nn.Module):
    """Each row reshaped from `before` to `after`."""

    def __init__(self, before: tuple[int, ...], after: tuple[int, ...]) -> None:
        super().__init__()
        self.before, self.after = before, after

    def forward(self, h: Float[Tensor, "..."]) -> Float[Tensor, "..."]:
        return h.reshape(*h.shape[: h.ndim - len(self.before)], *self.after)
