"""Preferences of rows for slots: their summary, and their relation to classes."""

from __future__ import annotations

import math
from contextlib import ExitStack
from typing import NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from memgen.core.batch import UNKNOWN, Rows, chunks
from memgen.core.batch import Batch as Batch
from memgen.core.layers import evaluating
from memgen.core.memory import Preference
from memgen.core.model import GenerativeModel
from memgen.core.noise import RowNoise
from memgen.tasks.common import weights_of
from memgen.tasks.inspection.places import Place, dense, hooked, require_memory

CHUNK = 1000
DEAD = 0.1
"""A slot is dead if its preference is below this fraction of the mean, 1/slots, in every row."""


@torch.no_grad()
def preferences(model: GenerativeModel, rows: Rows, *, seed: int = 0) -> dict[str, Float[Tensor, "N slots"]]:
    """h_a of every row for one z ~ q(z|x), divided by its sum. If a layer reads at every position of an
    image, the mean over the positions.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[8]", "model.slots=[5]", "model.norm=none"]), columns=3)
    >>> preferences(model, Batch(torch.rand(4, 3)))["layer 1"].sum(-1).allclose(torch.ones(4))
    True
    """
    weights, layers = weights_of(model), require_memory(model)
    parts: dict[str, list[Tensor]] = {place.name: [] for place in layers}
    with evaluating(model), ExitStack() as stack:
        for place in layers:

            def keep(h_a: Preference, place: Place = place) -> None:
                parts[place.name].append(_normalised(h_a, place).cpu())

            stack.enter_context(hooked(place.layer.attention, keep))
        for where in chunks(rows, CHUNK):
            batch = rows.rows(where).to(weights)
            row_noise = RowNoise(seed, range(where.start, where.stop), model.latent, 0, weights.device)
            noise = tuple(level.to(weights) for level in next(row_noise.steps()).normal)
            model.joint(batch, model.infer(model.encode(batch), noise).z)
    return {name: torch.cat(part) for name, part in parts.items()}


def _normalised(h_a: Preference, place: Place) -> Float[Tensor, "B slots"]:
    """h_a of K = 1 sample, divided by its sum."""
    h = dense(h_a, place.slots)[0]
    normalised = h / h.sum(-1, keepdim=True).clamp_min(1e-30)
    return normalised if normalised.ndim == 2 else normalised.flatten(1, -2).mean(1)


def by_class(h: Float[Tensor, "N slots"], labels: Int[Tensor, " N"]) -> Float[Tensor, "classes slots"]:
    """The mean of each class, in the order of the classes; rows of unknown class are left out."""
    return torch.stack([h[labels == label].mean(0) for label in labels[labels != UNKNOWN].unique()])


def correlation(a: Float[Tensor, "classes columns"]) -> Float[Tensor, "classes classes"]:
    """Correlation coefficients between the classes' rows."""
    return torch.corrcoef(a.double()).float()


def resemblance(a: Float[Tensor, "classes classes"], b: Float[Tensor, "classes classes"]) -> float | None:
    """Similarity of two correlation matrices: the correlation of the entries above their diagonals.

    None with fewer than three classes, or if the entries of a matrix are all equal.

    >>> a = torch.corrcoef(torch.randn(5, 9))
    >>> round(resemblance(a, a) or 0.0, 5)
    1.0
    """
    if len(a) < 3:
        return None
    above = torch.triu_indices(len(a), len(a), 1)
    pair = torch.stack([a[above[0], above[1]], b[above[0], above[1]]]).double()
    value = float(torch.corrcoef(pair)[0, 1])
    return value if math.isfinite(value) else None


class Usage(NamedTuple):
    """The distribution of the rows' preferences over the slots."""

    share: Float[Tensor, " slots"]
    """Mean preference over rows."""
    used: Float[Tensor, " slots"]
    """Fraction of the rows whose preference for the slot exceeds 1/slots."""
    top: Float[Tensor, " slots"]
    """Fraction of the rows that prefer the slot to all others."""
    entropy: float
    """Entropy of a row's preference, in nats, mean over rows; exp(entropy) is an effective number of slots."""
    dead: list[int]


def usage(h: Float[Tensor, "N slots"]) -> Usage:
    """The summary of preferences that sum to one per row.

    >>> result = usage(torch.eye(3)[:2])
    >>> result.share, result.dead
    (tensor([0.5000, 0.5000, 0.0000]), [2])
    """
    slots = h.shape[-1]
    entropy = -torch.xlogy(h, h).sum(-1).mean()
    top = torch.bincount(h.argmax(-1), minlength=slots) / len(h)
    dead = (h.amax(0) < DEAD / slots).nonzero().flatten().tolist()
    return Usage(h.mean(0), (h > 1 / slots).float().mean(0), top, float(entropy) + 0.0, dead)
