"""How time and memory grow: with slots, width, K and batch in training, with K in evaluation."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch

from benchmarks.speed.clock import spread
from benchmarks.speed.limit import outline, products
from benchmarks.speed.machine import free_memory
from benchmarks.speed.record import Record, Scale
from memgen.core.model import count_parameters
from memgen.recipes.settings import Recipe

RECIPE = "mnist-mem-vae"
SECTION = "growth"
SLOTS: dict[str, tuple[int, ...]] = {"sigmoid": (100, 1000, 10_000), "product": (2**10, 2**14, 2**16, 2**20)}
"""attention -> slots of one memory, in the layer next to the data."""
LARGE_K = 50
"""At which the fewest and the most slots are measured too."""

KEPT = 12
"""Measured, with the composition mlp: growth of the peak with K."""


class Point(NamedTuple):
    """What a child process measures."""

    axis: str
    value: int
    overrides: tuple[str, ...] = ()
    samples: int | None = None
    """Importance samples of an evaluation; None: a training step."""
    note: str = ""


def points(scale: Scale) -> Iterator[Point]:
    for attention, counts in SLOTS.items():
        for n in counts:
            if n <= scale.slots:
                changes = (f"model.slots=[{n}, 0]", f"model.attention={attention}")
                yield Point("slots", n, changes, note=f"{attention} attention")
    for attention, n in (("sigmoid", 100), ("product", 2**20)):
        if n <= scale.slots and max(scale.samples) >= LARGE_K:
            settings = (f"model.slots=[{n}, 0]", f"model.attention={attention}", f"objective.samples={LARGE_K}")
            yield Point(f"slots at K = {LARGE_K}", n, settings, note=f"{attention} attention")
    for width in scale.widths:
        yield Point("width", width, (f"model.hidden=[{width}, {width}]",))
    for K in scale.growing_samples:
        yield Point("K", K, (f"objective.samples={K}",))
    for batch in scale.batches:
        yield Point("batch", batch, (f"training.batch_size={batch}",))
    for samples in scale.growing_evaluation:
        yield Point("samples of an evaluation", samples, samples=samples)


def bytes_needed(recipe: Recipe) -> int:
    """Roughly the memory of a training step: weights, gradients and two moments; and KEPT numbers for every output of a
    linear map, which is what layers, likelihood and their gradients keep.
    """
    forward = products(recipe, recipe.objective.samples, recipe.training.batch_size)
    outputs = sum(product.rows * product.columns for product in forward if product.name.endswith(" forward"))
    return 4 * (4 * count_parameters(outline(recipe)) + KEPT * outputs)


def growth_section(scale: Scale, tell: Callable[[str], None]) -> list[Record]:
    records = []
    for point in points(scale):
        tell(f"growth: {point.axis} = {point.value:,}")
        records.append(measure(point, scale))
    return records


def measure(point: Point, scale: Scale) -> Record:
    """A point in its own process; a row with a note where it cannot be."""
    per = "step" if point.samples is None else "image"
    settings: dict[str, Any] = {"grows": point.axis, "to": point.value}
    recipe = Recipe.named(RECIPE).override(list(point.overrides))
    needed, free = bytes_needed(recipe), free_memory()
    if point.samples is None and needed > free:
        reason = f"skipped: needs about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are free"
        return Record(SECTION, "memgen", settings, per, note=reason)
    spec = {
        "recipe": RECIPE,
        "set": point.overrides,
        "samples": point.samples,
        "warm": scale.warm,
        "repeats": scale.child_repeats,
        "threads": torch.get_num_threads(),
    }
    command = [sys.executable, "-m", "benchmarks.speed.child", json.dumps(spec)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["no message"])[-1]
        return Record(SECTION, "memgen", settings, per, note=f"failed with exit code {done.returncode}: {last}")
    measured = json.loads(done.stdout)
    before = f"{measured['before_bytes'] / 1e6:.0f} MB before the model"
    note = f"{point.note}, {before}" if point.note else before
    return Record(
        SECTION, "memgen", settings, per, spread(measured["seconds"]), peak_bytes=measured["peak_bytes"], note=note
    )
