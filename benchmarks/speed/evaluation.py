"""log p(x) of images by importance sampling: memgen's evaluator beside pythae's."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from benchmarks.speed.clock import Action, alternate, part_of, seconds, spread, times_faster
from benchmarks.speed.limit import (
    ONLY,
    RECIPES,
    WARM,
    Fastest,
    Product,
    Shape,
    flops,
    forward_products,
    in_order,
    total,
)
from benchmarks.speed.peer import missing, peer
from benchmarks.speed.record import Record, Scale
from benchmarks.speed.rows import Rows
from benchmarks.speed.steps import memgen_steps
from memgen.core.batch import Batch
from memgen.core.model import DGM
from memgen.core.noise import BLOCK, binarise
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood, side_by_side
from memgen.training.statistics import collect_statistics

SECTION = "evaluation"
BATCH_SIZE = 8
"""Images at a time; with BLOCK samples of each they are what P gets at once."""
PEER_BATCHES = (100, 500)
"""Samples that pythae takes at once, for one image at a time: its default, and a number that suits it better."""


def memgen_scores(model: DGM, x: Float[Tensor, "images D"], samples: int) -> Action:
    """log p(x) of all rows, as `memgen evaluate` has it."""
    return partial(log_likelihood, model, Batch.of(x), samples, batch_size=BATCH_SIZE)


def products_alone(products: list[Product], batches: int, passes: int) -> Action:
    """What an evaluation consists of and nothing else, batch beside batch as there: no evaluation gets closer to the
    limit, whose products have both threads and a warm cache for each."""
    batch = [in_order(products) for _ in range(batches)]

    def run() -> None:
        list(side_by_side(lambda one: [one() for _ in range(passes)], batch))

    return run


def trained(rows: Float[Tensor, "N D"], recipe: Recipe, steps: int) -> DGM:
    """A model after a few steps, with the statistics of its weights."""
    state, train = memgen_steps(rows, recipe)
    train(steps)
    model: DGM = state.model.eval()
    collect_statistics(model, Batch(rows), stochastic=True)
    return model


def peer_scores(rows: Float[Tensor, "N D"], x: Float[Tensor, "images D"], scale: Scale) -> dict[str, Action]:
    """pythae's own estimate, without the gradients that it would otherwise keep."""
    model, step = peer(rows, 1, 100)
    for _ in range(scale.warm):
        step()
    model.eval()

    def scores(batch_size: int) -> None:
        with torch.no_grad():
            model.get_nll(x, n_samples=scale.evaluation_samples, batch_size=batch_size)

    # It scores whole batches only, and one even where fewer samples are asked for.
    sizes = [size for size in PEER_BATCHES if scale.evaluation_samples % size == 0] or [scale.evaluation_samples]
    return {f"pythae, batch {size}": partial(scores, size) for size in sizes}


def evaluation_section(scale: Scale, fastest: Fastest, rows: Rows, tell: Callable[[str], None]) -> list[Record]:
    x = binarise(rows.test[: scale.images])
    recipes = {name: Recipe.named(name) for name in RECIPES}
    # Rows that the evaluator hands to P at once; the last block of few samples is smaller.
    shape = min(BLOCK, scale.evaluation_samples) * min(BATCH_SIZE, scale.images)
    products_of = {f"memgen, {name}": forward_products(recipe, shape) for name, recipe in recipes.items()}
    torch.manual_seed(0)
    actions: dict[str, Action] = {
        f"memgen, {name}": memgen_scores(trained(rows.train, recipe, scale.warm), x, scale.evaluation_samples)
        for name, recipe in recipes.items()
    }
    for name in RECIPES:
        its_products = products_of[f"memgen, {name}"]
        batches, passes = -(-scale.images // BATCH_SIZE), -(-scale.evaluation_samples // BLOCK)
        actions[f"{ONLY}, {name}"] = products_alone(its_products, batches, passes)
        products_of[f"{ONLY}, {name}"] = its_products
    if not (absent := missing()):
        peers = peer_scores(rows.train, x, scale)
        actions.update(peers)
        products_of.update(dict.fromkeys(peers, products_of["memgen, mnist-vae"]))
    tell(f"log p(x) of {scale.images} images with {scale.evaluation_samples:,} samples")
    different = [product for one in products_of.values() for product in one]
    rounds: list[dict[Shape, float]] = []
    timed = {name: partial(seconds, action) for name, action in actions.items()}
    blocks = alternate(timed, scale.repeats, lambda: rounds.append(fastest.measure(different)))
    blocks = {name: [taken / scale.images for taken in values] for name, values in blocks.items()}
    least = {
        name: [scale.evaluation_samples / shape * total(its_products, taken) for taken in rounds]
        for name, its_products in products_of.items()
    }
    records = [
        _record(name, blocks, products_of[name], shape, scale, part_of(least[name], blocks[name])) for name in blocks
    ]
    for name in RECIPES:
        alone = f"{ONLY}, {name}"
        records.append(_record(f"{WARM}, {name}", {f"{WARM}, {name}": least[alone]}, products_of[alone], shape, scale))
    return [*records, Record(SECTION, "pythae", {}, "image", note=absent)] if absent else records


def _record(
    name: str,
    blocks: dict[str, list[float]],
    products: list[Product],
    shape: int,
    scale: Scale,
    paired: float | None = None,
) -> Record:
    ours = name.startswith("memgen")
    passes = scale.evaluation_samples / shape
    settings: dict[str, Any] = {"samples": scale.evaluation_samples, "images": scale.images}
    others = [other for other in blocks if ours and other.startswith("pythae")]
    return Record(
        SECTION,
        name,
        settings,
        "image",
        spread(blocks[name]),
        paired=paired,
        products=tuple(products),
        passes=passes,
        flops=passes * flops(products) if products else None,
        faster_than={other: times_faster(blocks[name], blocks[other]) for other in others},
        note="model without memory" if name.startswith("pythae") else "",
    )
