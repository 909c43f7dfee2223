"""A discrete model whose likelihood quadrature gives."""

from __future__ import annotations

import torch

from memgen.core.model import DGM, Batch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training.statistics import collect_statistics


def tiny_discrete(levels: int) -> DGM:
    """Three binary pixels, one or two one-dimensional levels, batch norm with collected statistics, memory."""
    shape = ["model.hidden=[6]", "model.latent=1", "model.slots=[4]"]
    if levels == 2:
        shape = ["model.hidden=[[6], [4]]", "model.latent=[1, 1]", "model.slots=[[4], [2]]"]
    model = build(Recipe().override([*shape, "training.seed=3"]), 3)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.add_(0.25 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)))
        # q wide beside p: the importance weights have a bounded variance, and so the estimate a known error.
        for nets, log_variance in ((model.q, 0.8), (model.p[1:], -0.5)):
            for net in nets:
                net.head.mean.weight.mul_(0.5)
                net.head.log_variance.weight.mul_(0.3)
                net.head.log_variance.bias.fill_(log_variance)
    collect_statistics(model, Batch.of((torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) < 0.5).float()))
    return model.eval()
