"""A tiny model in double precision, with one or two levels."""

from __future__ import annotations

import torch

from memgen.core.model import DGM
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe

LEVELS = {1: ["model.hidden=[3]", "model.latent=2"], 2: ["model.hidden=[[3], [3]]", "model.latent=[2, 1]"]}


def tiny(levels: int = 1) -> DGM:
    model = build(Recipe().override([*LEVELS[levels], "model.norm=none", "training.seed=5"]), 3)
    with torch.no_grad():
        for parameter in model.parameters():  # away from zero biases and from a q that is nearly the prior
            parameter.add_(
                0.5 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(parameter.numel()))
            )
    return model
