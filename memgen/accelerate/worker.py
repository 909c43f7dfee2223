"""One worker's plan of a step: forward from its rows to their bound, and the backward pass to the gradients."""

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
"""Maximum number of rows of a block."""
Term = tuple[Standardised, Standardised, Tensor, float]
"""A term of the local reconstruction: features of P and of Q, a buffer for its value, the factor of a square."""
Read = tuple[nn.Parameter, Tensor, Tensor, Tensor]
"""M; the slots that all rows read, their weights, and the gradients of h_m."""


def _part_of(layer: nn.Module) -> type[DensePart | MemoryPart]:
    if not isinstance(layer, MemoryLayer):
        return DensePart
    return KeysPart if isinstance(layer.attention, ProductKeys) else MemoryPart


class Worker:
    """The plan of a step with K samples of the worker's rows, for one thread.

    Batch norm needs sums over all rows. Between two such sums the rows pass through the net in blocks that stay in the
    cache. `pool` has the matrices with the rows of all workers; each worker uses a part of them.
    """

    def __init__(self, step: PlannedStep, index: int, pool: list[Tensor]) -> None:
        self.plan, self.index, self.pool, self.wholes = Plan(), index, pool, {}
        """wholes: the matrices with the rows of all workers, by the address of this worker's part."""
        self.used = 0
        """Number of matrices of the pool that are in use."""
        self.passed: dict[tuple[str, int], Tensor] = {}
        """Buffers for the short-lived results of blocks, by name and units."""
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []
        """Gradients of matrices that are computed from all workers' rows: parameter, a, b; the gradient is a' b."""
        self.places: list[tuple[Tensor, Tensor]] = []
        """The parameters of `products`, with buffers for their gradients."""
        self.reads: list[Read] = []
        """The reads of memories by index."""
        self.fixed = False
        """Whether parameters are constants, so that their gradients are not computed."""
        self.objective, self.workers, self.rows, self.K = step.objective, step.count, len(step.x), step.K
        parts = step.x.tensor_split(step.count)
        self.x, self.first = parts[index], sum(map(len, parts[:index]))
        """The worker's rows, and the number of rows before them."""
        self.bounds, self.report = step.bounds.tensor_split(step.count)[index], step.reports[index]
        self.wholes[self.x.data_ptr()] = step.x
        self._compile(cast(Conditional, step.q), cast(Conditional, step.p), step.backward)

    def take(self, noise: Tensor) -> None:
        """Copy the noise of this worker's rows; `x` is a view of the step's rows."""
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
        """Gradients from the rows of this worker alone."""

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

    def _forward(self, layers: Sequence[Layer], head: Part, all_blocks: list[Block]) -> None:
        """Forward pass of a net: the end of one part and the start of the next, block by block."""
        previous: Layer | None = None
        for part in (*layers, head):
            for block in all_blocks:
                if previous is not None:
                    self._finish(previous, block)
                part.begin(block)
            part.settle()
            previous = cast(Layer, part)

    def _finish(self, layer: Layer, block: Block) -> None:
        layer.finish(block)
        if layer.compared is not None:
            layer.compared.gather(block)

    def _backward(self, layers: Sequence[Layer], head: Part, all_blocks: list[Block], to_input: Tensor | None) -> None:
        """Backward pass of a net from its head; `to_input` is a buffer for the derivative by the input, or None."""
        parts: list[Part] = [*layers, head]
        for i in reversed(range(len(parts))):
            layer = cast(Layer, parts[i - 1]) if i else None
            for block in all_blocks:
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
        """The contribution of this worker's rows to the loss, per layer."""
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
        """The bound from log w, the derivatives of the loss by log w, and the terms that dreg adds to them for Q."""
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
        """Gradients from all workers' rows: this worker computes a part of the rows, or columns, of each matrix."""
        self.plan.add("barrier")
        for parameter, a, b in self.products:
            place = self._common(*parameter.shape)
            self.places.append((parameter, place))
            # A matrix with few rows is divided by columns, because a packed panel of a product serves all its rows.
            if len(place) < place.shape[1] // 2:
                part, b = (matrix.tensor_split(self.workers, 1)[self.index] for matrix in (place, b))
            else:
                part = place.tensor_split(self.workers)[self.index]
                a = a.tensor_split(self.workers, 1)[self.index]
            if part.numel():
                self.plan.product(a.t(), b, part)

    def passing(self, name: str, block: Block, units: int) -> Tensor:
        """A buffer for a block, which all calls with the same name share."""
        key = name, units
        if key not in self.passed:
            self.passed[key] = self.matrix(block.size, units) if block.only else self.x.new_empty(self.longest, units)
        return self.passed[key][: block.size]

    def matrix(self, rows: int, units: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A matrix with `rows` rows of this worker, which is a part of one with the rows of all workers."""
        times = rows // len(self.x)  # K in P, 1 in Q
        whole = self._common(times * self.rows, units, dtype=dtype)
        part = whole[times * self.first :][:rows]
        self.wholes[part.data_ptr()] = whole
        return part

    def _common(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The next matrix of the pool, which the first worker creates."""
        if self.index == 0:
            self.pool.append(self.x.new_empty(shape, dtype=dtype))
        self.used += 1
        return self.pool[self.used - 1]

    def whole(self, part: Tensor) -> Tensor:
        """The matrix with the rows of all workers, of which `part` has this worker's."""
        return self.wholes[part.data_ptr()]
