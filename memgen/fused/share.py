"""The part of a step that one thread does: from its rows to their bound, and back to the gradients."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from memgen.fused.parts import BernoulliPart, Comparison, DensePart, GaussianPart, MemoryPart, Part
from memgen.layers import Dense, MemoryLayer
from memgen.likelihoods import Bernoulli, Gaussian
from memgen.model import Conditional
from memgen.native.functions import EPS
from memgen.native.program import Tape

if TYPE_CHECKING:
    from memgen.fused.step import Step


class Share:
    """The step with K samples of each of some rows, one share out of several: a list of calls for one thread.

    `pool` holds the matrices of the rows of all shares, of which each share has its part.
    """

    def __init__(self, step: Step, index: int, pool: list[Tensor]) -> None:
        self.forward, self.backward = Tape(), Tape()
        self.index, self.pool, self.wholes = index, pool, {}
        """wholes: of the matrices whose part this share has, by the address of the part."""
        self.used = 0
        """Matrices of the pool so far."""
        self.products: list[tuple[Tensor, Tensor, Tensor]] = []
        """Gradients of matrices that are made of all rows: parameter, a, b; the gradient is a' b, ..."""
        self.places: list[tuple[Tensor, Tensor]] = []
        """... and where it comes to lie."""
        self.objective, self.shares, self.rows, self.K = step.objective, step.count, len(step.x), step.K
        every = step.x.tensor_split(step.count)
        self.x, self.first = every[index], sum(map(len, every[:index]))
        """Its rows, and how many come before them."""
        self.bounds = step.bounds.tensor_split(step.count)[index]
        self.wholes[self.x.data_ptr()] = step.x
        up = self._up(cast(Conditional, step.model.q[0]))
        down = self._down(cast(Conditional, step.model.p[0]))
        compared = self._local_reconstruction(up, down[::-1], self.objective.local_reconstruction)
        self._weigh()
        self._back(up, down, compared)
        parts: list[Part] = [*up, *down, self.likelihood, self.q_part]
        self.gradients = [pair for part in parts for pair in part.gradients]
        """Of the rows of this share alone."""
        del self.likelihood, self.q_part  # they know this share: its memory would wait for the garbage collector

    def _up(self, q: Conditional) -> list[DensePart]:
        """From x to z and log q(z|x)."""
        up: list[DensePart] = []
        h = self.x
        for layer in q.layers:
            up.append(DensePart(self, cast(Dense, layer), h, root=not up))
            h = up[-1].out
        self.h, self.head = h, cast(Gaussian, q.head)
        K, B, d, new = self.K, len(h), self.head.columns, h.new_empty
        self.mean, self.log_variance, self.noise = new(B, d), new(B, d), new(K, B, d)
        self.forward.linear(self.head.mean, h, self.mean)
        self.forward.linear(self.head.log_variance, h, self.log_variance)
        self.z, self.log_q = self.matrix(K * B, d).view(K, B, d), new(K, B)
        drawn = (self.mean, self.log_variance, self.noise, K, B, d)
        self.forward.add("reparameterise", *drawn, self.z, self.log_q)
        return up

    def _down(self, p: Conditional) -> list[DensePart | MemoryPart]:
        """From z to log p(x|z)."""
        down: list[DensePart | MemoryPart] = []
        h = self.z.flatten(0, 1)
        for layer in p.layers:
            memory = isinstance(layer, MemoryLayer)
            down.append((MemoryPart if memory else DensePart)(self, layer, h))  # type: ignore[arg-type]
            h = down[-1].out
        kind = BernoulliPart if isinstance(p.head, Bernoulli) else GaussianPart
        self.likelihood = kind(self, p.head, h, self.x, self.K)  # type: ignore[arg-type]
        return down

    def _weigh(self) -> None:
        """From log w to the bound, the derivatives of the loss by log w, and what dreg adds to them for Q."""
        K, B, d = self.z.shape
        self.weights, self.squares = (self.z.new_empty(K, B) for _ in range(2))
        terms = (self.likelihood.log_p, self.z, self.log_q)
        importance = K > 1 and self.objective.bound == "importance"
        self.forward.add("weigh", *terms, K, B, d, importance, self.rows, self.bounds, self.weights, self.squares)

    def matrix(self, rows: int, units: int) -> Tensor:
        """A place for so many rows of this share, beside those of the others."""
        times = rows // len(self.x)  # K in P, 1 in Q
        whole = self._common(times * self.rows, units)
        own = whole[times * self.first :][:rows]
        self.wholes[own.data_ptr()] = whole
        return own

    def _common(self, *shape: int) -> Tensor:
        """The next matrix of the pool, which the first share makes."""
        if self.index == 0:
            self.pool.append(self.x.new_empty(shape))
        self.used += 1
        return self.pool[self.used - 1]

    def whole(self, own: Tensor) -> Tensor:
        """The rows of all shares."""
        return self.wholes[own.data_ptr()]

    def _local_reconstruction(
        self, up: list[DensePart], down: Sequence[DensePart | MemoryPart], weights: Sequence[Sequence[float]]
    ) -> dict[int, Comparison]:
        """lambda * mean (a - b)^2 of every layer, a and b being standardised over all rows. Returns what the output of
        each layer of P receives; the pre-activation of Q is told (`compared`).
        """
        found: dict[int, Comparison] = {}
        self.errors = self.x.new_zeros(len(up))
        """What the rows of this share add to the loss, per layer."""
        if not any(map(any, weights)):
            return found
        for q, p, weight, error in zip(up, down, weights[0], self.errors, strict=True):
            if not weight:
                continue
            (B, units), new = q.pre.shape, q.pre.new_empty
            a, b, difference, numbers = new(B, units), new(B, units), new(B, units), new(2, units)
            self.forward.add("standardise", p.out, self.K, B, units, EPS, False, numbers, a)
            self.forward.add("standardise", q.pre, 1, B, units, EPS, True, q.numbers, b)  # batch norm has taken these
            share = weight / (self.rows * units)
            self.forward.add("compare", a, b, a.numel(), share, difference, error)
            found[id(p)] = Comparison(p.out, self.K, numbers, a, difference, 2 * share)
            q.compared = Comparison(q.pre, 1, q.numbers, b, difference, -2 * share)
        return found

    def _back(
        self, up: list[DensePart], down: Sequence[DensePart | MemoryPart], compared: dict[int, Comparison]
    ) -> None:
        tape, weighed = self.backward, None
        if self.objective.estimator == "dreg":
            slope = cast(Tensor, self.likelihood.slope(self.squares))
            for part in reversed(down):
                slope = cast(Tensor, part.slope(slope))
            weighed = slope
        to_z = self.likelihood.back(self.weights)
        for part in reversed(down):
            if id(part) in compared:
                compared[id(part)].back(tape, to_z)
            to_z = cast(Tensor, part.back(to_z))
        to_log_q, fixed = torch.empty_like(self.log_q), self.objective.estimator != "plain"
        known = (self.z, self.noise, self.log_variance, self.weights, self.squares, weighed)
        tape.add("path", to_z, *known, *self.z.shape, fixed, to_log_q)
        to_mean, to_log_variance = (self.matrix(*self.mean.shape) for _ in range(2))
        operands = (to_z, to_log_q, self.log_variance, self.noise, *self.z.shape)
        tape.add("reparameterise_backward", *operands, to_mean, to_log_variance)
        self.q_part = Part(self)
        to_h = torch.empty_like(self.h) if up else None
        self.q_part.linear_back(self.head.mean, self.h, to_mean, to_h)
        self.q_part.linear_back(self.head.log_variance, self.h, to_log_variance, to_h, more=1.0)
        for layer in reversed(up):
            to_h = layer.back(cast(Tensor, to_h))
        if self.products:
            self._products(tape)

    def _products(self, tape: Tape) -> None:
        """The gradients that are made of all rows: of each matrix this thread makes some rows."""
        tape.add("meet")
        for parameter, a, b in self.products:
            place = self._common(*parameter.shape)
            self.places.append((parameter, place))
            own = place.tensor_split(self.shares)[self.index]
            if len(own):
                tape.product(a.tensor_split(self.shares, 1)[self.index].t(), b, own)
