"""New rows from the prior."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.errors import MemgenError
from memgen.layers import require_statistics
from memgen.model import DGM
from memgen.seeds import Purpose, stream

ROWS = 100
"""Rows drawn from one generator. Fixed: it is part of what a seed means."""


@torch.no_grad()
def sample(model: DGM, n: int, *, seed: int = 0, draw: bool = False) -> Float[Tensor, "n D"]:
    """The means of p(x|z) for the first n draws of z from the prior, or with `draw` a draw of x for each.

    The first of them are the same however many are asked for.

    >>> from memgen.recipe import Recipe, build
    >>> model = build(Recipe().override(["model.norm=none"]), columns=4)
    >>> sample(model, 3, draw=True).unique()
    tensor([0., 1.])
    """
    if n < 1:
        raise MemgenError(f"the number of samples must be at least 1, not {n}")
    require_statistics(model)
    training = model.training
    model.eval()
    start, blocks = stream(seed, Purpose.SAMPLING), []
    for block in range(math.ceil(n / ROWS)):
        own = torch.Generator().manual_seed((start + block) % 2**32)
        p = model.generate(ROWS, own)
        blocks.append((p.sample(own) if draw else p.mean).cpu())
    model.train(training)
    return torch.cat(blocks)[:n]
