"""The least time of a step: its matrix products alone, each as fast as this machine has ever done it in the run.

Everything else in a step (activations, noise, likelihood, optimizer, Python) could vanish or overlap in a better
program; the products could not. A product that goes faster in another layout of its operands, or cut into blocks as the
steps of memgen have them, counts at that speed.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple, cast

import torch
from torch import Tensor, nn

from benchmarks.speed.clock import Action, Spread, seconds
from benchmarks.speed.record import Record, Scale
from memgen.accelerate.program import Plan, Program, blas
from memgen.accelerate.worker import ROWS
from memgen.core.layers import MemoryLayer
from memgen.core.memory import Memory
from memgen.core.model import DGM, Conditional
from memgen.core.objective import CHOOSING
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe

RECIPES = ("mnist-mem-vae", "mnist-vae")
ONLY = "the products alone"
"""The name of rows in which they are done in order, and nothing else."""
WARM = "the products, warm"
"""The name of rows with the limit's own products, each as fast as in one round: the difference to the limit
is due to the machine."""
TRIES = 3
"""Timings of a product in each layout, every time that it is measured."""

CALLS = 2 * 10**7
"""Operations of a timing at least, so that the clock itself counts for nothing."""


Shape = tuple[int, int, int]
"""Of a product: rows, inner, columns."""


class Map(NamedTuple):
    """A linear map of a net."""

    name: str
    inputs: int
    outputs: int
    reads_data: bool
    """Its input is x, which needs no gradient."""


@dataclass(frozen=True)
class Product:
    """(rows, inner) times (inner, columns)."""

    name: str
    rows: int
    inner: int
    columns: int

    @property
    def flops(self) -> int:
        """A multiplication and an addition each."""
        return 2 * self.rows * self.inner * self.columns

    @property
    def shape(self) -> Shape:
        return self.rows, self.inner, self.columns


def outline(recipe: Recipe) -> DGM:
    """The recipe's model with shapes and without numbers: it costs no memory, however large it is."""
    with torch.device("meta"):
        return build(recipe)


def maps(net: Conditional) -> Iterator[Map]:
    """The linear maps of a net in the order in which they run, the read of a dense memory among them."""
    layers = [module for module in net.modules() if isinstance(module, MemoryLayer)]
    # A sparse attention gathers its few slots; only where all slots are read is M h_a a matrix product.
    dense = {id(layer.memory) for layer in layers if not cast(Memory, layer.memory).sparse}
    for name, module in net.named_modules():
        first = name.startswith("layers.0.") or not len(net.layers)
        if isinstance(module, nn.Linear):
            yield Map(name, module.in_features, module.out_features, first)
        elif isinstance(module, Memory) and id(module) in dense:
            slots, features = module.M.shape
            yield Map(name, slots, features, first)


def products(recipe: Recipe, K: int, B: int) -> list[Product]:
    """All matrix products of a training step with K samples of each of B rows.

    Backward of h W: the gradient of W is h' g, that of h is g W'. The first layer of Q has no use for the second. With
    the estimator "single" one of the K samples is enough for the backward pass.
    """
    model = outline(recipe)
    single = recipe.objective.estimator in CHOOSING
    all_products: list[Product] = []
    for letter, nets in (("q", model.q), ("p", model.p)):
        for level, net in enumerate(nets):
            data = letter == "q" and level == 0
            rows = B if data else K * B
            for entry in maps(cast(Conditional, net)):
                name = f"{letter}.{level}.{entry.name}"
                all_products += _three(entry._replace(name=name), rows, B if single else rows, data)
    return all_products


def _three(entry: Map, rows: int, back: int, data: bool) -> Iterator[Product]:
    """Forward, gradient of the weights, gradient of the input where it is needed."""
    yield Product(f"{entry.name} forward", rows, entry.inputs, entry.outputs)
    yield Product(f"{entry.name} weight gradient", entry.inputs, back, entry.outputs)
    if not (data and entry.reads_data):
        yield Product(f"{entry.name} input gradient", back, entry.outputs, entry.inputs)


def forward_products(recipe: Recipe, rows: int) -> list[Product]:
    """The matrix products of P for a number of samples at once: what an evaluation consists of."""
    nets = enumerate(outline(recipe).p)
    named = [(level, entry) for level, net in nets for entry in maps(cast(Conditional, net))]
    return [Product(f"p.{level}.{entry.name} forward", rows, entry.inputs, entry.outputs) for level, entry in named]


def flops(all_products: Iterable[Product]) -> float:
    return float(sum(product.flops for product in all_products))


def in_order(all_products: Iterable[Product]) -> Action:
    """All products one after the other, by torch, each with operands of its own, as a step has them: they come out of
    memory, not out of the cache."""
    operands = [(torch.randn(p.rows, p.inner), torch.randn(p.inner, p.columns)) for p in all_products]

    def run() -> None:
        for left, right in operands:
            torch.mm(left, right)

    return run


def total(all_products: Iterable[Product], taken: dict[Shape, float]) -> float:
    """Seconds of all of them, from the seconds that one of each shape has taken."""
    return sum(taken[product.shape] for product in all_products)


class Fastest:
    """The best seconds of every product so far. It is shared by all sections and measured in every round between the
    rows that are compared with it, so that no row meets a quicker moment of the machine than the limit did.
    """

    def __init__(self) -> None:
        self.best: dict[Shape, float] = {}
        self.numbers: list[Tensor] = [torch.empty(0)] * 3

    def measure(self, all_products: Iterable[Product]) -> dict[Shape, float]:
        """One more round: each shape once, however many products have it. Returns the best of this round."""
        now: dict[Shape, float] = {}
        for shape, product in {product.shape: product for product in all_products}.items():
            times = max(1, CALLS // product.flops)
            now[shape] = min(seconds(way, times) for way in self._ways(shape) for _ in range(TRIES))
            self.best[shape] = min(now[shape], self.best.get(shape, now[shape]))
        return now

    def seconds(self, all_products: Iterable[Product]) -> float:
        """The least time of these products, one after the other."""
        return total(all_products, self.best)

    def _ways(self, shape: Shape) -> Iterator[Action]:
        """By torch, on all threads, and block by block, each thread with some of them."""
        for left, right, out in self._layouts(shape):
            yield partial(torch.mm, left, right, out=out)
            yield from _together(_blocks_of_rows(left, right, out))
        rows, inner, columns = shape
        left, right, _ = self._operands(rows * inner, inner * columns, 0)
        yield from _together(_blocks_of_inner(left.view(inner, rows), right.view(inner, columns)))

    def _layouts(self, shape: Shape) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Both operands as rows, or the one or the other as columns: the ways in which a step meets them."""
        rows, inner, columns = shape
        left, right, out = self._operands(rows * inner, inner * columns, rows * columns)
        out = out.view(rows, columns)
        yield left.view(rows, inner), right.view(inner, columns), out
        yield left.view(rows, inner), right.view(columns, inner).t(), out
        yield left.view(inner, rows).t(), right.view(inner, columns), out

    def _operands(self, *sizes: int) -> list[Tensor]:
        """Ordinary numbers; the memory is used again for every shape."""
        for i, size in enumerate(sizes):
            if len(self.numbers[i]) < size:
                self.numbers[i] = torch.randn(size)
        return [numbers[:size] for numbers, size in zip(self.numbers, sizes, strict=True)]


Cut = list[list[tuple[Tensor, Tensor, Tensor, float]]]
"""Of a product, for every thread: a, b, out and keep, for out = a b + keep * out."""


def _of_workers(*matrices: Tensor) -> Iterator[tuple[Tensor, ...]]:
    """Some rows of each for every thread."""
    return zip(*(matrix.tensor_split(torch.get_num_threads()) for matrix in matrices), strict=True)


def _blocks_of_rows(left: Tensor, right: Tensor, out: Tensor) -> Cut:
    """left times right, some rows at a time."""
    return [
        [(block, right, place, 0.0) for block, place in zip(rows.split(ROWS), to.split(ROWS), strict=True)]
        for rows, to in _of_workers(left, out)
    ]


def _blocks_of_inner(left: Tensor, right: Tensor) -> Cut:
    """left' times right, some rows of both at a time, as for the gradient of a matrix by many rows; what the threads
    have is not added up."""
    outs = [left.new_zeros(left.shape[1], right.shape[1]) for _ in range(torch.get_num_threads())]
    return [
        [(block.t(), others, out, 1.0) for block, others in zip(a.split(ROWS), b.split(ROWS), strict=True)]
        for (a, b), out in zip(_of_workers(left, right), outs, strict=True)
    ]


def _together(cut: Cut) -> Iterator[Action]:
    """All of them, every thread its own; nothing where that cannot be done here."""
    if not blas():
        return
    plans = [Plan() for _ in cut]
    for plan, worker_products in zip(plans, cut, strict=True):
        for a, b, out, keep in worker_products:
            plan.product(a, b, out, keep)
    program = Program(plans, [])
    if program.run():  # there are as many threads as plans
        yield program.run


def settled(records: Sequence[Record], fastest: Fastest) -> list[Record]:
    """The records with the limit of the whole run: every product as fast as it ever was, also after a record was taken;
    and where a row has done all its products in less, that.
    """
    quickest: dict[tuple[Product, ...], float] = {}
    for record in records:
        if record.products and record.seconds is not None:
            low = min(record.seconds.low / record.passes, fastest.seconds(record.products))
            quickest[record.products] = min(low, quickest.get(record.products, low))
    return [_settled(record, quickest) for record in records]


def _settled(record: Record, quickest: dict[tuple[Product, ...], float]) -> Record:
    if record.products not in quickest:
        return record
    note = record.note
    if record.whole and record.seconds is not None:
        share = record.seconds.median / quickest[record.whole]
        note = f"{share:.2f} of the time that the products of the full backward need"
    return replace(record, limit=record.passes * quickest[record.products], note=note)


def limit_section(scale: Scale, fastest: Fastest) -> list[Record]:
    """Per recipe and K: the least seconds of a training step; then every shape of product by itself."""
    batch = 100
    steps = {
        (name, K): products(Recipe.named(name).override([f"objective.samples={K}"]), K, batch)
        for name in RECIPES
        for K in scale.samples
    }
    for _ in range(scale.repeats):
        fastest.measure(product for of_step in steps.values() for product in of_step)
    records = []
    for (name, K), of_step in steps.items():
        settings = {"recipe": name, "K": K, "batch": batch}
        records.append(_record("all products of a step", settings, fastest, of_step))
    shapes = {product.shape: product for of_step in steps.values() for product in of_step}
    for shape, product in sorted(shapes.items()):
        name = f"{product.rows} x {product.inner} x {product.columns}"
        records.append(_record(name, {}, fastest, [shapes[shape]]))
    return records


def _record(name: str, settings: dict[str, object], fastest: Fastest, measured: list[Product]) -> Record:
    taken = fastest.seconds(measured)
    note = "each as fast as it ever was" if len(measured) > 1 else ""
    return Record(
        "limit", name, settings, "step or product", Spread(taken, taken, taken), flops=flops(measured), note=note
    )
