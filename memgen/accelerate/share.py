"""The part of a step that one thread does: from its rows to their bound, and back to the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from memgen.accelerate.blocks import Block, blocks
from memgen.accelerate.parts import (
    BernoulliPart,
    DensePart,
    GaussianPart,
    KeysPart,
    Layer,
    MemoryPart,
    Part,
    PosteriorPart,
    Standardised,
)
from memgen.accelerate.program import Tape
from memgen.core.layers import Dense, MemoryLayer
from memgen.core.likelihoods import Bernoulli, Gaussian
from memgen.core.memory import ProductKeys
from memgen.core.model import Conditional

if TYPE_CHECKING:
    from memgen.accelerate.step import Step

ROWS = 250
"""Of a block at most."""
Term = tuple[Standardised, Standardised, Tensor, float]
"""Of the local reconstruction: sides of P and Q, a place for what it adds to the loss, and its share of a square."""


def _part_of(layer: nn.Module) -> type[DensePart | MemoryPart]:
    if not isinstance(layer, MemoryLayer):
        return DensePart
    return KeysPart if isinstance(layer.attention, ProductKeys) else MemoryPart


Read = tuple[nn.Parameter, Tensor, Tensor, Tensor]
"""M; which slots the rows of all shares have read, with which weights, and the gradients of what they got."""


class Share:
    """The step with K samples of each of some rows, one share out of several: a list of calls for one thread.

    Batch norm needs sums over all rows; from one of these to the next the rows go through the net in blocks, each
    through all that can be done with it while it is in the cache. `pool` holds the matrices of the rows of all shares,
    of which each share has its part.
    """

    def __init__(self, step: Step, index: int, pool: list[Tensor]) -> None:
        self.tape, self.index, self.pool, self.wholes = Tape(), index, pool, {}
        """wholes: of the matrices whose part this share has, by the address of the part."""
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
        self.silent = False
        """Whether gradients of parameters are left out."""
        self.given = step.given
        self.objective, self.shares, self.rows, self.K = step.objective, step.count, len(step.x), step.K
        every = step.x.tensor_split(step.count)
        self.x, self.first = every[index], sum(map(len, every[:index]))
        """Its rows, and how many come before them."""
        self.bounds, self.report = step.bounds.tensor_split(step.count)[index], step.reports[index]
        self.wholes[self.x.data_ptr()] = step.x
        self._write(cast(Conditional, step.model.q[0]), cast(Conditional, step.model.p[0]), step.backward)

    def _write(self, q: Conditional, p: Conditional, backward: bool) -> None:
        up, posterior = self._up(q)
        down, likelihood = self._down(p, posterior.z)
        self.tape.add("take", self.given.x, self.first, self.rows, 1, *self.x.shape, self.x)
        self.tape.add("take", self.given.noise, self.first, self.rows, *posterior.noise.shape, posterior.noise)
        sides = self._compared(up, down[::-1])
        largest = -(-self.rows // self.shares)
        once, all_samples = (blocks(K, len(self.x), largest, ROWS) for K in (1, self.K))
        self.longest = max(block.size for block in (*once, *all_samples))
        self._forward(up, posterior, once)
        self._forward(down, likelihood, all_samples)
        self._local_reconstruction(sides)
        self._weigh(posterior, likelihood.log_p)
        self.tape.add("report", self.bounds, len(self.bounds), self.rows, self.errors, len(self.errors), self.report)
        if backward:
            self._back(up, posterior, once, down, likelihood, all_samples)
        if self.products:
            self._products()
        parts: list[Part] = [*up, posterior, *down, likelihood]
        self.gradients = [pair for part in parts for pair in part.gradients.values()]
        """Of the rows of this share alone."""

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
        """The way back from the head, to a place for the derivative by the input, if anybody needs that."""
        parts: list[Part] = [*layers, head]
        for i in reversed(range(len(parts))):
            layer = cast(Layer, parts[i - 1]) if i else None
            for block in every:
                if layer is None:
                    parts[i].finish_back(block, None if to_input is None else block.of(to_input))
                    continue
                place = layer.place(block)
                parts[i].finish_back(block, place)
                if layer.compared is not None and not self.silent:
                    layer.compared.back(block, place)
                layer.begin_back(block)
            if layer is not None:
                layer.settle_back()

    def _compared(self, up: list[DensePart], down: Sequence[Layer]) -> list[Term]:
        """lambda * mean (a - b)^2 for every layer that has a weight, a and b being standardised over all rows."""
        weights = self.objective.local_reconstruction
        self.errors = self.x.new_zeros(len(up))
        """What the rows of this share add to the loss, per layer."""
        found: list[Term] = []
        if not any(map(any, weights)):
            return found
        for q, p, weight, error in zip(up, down, weights[0], self.errors, strict=True):
            if weight:
                share = weight / (self.rows * q.pre.shape[1])
                p.compared = Standardised(self.tape, p.out, self.K, 2 * share, q.norm)
                q.compared_pre = Standardised(self.tape, q.pre, 1, -2 * share, q.norm, q.numbers)
                found.append((p.compared, q.compared_pre, error, share))
        return found

    def _local_reconstruction(self, sides: list[Term]) -> None:
        for p, q, error, share in sides:
            p.settle()
            q.settle()
            difference = torch.empty_like(p.out)
            self.tape.add("compare", p.out, q.out, p.out.numel(), share, difference, error)
            p.settle_back(difference)
            q.settle_back(difference)

    def _weigh(self, posterior: PosteriorPart, log_p: Tensor) -> None:
        """From log w to the bound, the derivatives of the loss by log w, and what dreg adds to them for Q."""
        K, B, d = posterior.noise.shape
        self.weights, self.squares = (log_p.new_empty(K * B) for _ in range(2))
        importance = K > 1 and self.objective.bound == "importance"
        operands = (log_p, posterior.z, posterior.log_q, K, B, d, importance, self.rows, self.bounds)
        self.tape.add("weigh", *operands, self.weights, self.squares)

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
            weighed, self.back_weights, self.silent = torch.empty_like(posterior.z), self.squares, True
            self._backward(down, likelihood, all_samples, weighed)
        to_z, self.back_weights, self.silent = torch.empty_like(posterior.z), self.weights, False
        """back_weights: the derivatives by log p(x|z) from which the way back begins."""
        self._backward(down, likelihood, all_samples, to_z)
        to_log_q, fixed = torch.empty_like(posterior.log_q), self.objective.estimator != "plain"
        known = (posterior.z, posterior.noise, posterior.log_variance, self.weights, self.squares, weighed)
        self.tape.add("path", to_z, *known, *posterior.noise.shape, fixed, to_log_q)
        posterior.settle_back(to_z, to_log_q)
        self._backward(up, posterior, once, None)

    def _products(self) -> None:
        """The gradients that are made of all rows: of each matrix this thread makes some rows, or columns."""
        self.tape.add("meet")
        for parameter, a, b in self.products:
            place = self._common(*parameter.shape)
            self.places.append((parameter, place))
            # Where there are few rows, some columns: what is packed for a product serves as many rows as there are.
            if len(place) < place.shape[1] // 2:
                own, b = (matrix.tensor_split(self.shares, 1)[self.index] for matrix in (place, b))
            else:
                own = place.tensor_split(self.shares)[self.index]
                a = a.tensor_split(self.shares, 1)[self.index]
            if own.numel():
                self.tape.product(a.t(), b, own)

    def passing(self, name: str, block: Block, units: int) -> Tensor:
        """A place for a block, the same whenever the name is."""
        key = name, units
        if key not in self.passed:
            self.passed[key] = self.matrix(block.size, units) if block.only else self.x.new_empty(self.longest, units)
        return self.passed[key][: block.size]

    def matrix(self, rows: int, units: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """A place for so many rows of this share, beside those of the others."""
        times = rows // len(self.x)  # K in P, 1 in Q
        whole = self._common(times * self.rows, units, dtype=dtype)
        own = whole[times * self.first :][:rows]
        self.wholes[own.data_ptr()] = whole
        return own

    def _common(self, *shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
        """The next matrix of the pool, which the first share makes."""
        if self.index == 0:
            self.pool.append(self.x.new_empty(shape, dtype=dtype))
        self.used += 1
        return self.pool[self.used - 1]

    def whole(self, own: Tensor) -> Tensor:
        """The rows of all shares."""
        return self.wholes[own.data_ptr()]
