"""One point of growth in a process of its own, so that its peak memory is its own:

    python -m benchmarks.speed.child '{"recipe": "mnist-vae", "set": [], "samples": null, "warm": 5, "repeats": 3, ...}'

With "samples" it scores images with that number of samples, without it trains. It prints the seconds of every
repetition, the peak memory, and the memory before there was a model.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from benchmarks.speed.clock import repeated, seconds
from benchmarks.speed.evaluation import BATCH_SIZE, memgen_scores, trained
from benchmarks.speed.machine import peak_memory
from benchmarks.speed.rows import stand_in
from benchmarks.speed.steps import memgen_steps
from memgen.core.noise import binarise
from memgen.recipes.settings import Recipe

WARM_SECONDS = 3.0
BLOCK_SECONDS = 0.1
"""A block has as many steps as take about this long."""
SECONDS = 20.0
"""After which no new block begins."""


def action(spec: dict[str, Any]) -> tuple[Callable[[int], float], int]:
    """The seconds of each of a number of calls, and how many units (steps or images) a call is."""
    recipe, rows = Recipe.named(spec["recipe"]).override(spec["set"]), stand_in()
    if spec["samples"] is None:
        return memgen_steps(rows, recipe)[1], 1
    x = binarise(rows[: BATCH_SIZE * torch.get_num_threads()])  # a batch for every thread: they are in memory together
    return partial(seconds, memgen_scores(trained(rows, recipe, 1), x, spec["samples"])), len(x)


def main(text: str) -> None:
    spec = json.loads(text)
    torch.set_num_threads(spec["threads"])
    before = peak_memory()
    run, units = action(spec)
    # Weights at their start are not what one trains with, but training each for minutes would take too long.
    warm = repeated(run, 1, spec["warm"], WARM_SECONDS)
    block = max(1, round(BLOCK_SECONDS / min(warm)))
    times = [taken / units for taken in repeated(run, block, spec["repeats"], SECONDS)]
    peak = max(before, peak_memory())  # Linux counts pages approximately, so that its mark can fall by a few
    print(json.dumps({"seconds": times, "peak_bytes": peak, "before_bytes": before}))


if __name__ == "__main__":
    main(sys.argv[1])
