"""Training steps with oneDNN's matrix products and with torch's own, for models without an accelerated step.

    OMP_NUM_THREADS=1 python -m benchmarks.products [--rounds 9]

Each model trains for blocks of steps with either product in turn, on random rows. The figures are medians of the CPU
times of the blocks, and of the ratios of neighbouring blocks.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.speed.clock import spread, times_faster
from memgen.core import products
from memgen.core.model import Batch
from memgen.recipes.auto import auto_recipe
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training.execution import flushed_denormals
from memgen.training.fit import train_step
from memgen.training.state import begin

TWO_LEVELS = (
    "model.hidden=[[500, 500], [250]]",
    "model.latent=[100, 50]",
    "model.slots=[[70, 30], [20]]",
    "objective.local_reconstruction=[]",
)
COLUMNS = 50
"""Columns of the table."""
BLOCK = 20
"""Steps of a block at K = 1."""


def models() -> dict[str, Recipe]:
    """Two levels and layer norm in place of the MNIST MEM-VAE's batch norm, and the recipe `auto` of a table."""
    mnist = Recipe.named("mnist-mem-vae")
    changes = {"two levels": TWO_LEVELS, "layer norm": ("model.norm=layer",)}
    recipes = {
        f"{name}, K = {samples}": mnist.override([*changed, f"objective.samples={samples}"])
        for name, changed in changes.items()
        for samples in (1, 10)
    }
    table = auto_recipe(1000, COLUMNS, COLUMNS).override(["model.likelihood=gaussian"])
    return recipes | {"table of 50 columns, K = 10": table}


def step_of(recipe: Recipe, columns: int) -> Callable[[], Tensor]:
    x = torch.rand(recipe.training.batch_size, columns, generator=torch.Generator().manual_seed(0)).round()
    state = begin(build(recipe, columns), recipe)
    state.model.train()
    return lambda: train_step(state, Batch(x), recipe, 600)


def cpu_seconds(step: Callable[[], Tensor], steps: int) -> float:
    start = time.process_time()
    for _ in range(steps):
        step()
    return (time.process_time() - start) / steps


def measured(recipe: Recipe, rounds: int) -> tuple[list[float], list[float]]:
    """Seconds of a step in every block: with oneDNN, and with torch's products."""
    step = step_of(recipe, 784 if recipe.data.name == "mnist" else COLUMNS)
    steps = max(3, BLOCK // recipe.objective.samples)
    onednn, plain = [], []
    with flushed_denormals():
        cpu_seconds(step, 3)
        for _ in range(rounds):
            onednn.append(cpu_seconds(step, steps))
            with patch.object(products, "_available", lambda: False):
                plain.append(cpu_seconds(step, steps))
    return onednn, plain


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    rounds = parser.parse_args().rounds
    if not products._available():
        raise SystemExit("this processor uses torch's products; there is nothing to compare")
    for name, recipe in models().items():
        onednn, plain = measured(recipe, rounds)
        times = f"{1e3 * spread(onednn).median:7.2f} ms with oneDNN, {1e3 * spread(plain).median:7.2f} ms with torch's"
        print(f"{name:28s} {times} products, {times_faster(onednn, plain):.2f} x", flush=True)


if __name__ == "__main__":
    main()
