"""What Q sees in a row: the posterior mean and the last deterministic layer, as features for other methods."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import evaluating
from memgen.core.model import DGM, Batch

CHUNK = 1000


class Features(NamedTuple):
    mean: Float[Tensor, "N d"]
    """The mean of q(z_1|x)."""
    last: Float[Tensor, "N units"]
    """The output of the last deterministic layer of Q, below z_1; the mean itself where there is no such layer."""


@torch.no_grad()
def features(model: DGM, x: Float[Tensor, "N D"]) -> Features:
    """Features of every row, in which NaN is missing; they depend on nothing but the row.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[8, 5]", "model.latent=2", "model.norm=none"]), columns=3)
    >>> found = features(model, torch.rand(4, 3))
    >>> found.mean.shape, found.last.shape
    (torch.Size([4, 2]), torch.Size([4, 5]))
    """
    weights = next(model.parameters())
    means, lasts = [], []
    with evaluating(model):
        for rows in x.split(CHUNK):
            q, layers = model.encode(Batch.of(rows.to(weights)))
            means.append(q.mean.cpu())
            lasts.append((layers[-1].output if layers else q.mean).cpu())
    return Features(torch.cat(means), torch.cat(lasts))
