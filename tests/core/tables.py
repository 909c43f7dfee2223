"""A small table with a column of every kind, and a model of it."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from memgen.core.likelihoods.mixed import Kind
from memgen.core.model import DGM
from memgen.data.dataset import Dataset
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training.prepare import adapt, prepare

KINDS: list[Kind] = [("real", 0), ("categorical", 3), ("count", 0), ("binary", 2), ("positive", 0), ("real", 0)]


def table(n: int = 60, seed: int = 0) -> Tensor:
    """Rows of KINDS whose columns have to do with each other."""
    rng = np.random.default_rng(seed)
    t = rng.normal(size=n)
    columns = [
        1000 + 5 * t + rng.normal(size=n),
        (t > -0.5).astype(int) + (t > 0.5),
        rng.poisson(np.exp(1 + 0.5 * t)),
        (t + rng.normal(size=n) > 0).astype(int),
        np.exp(3 + t + 0.1 * rng.normal(size=n)),
        0.001 * t,
    ]
    return torch.tensor(np.stack(columns, 1), dtype=torch.float32)


def small(*more: str, kinds: list[Kind] = KINDS) -> tuple[DGM, Recipe]:
    settings = ["model.likelihood=mixed", "model.hidden=[8]", "model.latent=3", "model.norm=none", "model.mask=true"]
    recipe = Recipe().override([*settings, "training.evaluate_every=0", *more])
    return build(recipe, len(kinds), kinds), recipe


def adapted(*more: str) -> DGM:
    model, recipe = small(*more)
    adapt(prepare(recipe, Dataset("table", table()), model=model))
    return model.eval()
