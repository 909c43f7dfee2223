"""The part of a step that one worker does: from its rows to their bound, and back to the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from memgen.accelerate.blocks import Block, blocks
from memgen.accelerate.heads import BernoulliPart, GaussianPart, PosteriorPart
from memgen.accelerate.layers import DensePart, KeysPart, Layer, MemoryPart, Part, Standardised
from memgen.accelerate.program import Plan
from memgen.core.layers import Dense, MemoryLayer
from memgen.core.likelihoods import Bernoulli, Gaussian
from memgen.core.memory import ProductKeys
from memgen.core.model import Conditional

if TYPE_CHECKING:
    from memgen.accelerate.step import PlannedStep

ROWS = 250
"""Of a block at most."""
Term = tuple[Standardised, Standardised, Tensor, float]
"""Of the local reconstruction: sides of P and Q, a place for what it adds to the loss, and what a square adds."""
Read = tuple[nn.Parameter, Tensor, Tensor, Tensor]
"""M; which slots all rows have read, with which weights, and the gradients of what they got."""


def _part_of(layer: nn.Module) -> type[DensePart | MemoryPart]:
    if not isinstance(layer, MemoryLayer):
        return DensePart
    return KeysPart if isinstance(layer.attention, ProductKeys) else MemoryPart


class Worker:
    """The plan of a step with K samples of each of some rows, for one thread; the other rows are other workers'.

    Batch norm needs sums over all rows; from one of these to the next the rows go through the net in blocks, each
    through all that can be done with it while it is in the cache. `pool` holds the matrices of the rows of all workers,
    of which each has its part.
    """

    def __init__(self, step: PlannedStep, index: int, pool: list[Tensor]) -> None:
        self.plan, self.index, self.pool, self.wholes = Plan(), index, pool, {}
        """wholes: of the matrices whose part this worker has, by the address of the part."""
        self.used = 0
        """Matrices of the pool so far."""
        self.passed: dict[tuple[str, int], Tensor] = {}
        """Places for blocks that nobody needs for long, by name and units."""
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []
        """Gradients of matrices that are made of all rows: parameter, a, b; the gradient is a' b, ..."""
        self.places: list[tuple[Tensor, Tensor]] = []
        """... and where it comes to lie."""
        self.reads: list[Read] = []
        """Of memories that are read by index."""
        self.fixed = False
        """Whether parameters are constants, so that their gradients are left out."""
        self.objective, self.workers, self.rows, self.K = step.objective, step.count, len(step.x), step.K
        parts = step.x.tensor_split(step.count)
        self.x, self.first = parts[index], sum(map(len, parts[:index]))
        """Its rows, and how many come before them."""
        self.bounds, self.report = step.bounds.tensor_split(step.count)[index], step.reports[index]
        self.wholes[self.x.data_ptr()] = step.x
        self._compile(cast(Conditional, step.q), cast(Conditional, step.p), step.backward)

    def take(self, noise: Tensor) -> None:
        """Its part of the noise of all rows; the rows themselves lie where `x` is."""
        self.noise.copy_(noise[:, self.first : self.first + len(self.x)])

    def _compile(self, q: Conditional, p: Conditional, backward: bool) -> None:
        up, posterior = self._up(q)
        self.noise = posterior.noise
        down, likelihood = self._down(p, posterior.z)
        sides = self._compared(up, down[::-1])
        largest = -(-self.rows // self.workers)
        once, all_samples = (blocks(K, len(self.x), largest, ROWS) for K in (1, self.K))
        self.longest = max(block.size for block in (*once, *all_samples))
        self._forward(up, posterior, once)
        self._forward(down, likelihood, all_samples)
        self._local_reconstruction(sides)
        self._weigh(posterior, likelihood.log_p)
        self.plan.add("report", self.bounds, self.rows, self.errors, self.report)
        if backward:
            self._back(up, posterior, once, down, likelihood, all_samples)
        if self.products:
            self._products()
        parts: list[Part] = [*up, posterior, *down, likelihood]
        self.gradients = [pair for part in parts for pair in part.gradients.values()]
        """Of the rows of this worker alone."""

    def _up(self, q: Conditional) -> tuple[list[DensePart], PosteriorPart]:
        """From x to z and log q(z|x)."""
        up: list[DensePart] = []
        h = self.x
        for layer in q.layers:
            up.append(DensePart(self, cast(Dense, layer), h))
            h = up[-1].out
        return up, PosteriorPart(self, cast(Gaussian, q.head), h)

    def _down(self, p: Conditional, z: Tensor) -> tuple[list[Layer], BernoulliPart | GaussianPart]:
        """From z to log p(x|z)."""
        down: list[Layer] = []
        h = z
        for layer in p.layers:
            down.append(_part_of(layer)(self, layer, h))  # type: ignore[arg-type]
            h = down[-1].out
        kind = BernoulliPart if isinstance(p.head, Bernoulli) else GaussianPart
        return down, kind(self, p.head, h)  # type: ignore[arg-type]

    def _forward(self, layers: Sequence[Layer], head: Part, every: list[Block]) -> None:
        """Through a net: each block out of one part and into the next."""
        before: Layer | None = None
        for part in (*layers, head):
            for block in every:
                if before is not None:
                    self._finish(before, block)
                part.begin(block)
            part.settle()
            before = cast(Layer, part)

    def _finish(self, layer: Layer, block: Block) -> None:
        layer.finish(block)
        if layer.compared is not None:
            layer.compared.gather(block)

    def _backward(self, layers: Sequence[Layer], head: Part, every: list[Block], to_input: Tensor | None) -> None:
        """From the head back, to a place for the derivative by the input, if anybody needs that."""
        parts: list[Part] = [*layers, head]
        for i in reversed(range(len(parts))):
            layer = cast(Layer, parts[i - 1]) if i else None
            for block in every:
                if layer is None:
                    parts[i].finish_back(block, None if to_input is None else block.of(to_input))
                    continue
                place = layer.place(block)
                parts[i].finish_back(block, place)
                if layer.compared is not None and not self.fixed:
                    layer.compared.back(block, place)
                layer.begin_back(block)
            if layer is not None:
                layer.settle_back()

    def _compared(self, up: list[DensePart], down: Sequence[Layer]) -> list[Term]:
        """lambda * mean (a - b)^2 for every layer that has a weight, a and b being standardised over all rows."""
        weights = self.objective.local_reconstruction
        self.errors = self.x.new_zeros(len(up))
        """What the rows of this worker add to the loss, per layer."""
        terms: list[Term] = []
        if not any(map(any, weights)):
            return terms
        for q, p, weight, error in zip(up, down, weights[0], self.errors, strict=True):
            if weight:
                square = weight / (self.rows * q.pre.shape[1])
                p.compared = Standardised(self.plan, p.out, self.K, 2 * square, q.norm)
                q.compared_pre = Standardised(self.plan, q.pre, 1, -2 * square, q.norm, q.numbers)
                terms.append((p.compared, q.compared_pre, error, square))
        return terms

    def _local_reconstruction(self, sides: list[Term]) -> None:
        for p, q, error, square in sides:
            p.settle()
            q.settle()
            difference = torch.empty_like(p.out)
            self.plan.add("compare", p.out, q.out, square, difference, error)
            p.settle_back(difference)
            q.settle_back(difference)

    def _weigh(self, posterior: PosteriorPart, log_p: Tensor) -> None:
        """From log w to the bound, the derivatives of the loss by log w, and what dreg adds to them for Q."""
        self.weights, self.squares = (torch.empty_like(log_p) for _ in range(2))
        importance = self.K > 1 and self.objective.bound == "importance"
        operands = (log_p, posterior.z, posterior.log_q, importance, self.rows, self.bounds)
        self.plan.add("weigh", *operands, self.weights, self.squares)

    def _back(
        self,
        up: list[DensePart],
        posterior: PosteriorPart,
        once: list[Block],
        down: list[Layer],
        likelihood: Part,
        all_samples: list[Block],
    ) -> None:
        weighed = None
        if self.objective.estimator == "dreg":
            weighed, self.back_weights, self.fixed = torch.empty_like(posterior.z), self.squares, True
            self._backward(down, likelihood, all_samples, weighed)
        to_z, self.back_weights, self.fixed = torch.empty_like(posterior.z), self.weights, False
        """back_weights: the derivatives by log p(x|z) from which the backward pass begins."""
        self._backward(down, likelihood, all_samples, to_z)
        to_log_q, fixed = torch.empty_like(posterior.log_q), self.objective.estimator != "plain"
        known = (posterior.z, posterior.noise, posterior.log_variance, self.weights, self.squares, weighed)
        self.plan.add("path", to_z, *known, fixed, to_log_q)
        posterior.settle_back(to_z, to_log_q)
        self._backward(up, posterior, once, None)

    def _products(self) -> None:
        """The gradients that are made of all rows: of each matrix this worker makes some rows, or columns."""
        self.plan.add("barrier")
        for parameter, a, b in self.products:
            place = self._common(*parameter.shape)
            self.places.append((parameter, place))
            # Where there are few rows, some columns: what is packed for a product serves as many rows as there are.
            if len(place) < place.shape[1] // 2:
                own, b = (matrix.tensor_split(self.workers, 1)[self.index] for matrix in (place, b))
            else:
                own = place.tensor_split(self.workers)[self.index]
                a = a.tensor_split(self.workers, 1)[self.index]
            if own.numel():
                self.plan.product(a.t(), b, own)

    def passing(self, name: str, block: Block, units: int) -> Tensor:
        """A place for a block, the same whenever the name is."""
        key = name, units
        if key not in self.passed:
            self.passed[key] = self.matrix(block.size, units) if block.only else self.x.new_empty(self.longest, units)
        return self.passed[key][: block.size]

    def matrix(self, rows: int, units: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A place for so many rows of this worker, beside those of the others."""
        times = rows // len(self.x)  # K in P, 1 in Q
        whole = self._common(times * self.rows, units, dtype=dtype)
        own = whole[times * self.first :][:rows]
        self.wholes[own.data_ptr()] = whole
        return own

    def _common(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The next matrix of the pool, which the first worker makes."""
        if self.index == 0:
            self.pool.append(self.x.new_empty(shape, dtype=dtype))
        self.used += 1
        return self.pool[self.used - 1]

    def whole(self, own: Tensor) -> Tensor:
        """The rows of all workers."""
        return self.wholes[own.data_ptr()]
