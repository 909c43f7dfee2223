"""New rows: from the prior, and around or between rows that are given."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import evaluating
from memgen.core.likelihoods import draw as draw_from
from memgen.core.model import DGM, Batch
from memgen.core.noise import Purpose, generator, stream
from memgen.errors import MemgenError

ROWS = 100
"""Rows drawn from one generator. Fixed: it is part of what a seed means."""


@torch.no_grad()
def sample(model: DGM, n: int, *, seed: int = 0, draw: bool = False, hold: int = 0) -> Float[Tensor, "n D"]:
    """The means of p(x|z) for the first n draws of z from the prior, or with `draw` a draw of x for each.

    The first of them are the same however many are asked for. z is drawn level by level from the top; the top `hold`
    levels are drawn once and shared by all rows: what differs then is what the levels below decide.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.norm=none"]), columns=4)
    >>> sample(model, 3, draw=True).unique()
    tensor([0., 1.])
    """
    if n < 1:
        raise MemgenError(f"the number of samples must be at least 1, not {n}")
    if not 0 <= hold <= len(model.latent):
        raise MemgenError(f"the levels that are held must be 0 to {len(model.latent)} for this model, not {hold}")
    start, blocks = stream(seed, Purpose.SAMPLING), []
    weights = next(model.parameters())
    shared: list[Tensor] = []
    with evaluating(model):
        for block in range(math.ceil(n / ROWS)):
            own = torch.Generator().manual_seed((start + block) % 2**32)
            noise = [torch.randn(1, ROWS, d, generator=own) for d in reversed(model.latent)]
            shared = shared or [level[:, :1].expand_as(level) for level in noise[:hold]]
            z = model.prior(tuple(level.to(weights) for level in reversed(shared + noise[hold:])))
            p = model.decode(z[0][0])
            blocks.append((draw_from(p, own) if draw else p.mean).cpu())
    return torch.cat(blocks)[:n]


@torch.no_grad()
def reconstruct(model: DGM, x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """The mean of p(x|z) at the mean of q(z_1|x): what the model keeps of each row."""
    return _decoded(model, _codes(model, x))


@torch.no_grad()
def interpolate(
    model: DGM, a: Float[Tensor, "N D"], b: Float[Tensor, "N D"], steps: int = 8
) -> Float[Tensor, "N steps D"]:
    """From each row of a to its row of b, ends included: spherical between the means of q(z_1|x), then decoded."""
    if steps < 2:
        raise MemgenError(f"an interpolation needs at least 2 steps, its two ends, not {steps}")
    z = slerp(_codes(model, a), _codes(model, b), steps)
    return _decoded(model, z)


def slerp(a: Float[Tensor, "N d"], b: Float[Tensor, "N d"], steps: int) -> Float[Tensor, "N steps d"]:
    """Turn the direction of a into that of b at a constant rate, while the length goes linearly from |a| to |b|.

    A straight line would pass nearer to the origin than nearly all of the prior's mass lies.

    >>> slerp(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), 3)[0, 1]
    tensor([0.7071, 0.7071])
    """
    t = torch.linspace(0, 1, steps).to(a).unsqueeze(-1)
    lengths = a.norm(dim=-1, keepdim=True).unsqueeze(1), b.norm(dim=-1, keepdim=True).unsqueeze(1)
    u, v = torch.nn.functional.normalize(a, dim=-1), torch.nn.functional.normalize(b, dim=-1)
    angle = torch.arccos((u * v).sum(-1, keepdim=True).clamp(-1, 1)).unsqueeze(1)
    u, v = u.unsqueeze(1), v.unsqueeze(1)
    turned = (torch.sin((1 - t) * angle) * u + torch.sin(t * angle) * v) / torch.sin(angle)
    # (Nearly) the same or the opposite direction leaves no plane to turn in: a straight line does.
    direction: Tensor = torch.where(torch.sin(angle) > 1e-4, turned, (1 - t) * u + t * v)
    length: Tensor = (1 - t) * lengths[0] + t * lengths[1]
    return length * direction


@torch.no_grad()
def walk(
    model: DGM, x: Float[Tensor, "1 D"], steps: int = 8, radii: tuple[float, ...] = (1.0, 2.0, 4.0), *, seed: int = 0
) -> Float[Tensor, "radii steps D"]:
    """Around one row: circles in a random plane through z = mean of q(z_1|x), with radii in units of the prior's
    standard deviation, so that the first and the last image of a circle are neighbours.
    """
    z = _codes(model, x)
    own = generator(seed, Purpose.WALK)
    plane = torch.linalg.qr(torch.randn(z.shape[-1], 2, generator=own)).Q.T.to(z)
    angles = 2 * math.pi * torch.arange(steps).to(z).unsqueeze(-1) / steps
    circle = torch.cos(angles) * plane[0] + torch.sin(angles) * plane[-1]
    return _decoded(model, torch.stack([z + radius * circle for radius in radii]))


def _codes(model: DGM, x: Float[Tensor, "N D"]) -> Float[Tensor, "N d"]:
    """The means of q(z_1|x)."""
    with evaluating(model):
        return model.encode(Batch.of(x.to(next(model.parameters())))).q.mean


def _decoded(model: DGM, z: Float[Tensor, "*rows d"]) -> Float[Tensor, "*rows D"]:
    with evaluating(model):
        return model.decode(z).mean.cpu()
