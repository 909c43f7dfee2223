"""The gain from each piece of the fast training step: how many times as long a step takes without it.

    python -m benchmarks.pieces [--recipe mnist-mem-vae] [--samples 1] [--rounds 9] [--steps 15] [--compile]

A step of a recipe (mnist-mem-vae if none is named) on MNIST, or on random rows where the recipe is of another width.
One model, which has trained for 30 steps (for the division of rows a second one); the pieces are taken out one at a
time, in blocks that alternate in one process. With --compile also a model whose loss torch.compile has made of the
plain formulas. The figures are medians of blocks and of ratios of neighbouring blocks.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from unittest.mock import patch

import torch
from torch import Tensor

from benchmarks.speed.clock import seconds, spread, times_faster
from benchmarks.speed.rows import rows as mnist
from memgen.accelerate.calls import bind
from memgen.accelerate.library import library
from memgen.core.model import Batch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training.batches import byte_levels, drawn
from memgen.training.execution import flushed_denormals
from memgen.training.fit import train_step
from memgen.training.state import begin

DIVIDED = "rows divided among workers"
"""Without it all threads work on each call together; a model of its own."""
OPTIMIZER, FLUSHING, BYTES = "accelerated optimizer", "flushing denormals", "bytes"
PLANNED = "the planned step"
"""Without it autograd finds the gradients of the plain formulas."""
PRODUCTS = "matrix products of our own"
"""Without them those of torch's BLAS."""
PIECES = (PLANNED, PRODUCTS, OPTIMIZER, FLUSHING, BYTES)


def use_own_products(on: bool) -> None:
    bind("use_own_products", on, torch.zeros((), dtype=torch.int64))()


@contextmanager
def without(*pieces: str) -> Iterator[None]:
    """Inside, these pieces are missing."""
    with ExitStack() as stack:
        if PLANNED in pieces:
            stack.enter_context(patch("memgen.training.execution.PlannedSteps.find", lambda *arguments: None))
        if OPTIMIZER in pieces:
            stack.enter_context(patch("memgen.accelerate.optimizer_step", lambda *arguments: None))
        if PRODUCTS in pieces and library() is not None:
            use_own_products(False)
            stack.callback(use_own_products, True)
        stack.enter_context(nullcontext() if FLUSHING in pieces else flushed_denormals())
        yield


def step_of(rows: Tensor, recipe: Recipe, compiled: bool = False) -> Callable[[bool], None]:
    state, levels = begin(build(recipe), recipe, compiled), byte_levels(rows)
    state.model.train()
    chosen = torch.arange(recipe.training.batch_size)

    def step(use_bytes: bool = True) -> None:
        x = drawn(rows, levels if use_bytes else None, chosen, state.generator)
        train_step(state, Batch(x), recipe, 600)
        state.step += 1

    return step


def whole_step(rows: Tensor, recipe: Recipe) -> Callable[[bool], None]:
    """The step with all threads at work on each call."""
    step = step_of(rows, recipe)
    with patch("memgen.accelerate.step.ENTRIES", 10**12):
        for _ in range(30):  # in the first of these it is planned
            step(True)
    return step


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--recipe", default="mnist-mem-vae")
    parser.add_argument("--samples", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--steps", type=int, default=15)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    rows, _, what = mnist()
    recipe = Recipe.named(options.recipe).override(f"objective.samples={options.samples}")
    columns = build(recipe).likelihood.columns
    if columns != rows.shape[1]:
        rows, what = torch.randint(256, (1000, columns)) / 256, "random rows"
    fast_step = step_of(rows, recipe)
    cases: dict[str, tuple[Callable[[bool], None], tuple[str, ...]]] = {"all of it": (fast_step, ())}
    for piece in PIECES:
        cases[f"without {piece}"] = fast_step, (piece,)
    if torch.get_num_threads() > 1:
        cases[f"without {DIVIDED}"] = whole_step(rows, recipe), ()
    cases["without any of these"] = fast_step, PIECES
    if options.compile:
        cases["torch.compile of the loss"] = step_of(rows, recipe, compiled=True), ()
    blocks: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(30):
        with without():
            fast_step(True)
    for _ in range(options.rounds):
        for name, (step, pieces) in cases.items():
            with without(*pieces):
                step(True)
                blocks[name].append(seconds(lambda: step(BYTES not in pieces), options.steps))  # noqa: B023
    batch, threads = recipe.training.batch_size, torch.get_num_threads()
    print(f"{options.recipe}, batch {batch}, K = {options.samples}, {threads} threads, {what}, {options.rounds} blocks")
    for name, taken in blocks.items():
        ratio = times_faster(blocks["all of it"], taken)
        print(f"{name:34s} {1e3 * spread(taken).median:8.1f} ms a step, {ratio:.2f} x all of it")


if __name__ == "__main__":
    main()
