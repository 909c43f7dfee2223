"""A training step: memgen beside a plain loop and beside pythae."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.speed.clock import Action, alternate, part_of, seconds, spread, times_faster
from benchmarks.speed.limit import ONLY, RECIPES, WARM, Fastest, Product, Shape, flops, in_order, products, total
from benchmarks.speed.loop import loop_step
from benchmarks.speed.peer import missing, peer
from benchmarks.speed.record import Record, Scale
from benchmarks.speed.rows import batches
from memgen.core.model import Batch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training.batches import byte_levels, drawn
from memgen.training.execution import flushed_denormals
from memgen.training.fit import train_step
from memgen.training.state import State, begin

BATCH = 100
STEPS_PER_EPOCH = 600
SECTION = "steps"
SINGLE = "memgen, single"
"""With the estimator that back-propagates through one of the K samples."""
COMPILED = "memgen, compiled"
"""As `memgen train --compile` has it."""


Steps = Callable[[int], float]
"""Does a step, in which it may have to allocate memory, and then the given number; returns the seconds of each."""


class Way(NamedTuple):
    """How memgen does a step."""

    recipe: Recipe
    compiled: bool = False


def memgen_steps(rows: Float[Tensor, "N D"], recipe: Recipe, compiled: bool = False) -> tuple[State, Steps]:
    """Training steps of memgen, each with the next rows; and the state that they change."""
    state = begin(build(recipe), recipe, compiled)
    state.model.train()
    levels, feed = byte_levels(rows), batches(torch.arange(len(rows)).unsqueeze(1), recipe.training.batch_size)

    def step() -> None:
        x = drawn(rows, levels, next(feed)[:, 0], state.generator)
        train_step(state, Batch(x), recipe, STEPS_PER_EPOCH)
        state.step += 1

    def steps(count: int) -> float:
        with flushed_denormals():  # as in an epoch; the others in this table decide for themselves
            return repeating(step)(count)

    return state, steps


def repeating(step: Action) -> Steps:
    def steps(count: int) -> float:
        step()
        return seconds(step, count)

    return steps


def ways(recipe: Recipe, compiled: bool) -> dict[str, Way]:
    """The ways in which memgen itself can do the step; another one is a line here."""
    by_name = {"memgen": Way(recipe)}
    if compiled:
        by_name[COMPILED] = Way(recipe, True)
    if recipe.objective.samples > 1:
        by_name[SINGLE] = Way(recipe.override("objective.estimator=single"))
    return by_name


def can_compile() -> bool:
    """Whether there is the C++ compiler that torch.compile asks for."""
    return shutil.which(os.environ.get("CXX") or "g++") is not None


def steps_section(
    scale: Scale, fastest: Fastest, rows: Float[Tensor, "N D"], tell: Callable[[str], None]
) -> list[Record]:
    records = []
    for name in RECIPES:
        for K in scale.samples:
            tell(f"training steps of {name}, K = {K}")
            records += compare(name, K, scale, fastest, rows)
    if absent := missing():
        records.append(Record(SECTION, "pythae", {}, "step", note=absent))
    if scale.compiled and not can_compile():
        records.append(
            Record(SECTION, COMPILED, {}, "step", note="not measured: there is no C++ compiler (g++, or CXX)")
        )
    return records


def compare(name: str, K: int, scale: Scale, fastest: Fastest, rows: Float[Tensor, "N D"]) -> list[Record]:
    """All candidates for one recipe and one K, and the limit, in alternating blocks."""
    recipe = Recipe.named(name).override([f"objective.samples={K}", f"training.batch_size={BATCH}"])
    ours = ways(recipe, scale.compiled and can_compile())
    products_of = {way: products(other.recipe, K, BATCH) for way, other in ours.items()}
    products_of["eager loop"] = products(recipe, K, BATCH)
    torch.manual_seed(0)
    candidates: dict[str, Steps] = {way: memgen_steps(rows, *other)[1] for way, other in ours.items()}
    memory = any(map(any, recipe.model.slots))
    candidates["eager loop"] = repeating(loop_step(rows, K, BATCH, memory))
    candidates[ONLY], products_of[ONLY] = repeating(in_order(products_of["memgen"])), products_of["memgen"]
    if not missing():
        candidates["pythae"] = repeating(peer(rows, K, BATCH).step)
        products_of["pythae"] = products(Recipe.named("mnist-vae"), K, BATCH)
    for steps in candidates.values():
        steps(scale.warm)
    different = {product.shape: product for one in products_of.values() for product in one}
    rounds: list[dict[Shape, float]] = []
    size = scale.block(K)
    timed = {way: partial(steps, size) for way, steps in candidates.items()}
    blocks = alternate(timed, scale.repeats, lambda: rounds.append(fastest.measure(different.values())))
    settings = {"recipe": name, "K": K, "batch": BATCH}
    notes = {"pythae": "without memory, which it does not have"} if memory else {}
    records = {
        way: _record(way, settings, blocks, products_of[way], list(ours), notes.get(way, "")) for way in candidates
    }
    for way, record in records.items():
        paired = part_of([total(products_of[way], best) for best in rounds], blocks[way])
        records[way] = replace(record, paired=paired)
    warm = {WARM: [total(products_of[ONLY], best) for best in rounds]}
    records[WARM] = _record(WARM, settings, warm, products_of[ONLY], list(ours), "")
    if SINGLE in records:
        records[SINGLE] = replace(records[SINGLE], whole=records["memgen"].products)
    return list(records.values())


def _record(
    way: str,
    settings: dict[str, object],
    blocks: dict[str, list[float]],
    products: list[Product],
    ours: list[str],
    note: str,
) -> Record:
    """A row, with how much faster it is than the others if it is one of memgen's own."""
    others = [other for other in blocks if way in ours and other not in (*ours, ONLY)]
    return Record(
        SECTION,
        way,
        settings,
        "step",
        spread(blocks[way]),
        products=tuple(products),
        flops=flops(products) if products else None,
        faster_than={other: times_faster(blocks[way], blocks[other]) for other in others},
        note=note,
    )
