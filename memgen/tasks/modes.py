"""Modes of p(x, z) over z, and the Gaussians around them that approximate p(z|x)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from memgen.core.likelihoods import LOG_2PI

TRIALS = 75
"""Steps that are tried from every start."""
ENOUGH = 1e-4
"""A step must gain this fraction of what the slope promises, otherwise a shorter one is tried."""
LEAST_GAIN = 1e-6
SHORTER = 0.3
SHORTEST = 1e-8
"""Steps so short begin the approximation of the second derivatives anew."""
WIDEST = 2.0
"""The largest standard deviation of a Gaussian around a mode; the prior's is 1."""

Target = Callable[[Float64[Tensor, "S B n"]], Float64[Tensor, "S B"]]
"""z, all levels side by side -> log p(x, z)"""


@dataclass(frozen=True)
class GaussianAt:
    """N(mode, scale^2 C^-1): C has the eigenvalues `precision` and the eigenvectors `axes`."""

    mode: Float64[Tensor, "B n"]
    precision: Float64[Tensor, "B n"]
    axes: Float64[Tensor, "B n n"]
    scale: float

    def sample(self, noise: Float64[Tensor, "K B n"]) -> Float64[Tensor, "K B n"]:
        return self.mode + self.scale * torch.einsum("bij,kbj->kbi", self.axes, noise / self.precision.sqrt())

    def log_prob(self, z: Float64[Tensor, "K B n"]) -> Float64[Tensor, "K B"]:
        noise = torch.einsum("bij,kbi->kbj", self.axes, z - self.mode) * self.precision.sqrt() / self.scale
        log_volume = 0.5 * self.precision.log().sum(-1) - z.shape[-1] * math.log(self.scale)
        return log_volume - 0.5 * (noise.square() + LOG_2PI).sum(-1)


def gaussians_at_modes(
    f: Target, starts: Float64[Tensor, "S B n"], modes: int, scales: tuple[float, ...]
) -> list[GaussianAt]:
    """Gaussians around the highest `modes` of the points that are reached from the starts, with minus the inverse of
    the second derivatives as covariance (Laplace's approximation), times the squares of the scales.

    >>> gaussian = gaussians_at_modes(lambda z: -2 * (z - 3).square().sum(-1), torch.zeros(1, 1, 2).double(), 1, (1.0,))
    >>> gaussian[0].mode.round(decimals=6), gaussian[0].precision
    (tensor([[3., 3.]], dtype=torch.float64), tensor([[4., 4.]], dtype=torch.float64))
    """
    z, height = climb(f, starts)
    z = z[height.topk(modes, 0).indices, torch.arange(z.shape[1], device=z.device)]
    precision, axes = torch.linalg.eigh(curvature(f, z))
    precision = precision.clamp_min(WIDEST**-2)
    return [GaussianAt(z[m], precision[m], axes[m], scale) for m in range(len(z)) for scale in scales]


class Place(NamedTuple):
    """A point, f and its gradient there."""

    z: Float64[Tensor, "S B n"]
    value: Float64[Tensor, "S B"]
    gradient: Float64[Tensor, "S B n"]


def climb(f: Target, starts: Float64[Tensor, "S B n"]) -> tuple[Float64[Tensor, "S B n"], Float64[Tensor, "S B"]]:
    """The points that the method of Broyden, Fletcher, Goldfarb and Shanno reaches from the starts, and f there.

    It climbs ridges too, where f has no derivatives (Lewis and Overton, 2013); with rectified linear units log p(x, z)
    has many. Every point takes its own steps: the step H gradient, or a shorter one if it gains too little. A point
    rests after a step that gains less than LEAST_GAIN.
    """
    here = place(f, starts)
    inverse, length = first_inverse(here.gradient), torch.ones_like(here.value)
    moving = torch.ones_like(here.value, dtype=torch.bool)
    for _ in range(TRIALS):
        direction = torch.einsum("sbij,sbj->sbi", inverse, here.gradient)
        there = place(f, here.z + length.unsqueeze(-1) * direction)
        slope = (direction * here.gradient).sum(-1)
        better = moving & (there.value > here.value + ENOUGH * length * slope)
        moving = moving & ~(better & (there.value - here.value < LEAST_GAIN))
        inverse = _select(better, updated(inverse, there.z - here.z, here.gradient - there.gradient), inverse)
        here = Place(*(_select(better, new, old) for new, old in zip(there, here, strict=True)))
        length = torch.where(better, 1, SHORTER * length)
        stuck = length < SHORTEST
        inverse, length = _select(stuck, first_inverse(here.gradient), inverse), length.where(~stuck, 1)
        if not bool(moving.any()):
            break
    return here.z, here.value


def place(f: Target, z: Float64[Tensor, "S B n"]) -> Place:
    """f and its gradient; -inf and 0 where one of them is not finite."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        value = f(z)
        (gradient,) = torch.autograd.grad(value.sum(), z)
    finite = value.isfinite() & gradient.isfinite().all(-1)
    return Place(z.detach(), value.detach().where(finite, -torch.inf), gradient.where(finite.unsqueeze(-1), 0))


def first_inverse(gradient: Float64[Tensor, "S B n"]) -> Float64[Tensor, "S B n n"]:
    """A multiple of the identity with which the first step has at most the length 1."""
    size: Tensor = gradient.norm(dim=-1).clamp_min(1)[..., None, None]
    return torch.eye(gradient.shape[-1]).to(gradient) / size


def updated(
    H: Float64[Tensor, "S B n n"], step: Float64[Tensor, "S B n"], fall: Float64[Tensor, "S B n"]
) -> Float64[Tensor, "S B n n"]:
    """(I - r s y') H (I - r y s') + r s s', r = 1 / s'y, for a step s on which the gradient falls by y; H where s'y is
    not positive."""
    product = (step * fall).sum(-1)
    concave = product > 1e-12 * step.norm(dim=-1) * fall.norm(dim=-1)
    r = 1 / product.where(concave, 1)
    Hy = torch.einsum("sbij,sbj->sbi", H, fall)
    once = Hy.unsqueeze(-1) * step.unsqueeze(-2)
    twice = (r * (1 + r * (fall * Hy).sum(-1)))[..., None, None] * step.unsqueeze(-1) * step.unsqueeze(-2)
    return _select(concave, H - r[..., None, None] * (once + once.mT) + twice, H)


def curvature(f: Target, z: Float64[Tensor, "S B n"]) -> Float64[Tensor, "S B n n"]:
    """Minus the second derivatives; the identity where they are not finite."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        (gradient,) = torch.autograd.grad(f(z).sum(), z, create_graph=True)
        rows = [torch.autograd.grad(gradient[..., i].sum(), z, retain_graph=True)[0] for i in range(z.shape[-1])]
    result = -torch.stack(rows, -2)
    return _select(result.isfinite().all(-1).all(-1), result, torch.eye(z.shape[-1]).to(z).expand_as(result))


def _select(chosen: Tensor, new: Tensor, old: Tensor) -> Tensor:
    return torch.where(chosen.view(*chosen.shape, *[1] * (new.ndim - chosen.ndim)), new, old)
