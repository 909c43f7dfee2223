"""Features of rows for other methods: the posterior mean and the last deterministic layer of Q."""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.batch import Batch as Batch
from memgen.core.batch import Rows, chunks
from memgen.core.layers import evaluating
from memgen.core.model import GenerativeModel, mean_code
from memgen.tasks.common import weights_of

CHUNK = 1000


class Features(NamedTuple):
    mean: Float[Tensor, "N d"]
    """The mean of q(z_1|x)."""
    last: Float[Tensor, "N units"]
    """The output of the last deterministic layer of Q, below z_1; the mean if there is no such layer."""


@torch.no_grad()
def features(model: GenerativeModel, rows: Rows) -> Features:
    """Features of every row, which do not depend on the other rows.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[8, 5]", "model.latent=2", "model.norm=none"]), columns=3)
    >>> mean, last = features(model, Batch(torch.rand(4, 3)))
    >>> mean.shape, last.shape
    (torch.Size([4, 2]), torch.Size([4, 5]))
    """
    means, outputs = [], []
    with evaluating(model):
        for part in chunks(rows, CHUNK):
            z, _, up = mean_code(model, rows.rows(part).to(weights_of(model)))
            means.append(z[0][0].cpu())
            layers = up[0] if up else ()
            outputs.append(layers[-1].output.cpu() if layers else means[-1])
    return Features(torch.cat(means), torch.cat(outputs))
