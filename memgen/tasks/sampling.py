"""New rows: samples from the prior, and points near or between given rows."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.layers import evaluating
from memgen.core.likelihoods import factorised
from memgen.core.model import Codes, GenerativeModel, Levels, mean_code
from memgen.core.noise import Purpose, generator, stream
from memgen.errors import MemgenError
from memgen.tasks.common import weights_of

ROWS = 100
"""Rows drawn from one generator. Another value would change the results of all seeds."""


class Sample(NamedTuple):
    """Rows, and the z that they were decoded from."""

    x: Float[Tensor, "n D"]
    z: Codes


def sample(
    model: GenerativeModel,
    n: int,
    *,
    seed: int = 0,
    draw: bool = False,
    hold: int = 0,
    label: Int[Tensor, " n"] | None = None,
) -> Float[Tensor, "n D"]:
    """The rows of `sample_with_codes`.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.norm=none"]), columns=4)
    >>> sample(model, 3, draw=True).unique()
    tensor([0., 1.])
    """
    return sample_with_codes(model, n, seed=seed, draw=draw, hold=hold, label=label).x


@torch.no_grad()
def sample_with_codes(
    model: GenerativeModel,
    n: int,
    *,
    seed: int = 0,
    draw: bool = False,
    hold: int = 0,
    label: Int[Tensor, " n"] | None = None,
) -> Sample:
    """The means of p(x|z) for n draws of z from the prior, or with `draw` a sample of x for each z; and z.

    Row i does not depend on n. z is drawn level by level from the top. The top `hold` levels are drawn once and shared
    by all rows, so that only the levels below differ. `label` has the class of each row, for a model of classes.
    """
    if n < 1:
        raise MemgenError(f"the number of samples must be at least 1, not {n}")
    if not 0 <= hold <= len(model.latent):
        raise MemgenError(f"the levels that are held must be 0 to {len(model.latent)} for this model, not {hold}")
    if label is not None and len(label) != n:
        raise MemgenError(f"{n} samples need as many labels, not {len(label)}")
    start, blocks = stream(seed, Purpose.SAMPLING), list[Sample]()
    columns, shared = model.likelihood.columns, list[Tensor]()
    with evaluating(model):
        for block in range(math.ceil(n / ROWS)):
            generator = torch.Generator().manual_seed((start + block) % 2**32)
            noise = [torch.randn(1, ROWS, d, generator=generator) for d in reversed(model.latent)]
            shared = shared or [level[:, :1].expand_as(level) for level in noise[:hold]]
            u = torch.rand(ROWS, columns, generator=generator, dtype=torch.float64) if draw else None
            unobserved = Batch.unobserved(ROWS, columns, _block_of(label, block)).to(weights_of(model))
            levels = tuple(level.to(unobserved.x) for level in reversed([*shared, *noise[hold:]]))
            blocks.append(_drawn(model, one(model.prior(levels, unobserved)), u, unobserved))
    z = tuple(torch.cat(level)[:n] for level in zip(*(block.z for block in blocks), strict=True))
    return Sample(torch.cat([block.x for block in blocks])[:n], z)


@torch.no_grad()
def sample_near(model: GenerativeModel, rows: Batch, n: int, *, seed: int = 0, draw: bool = False) -> Sample:
    """n draws of z from the aggregated posterior of the rows, 1/N sum_i q(z|x_i): for rows of one class, samples of
    that class from a model without classes. The rows of the result are means of p(x|z), or with `draw` samples of it.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.norm=none", "model.latent=2"]), columns=4)
    >>> sample_near(model, Batch(torch.ones(5, 4)), 3).z[0].shape
    torch.Size([3, 2])
    """
    if n < 1 or not len(rows):
        raise MemgenError(f"samples near rows need at least one row and one sample, not {len(rows)} and {n}")
    source = generator(seed, Purpose.SAMPLING)
    batch = rows.rows(torch.randint(len(rows), (n,), generator=source)).to(weights_of(model))
    noise = tuple(torch.randn(1, n, d, generator=source).to(batch.x) for d in model.latent)
    u = torch.rand(n, model.likelihood.columns, generator=source, dtype=torch.float64) if draw else None
    with evaluating(model):
        return _drawn(model, one(model.infer(model.encode(batch), noise).z), u, batch)


def _block_of(label: Int[Tensor, " n"] | None, block: int) -> Int[Tensor, " ROWS"] | None:
    """The labels of a block of rows; the last block is filled with copies of the last label."""
    if label is None:
        return None
    chosen = label[block * ROWS : (block + 1) * ROWS]
    return torch.cat([chosen, chosen[-1:].expand(ROWS - len(chosen))])


def _drawn(model: GenerativeModel, z: Codes, u: Float[Tensor, "n D"] | None, batch: Batch) -> Sample:
    """The means of p(x|z), or with u samples."""
    p = model.decode(z, batch)
    x = factorised(p, "the mean of a sample").mean if u is None else p.sample(u.to(batch.x))
    return Sample(x.cpu(), tuple(level.cpu() for level in z))


def one(z: Levels) -> Codes:
    """The first of K samples, without the sample axis."""
    return tuple(level[0] for level in z)


@torch.no_grad()
def reconstruct(model: GenerativeModel, batch: Batch) -> Float[Tensor, "N D"]:
    """The mean of p(x|z) at the mean of q(z|x), for each row."""
    return _decoded(model, _codes(model, batch), batch)


@torch.no_grad()
def interpolate(model: GenerativeModel, a: Batch, b: Batch, steps: int = 8) -> Float[Tensor, "N steps D"]:
    """Decoded spherical interpolation of the means of q(z|x), from each row of a to its row of b, both included."""
    if steps < 2:
        raise MemgenError(f"an interpolation needs at least 2 steps, its two ends, not {steps}")
    pairs = zip(_codes(model, a), _codes(model, b), strict=True)
    return _decoded(model, tuple(slerp(first, second, steps).transpose(0, 1) for first, second in pairs), a).transpose(
        0, 1
    )


def slerp(a: Float[Tensor, "N d"], b: Float[Tensor, "N d"], steps: int) -> Float[Tensor, "N steps d"]:
    """Spherical interpolation: the direction turns from a to b at a constant rate, the length is linear in between.

    A straight line would pass nearer to the origin than nearly all samples of the prior.

    >>> slerp(torch.tensor([[1.0, 0.0]]), torch.tensor([[0.0, 1.0]]), 3)[0, 1]
    tensor([0.7071, 0.7071])
    """
    t = torch.linspace(0, 1, steps).to(a).unsqueeze(-1)
    lengths = a.norm(dim=-1, keepdim=True).unsqueeze(1), b.norm(dim=-1, keepdim=True).unsqueeze(1)
    u, v = torch.nn.functional.normalize(a, dim=-1), torch.nn.functional.normalize(b, dim=-1)
    angle = torch.arccos((u * v).sum(-1, keepdim=True).clamp(-1, 1)).unsqueeze(1)
    u, v = u.unsqueeze(1), v.unsqueeze(1)
    turned = (torch.sin((1 - t) * angle) * u + torch.sin(t * angle) * v) / torch.sin(angle)
    # If the directions are (nearly) equal or opposite, the plane is undefined, and a straight line is used.
    direction: Tensor = torch.where(torch.sin(angle) > 1e-4, turned, (1 - t) * u + t * v)
    length: Tensor = (1 - t) * lengths[0] + t * lengths[1]
    return length * direction


@torch.no_grad()
def walk(
    model: GenerativeModel, row: Batch, steps: int = 8, radii: tuple[float, ...] = (1.0, 2.0, 4.0), *, seed: int = 0
) -> Float[Tensor, "radii steps D"]:
    """Decoded circles around one row, in a random plane through the mean of q(z_1|x).

    The radii are in units of the prior's standard deviation. The last image of a circle is next to the first one.
    """
    z, *above = _codes(model, row)
    plane = torch.linalg.qr(torch.randn(z.shape[-1], 2, generator=generator(seed, Purpose.WALK))).Q.T.to(z)
    angles = 2 * math.pi * torch.arange(steps).to(z).unsqueeze(-1) / steps
    circle = torch.cos(angles) * plane[0] + torch.sin(angles) * plane[-1]
    circles = torch.stack([z + radius * circle for radius in radii]).unsqueeze(-2)
    return _decoded(model, (circles, *(level.expand(len(radii), steps, 1, -1) for level in above)), row).squeeze(-2)


def _codes(model: GenerativeModel, batch: Batch) -> Codes:
    """The mean of q(z|x), per level."""
    with evaluating(model):
        return one(mean_code(model, batch.to(weights_of(model))).z)


def _decoded(model: GenerativeModel, z: Codes, batch: Batch) -> Float[Tensor, "*rows D"]:
    with evaluating(model):
        return factorised(model.decode(z, batch.to(weights_of(model))), "decoding to means").mean.cpu()
