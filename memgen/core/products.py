"""W h + b by the fastest matrix library of torch for this processor.

torch multiplies by MKL, which uses only half of the vector width of AMD's processors. oneDNN, which torch also
contains, uses all of it. That is faster from family 26 (Zen 5) on, whose arithmetic units have the full width. On other
processors, or without oneDNN, this is torch.nn.functional.linear.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

LARGE = 2e6
"""Number of multiplications above which oneDNN is faster; its overhead per call is 30 microseconds higher."""


class Linear(nn.Linear):
    """torch.nn.Linear with the product of this file.

    >>> layer, h = Linear(3, 5), torch.randn(8, 3)
    >>> torch.allclose(layer(h), nn.functional.linear(h, layer.weight, layer.bias), atol=1e-6)
    True
    """

    def forward(self, h: Float[Tensor, "*rows inputs"]) -> Float[Tensor, "*rows outputs"]:
        return linear(h, self.weight, self.bias)


def linear(
    h: Float[Tensor, "*rows inputs"], W: Float[Tensor, "outputs inputs"], b: Float[Tensor, " outputs"] | None = None
) -> Float[Tensor, "*rows outputs"]:
    """W h + b"""
    if h.numel() * len(W) < LARGE or not _supported(h, W, b):
        return F.linear(h, W, b)
    return _Linear.apply(h, W, b)  # type: ignore[no-any-return, no-untyped-call]


class _Linear(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
        ctx.save_for_backward(h, W)
        return _product(h, W, b)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h, W = ctx.saved_tensors
        gradient = gradients[0].reshape(-1, len(W))
        to_h, to_W, to_b = ctx.needs_input_grad
        return (
            _product(gradient, W.t(), None).view_as(h) if to_h else None,
            _product(gradient.t(), h.reshape(-1, h.shape[-1]).t(), None) if to_W else None,
            gradient.sum(0) if to_b else None,
        )


def _product(h: Tensor, W: Tensor, b: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(h, W, b, "none", [], "")  # type: ignore[no-any-return]


def _supported(*tensors: Tensor | None) -> bool:
    """Whether the processor is suitable, all tensors are dense float32, and no transform of torch is active."""
    return (
        not torch.compiler.is_compiling()
        and _available()
        and all(t is None or (t.dtype is torch.float32 and t.device.type == "cpu") for t in tensors)
        and all(t is None or t.layout is torch.strided for t in tensors)
        and not torch.is_autocast_enabled("cpu")
        and torch._C._functorch.peek_interpreter_stack() is None
    )


FULL_WIDTH = 26
"""The first family of AMD's processors with arithmetic units for 16 floats. On the family before, oneDNN is slower: the
step of a two-level model took 1.02 to 1.16 times as long with it."""


@cache
def _available() -> bool:
    """Whether torch has oneDNN's product and it is faster on this processor."""
    path = Path("/proc/cpuinfo")
    return (
        path.is_file()
        and full_width(path.read_text())
        and torch.backends.mkldnn.is_available()
        and hasattr(torch.ops.mkldnn, "_linear_pointwise")
    )


def full_width(cpuinfo: str) -> bool:
    """Whether the text of /proc/cpuinfo is that of an AMD processor with arithmetic units for 16 floats.

    >>> full_width("vendor_id : AuthenticAMD\\ncpu family : 26")
    True
    """
    family = re.search(r"^cpu family\s*: (\d+)$", cpuinfo, re.MULTILINE)
    return "AuthenticAMD" in cpuinfo and family is not None and int(family[1]) >= FULL_WIDTH
