"""A small model, grey rows to train it on, and comparisons of weights."""

from __future__ import annotations

import torch
from torch import Tensor

from memgen.core.model import DGM
from memgen.data import Dataset
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe

SMALL = ["model.hidden=[12]", "model.latent=3", "model.slots=[4]", "training.epochs=3", "training.batch_size=16"]


def coins(n: int = 50, columns: int = 6) -> Dataset:
    own = torch.Generator().manual_seed(0)
    rows = torch.rand(n + 20, columns, generator=own)
    return Dataset("coins", rows[:n], rows[n : n + 10], rows[n + 10 :], stochastic=True)


def small(*more: str) -> tuple[Recipe, DGM]:
    recipe = Recipe().override([*SMALL, *more])
    return recipe, build(recipe, 6)


def weights(model: DGM) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained(model: DGM) -> dict[str, Tensor]:
    """Without the statistics, which are forgotten while training."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)
