"""Planned calls of the layers of the paper's nets and their derivatives, for a worker's rows, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from memgen.accelerate.blocks import Block
from memgen.accelerate.decoding import Chosen, coefficients, read, recall
from memgen.accelerate.program import Plan
from memgen.core.layers import BatchNorm, Dense, MemoryLayer
from memgen.core.memory import Attention, Memory, Mlp, ProductKeys, softmax

if TYPE_CHECKING:
    from memgen.accelerate.worker import Worker


class Part:
    """A part of a net. Its methods add calls to the worker's plan.

    Forward: `begin` for a block of the input, `settle` once for all rows, as batch norm needs, then `finish` per block.
    Backward: `begin_back` for a block of the derivative by the output, which is in `place(block)`; `settle_back` once;
    then `finish_back` per block for the derivative by the input, written to `to_h`, and by the parameters, written to
    `gradients` or computed at the end (`Worker.products`).
    """

    def __init__(self, worker: Worker) -> None:
        self.worker, self.plan = worker, worker.plan
        self.gradients: dict[int, tuple[Tensor, Tensor]] = {}
        """id of a parameter -> parameter and gradient."""

    def begin(self, block: Block) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        pass

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        raise NotImplementedError

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """The buffer for the gradient of a parameter."""
        if self.worker.fixed:
            return torch.empty_like(parameter)
        return self.gradients.setdefault(id(parameter), (parameter, torch.empty_like(parameter)))[1]

    def passing(self, name: str, block: Block, like: Tensor) -> Tensor:
        """A buffer for a block of a short-lived gradient, as wide as `like`. All parts share it. With a single block
        each part has a separate one, because the gradients of matrices are computed at the end."""
        return self.worker.passing(f"{name} of {id(self)}" if block.only else name, block, like.shape[1])

    def linear_back(
        self, linear: nn.Linear, block: Block, h: Tensor, gradient: Tensor, out: Tensor | None, keep: float = 0.0
    ) -> None:
        """Backward pass of y = W h + b: the gradients of W, b and, in `out`, of h, added to it with `keep` = 1."""
        self.product_gradient(linear.weight, block, gradient, h)
        if not self.worker.fixed:
            place = self.gradient_of(linear.bias)
            self.plan.add("sum_rows", gradient, block.before > 0, place)
        if out is not None:
            self.plan.product(gradient, linear.weight, out, keep)

    def product_gradient(self, parameter: Tensor, block: Block, a: Tensor, b: Tensor) -> None:
        """The gradient a' b of a matrix; with several workers and one block it is computed at the end, by all."""
        if self.worker.fixed:
            return
        if block.only and self.worker.workers > 1:
            self.worker.products.append((parameter, self.worker.whole(a), self.worker.whole(b)))
        else:
            self.plan.product(a.t(), b, self.gradient_of(parameter), float(block.before > 0))


class Standardised:
    """One side of a term of the local reconstruction: h, standardised over all rows and averaged over its K samples."""

    def __init__(
        self, plan: Plan, h: Tensor, K: int, factor: float, norm: BatchNorm, numbers: Tensor | None = None
    ) -> None:
        """The loss has the derivative factor * difference by `out`. norm: whose epsilon counts. numbers: of h, if batch
        norm has taken them."""
        self.epsilon = norm.epsilon
        self.plan, self.h, self.K, self.factor, self.known = plan, h, K, factor, numbers is not None
        rows, units = len(h) // K, h.shape[1]
        self.numbers = h.new_empty(5, units) if numbers is None else numbers
        self.total = h if self.known else h.new_empty(rows, units)
        self.out, self.sums = h.new_empty(rows, units), h.new_empty(3 * units + 1)

    def gather(self, block: Block) -> None:
        """Add a block of h to the moments and to the sum over samples."""
        rows = block.of(self.h)
        self.plan.add("gather", rows, block.before, self.numbers)
        self.plan.add("sum_samples", rows, block.samples, block.sample > 0, block.once(self.total))

    def settle(self) -> None:
        if not self.known:
            self.plan.add("settle", self.numbers, len(self.h), None, self.epsilon)
        self.plan.add("centre", self.total, 1.0 / self.K, self.numbers, self.out)

    def settle_back(self, difference: Tensor) -> None:
        """difference: that of the averages of P and Q."""
        self.difference = difference
        self.plan.add("standardise_sums", difference, self.out, self.K, self.numbers, self.factor, self.sums)

    def back(self, block: Block, gradient: Tensor) -> None:
        """Add the derivative to a block of the gradient of h."""
        operands = (block.once(self.difference), block.of(self.h), block.samples, self.numbers, self.sums, 1.0 / self.K)
        self.plan.add("standardise_to_input", *operands, gradient)


class Layer(Part):
    """A part with a layer after it."""

    out: Tensor
    compared: Standardised | None = None
    """The standardised output, if the local reconstruction uses it."""

    def finish(self, block: Block) -> None:
        raise NotImplementedError

    def place(self, block: Block) -> Tensor:
        raise NotImplementedError

    def begin_back(self, block: Block) -> None:
        raise NotImplementedError

    def settle_back(self) -> None:
        raise NotImplementedError


class DensePart(Layer):
    """h = max(0, norm(W h_in)); batch norm subtracts the bias, which has no gradient."""

    compared_pre: Standardised | None = None
    """The standardised pre-activation, if the local reconstruction uses it."""

    def __init__(self, worker: Worker, layer: Dense, h: Tensor) -> None:
        super().__init__(worker)
        self.linear, self.norm, self.h = layer.linear, cast(BatchNorm, layer.norm), h
        rows, units = len(h), layer.linear.out_features
        self.pre, self.out, self.to_out = h.new_empty(rows, units), worker.matrix(rows, units), h.new_empty(rows, units)
        self.numbers, self.sums = h.new_empty(5, units), h.new_empty(2 * units + 1)
        """numbers: mean, 1 / sigma, gamma / sigma, and two buffers of the same size."""

    def begin(self, block: Block) -> None:
        pre = block.of(self.pre)
        self.plan.product(block.of(self.h), self.linear.weight.t(), pre)
        self.plan.add("gather", pre, block.before, self.numbers)

    def settle(self) -> None:
        self.plan.add("settle", self.numbers, len(self.pre), self.norm.gamma, self.norm.epsilon)

    def finish(self, block: Block) -> None:
        pre = block.of(self.pre)
        self.plan.add("normalise", pre, self.numbers, self.norm.beta, block.of(self.out))

    def place(self, block: Block) -> Tensor:
        return block.of(self.to_out)

    def begin_back(self, block: Block) -> None:
        pre = block.of(self.pre)
        operands = (block.of(self.to_out), pre, self.numbers, self.norm.beta, block.before > 0)
        self.plan.add("normalise_sums", *operands, self.sums)

    def settle_back(self) -> None:
        gamma, beta = self.gradient_of(self.norm.gamma), self.gradient_of(self.norm.beta)
        self.plan.add("normalise_settle", self.sums, len(self.pre), self.numbers, gamma, beta)

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        pre, to_pre = block.of(self.pre), self.passing("to pre", block, self.pre)
        operands = (block.of(self.to_out), pre, self.numbers, self.norm.beta, self.sums)
        self.plan.add("normalise_to_input", *operands, to_pre)
        if self.compared_pre is not None and not self.worker.fixed:
            self.compared_pre.back(block, to_pre)
        self.product_gradient(self.linear.weight, block, to_pre, block.of(self.h))
        if to_h is not None:
            self.plan.product(to_pre, self.linear.weight, to_h)


class MemoryPart(Layer):
    """h = f_c(h_g, h_m), h_m = M h_a, h_a = squash(A h_g + b_A), h_g of a DensePart."""

    def __init__(self, worker: Worker, layer: MemoryLayer, h: Tensor) -> None:
        super().__init__(worker)
        self.layer, self.dense = layer, DensePart(worker, cast(Dense, layer.dense), h)
        self.gradients, self.memory = self.dense.gradients, cast(Memory, layer.memory)
        rows, units = self.dense.out.shape
        self.h_a, self.h_m, self.out = (worker.matrix(rows, n) for n in (read(layer), units, units))
        self.to_c = h.new_empty(9, units)

    def begin(self, block: Block) -> None:
        self.dense.begin(block)

    def settle(self) -> None:
        self.dense.settle()

    def finish(self, block: Block) -> None:
        self.dense.finish(block)
        h_g, h_a, h_m, out = map(block.of, (self.dense.out, self.h_a, self.h_m, self.out))
        recall(self.plan, self.layer, h_g, h_a, h_m, out, self.chosen(block))

    def chosen(self, block: Block) -> Chosen | None:
        """Buffers of product keys; None for a dense attention."""
        return None

    def place(self, block: Block) -> Tensor:
        return self.passing("to out", block, self.out)

    def begin_back(self, block: Block) -> None:
        gradient, to_g, to_m = self.place(block), self.dense.place(block), self.place_of_h_m(block)
        h_g, h_m, out = map(block.of, (self.dense.out, self.h_m, self.out))
        if isinstance(self.layer.composition, Mlp):
            c = coefficients(self.layer.composition)
            operands = (gradient, h_g, h_m, c, to_g, to_m, block.before > 0)
            self.plan.add("mlp_backward", *operands, self._to_coefficients(c))
        else:
            self.plan.add("add_backward", gradient, out, to_g, to_m)
        self.recall_back(block, to_m, to_g)
        self.dense.begin_back(block)

    def place_of_h_m(self, block: Block) -> Tensor:
        """The buffer for the gradient of h_m."""
        return self.passing("to h_m", block, self.h_m)

    def recall_back(self, block: Block, to_m: Tensor, to_g: Tensor) -> None:
        """Backward pass from h_m through M and the attention; adds to the gradient of h_g."""
        h_g, h_a, attention = block.of(self.dense.out), block.of(self.h_a), cast(Attention, self.layer.attention)
        to_a = self.passing("to h_a", block, self.h_a)
        self.product_gradient(self.memory.M, block, h_a, to_m)
        self.plan.product(to_m, self.memory.M.t(), to_a)
        self.linear_back(attention.A, block, h_g, self.squash_back(block, to_a), to_g, keep=1.0)

    def squash_back(self, block: Block, to_a: Tensor) -> Tensor:
        """The gradient of the scores."""
        h_a, to_scores = block.of(self.h_a), self.passing("to scores", block, self.h_a)
        if cast(Attention, self.layer.attention).squash is softmax:
            self.plan.add("softmax_backward", to_a, h_a, to_scores)
        else:
            self.plan.add("sigmoid_backward", to_a, h_a, to_scores)
        return to_scores

    def settle_back(self) -> None:
        self.dense.settle_back()

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        self.dense.finish_back(block, to_h)

    def _to_coefficients(self, c: tuple[Tensor, ...]) -> Tensor:
        """The buffer for the gradients of all nine coefficients."""
        if self.worker.fixed:
            return torch.empty_like(self.to_c)
        self.gradients |= {id(one): (one, to_one) for one, to_one in zip(c, self.to_c, strict=True)}
        return self.to_c


class KeysPart(MemoryPart):
    """A MemoryPart with product keys: h_a has the weights of the `top` slots in `index`. The gradient of M is sparse
    (`Worker.reads`)."""

    def __init__(self, worker: Worker, layer: MemoryLayer, h: Tensor) -> None:
        super().__init__(worker, layer, h)
        self.keys, rows = cast(ProductKeys, layer.attention), len(self.h_a)
        self.index, self.to_m = worker.matrix(rows, self.keys.top, torch.int64), worker.matrix(*self.h_m.shape)
        index, h_a, to_m = map(worker.whole, (self.index, self.h_a, self.to_m))
        worker.reads.append((self.memory.M, index, h_a, to_m))

    def chosen(self, block: Block) -> Chosen:
        first, second = (self.worker.passing(name, block, self.keys.side) for name in ("first", "second"))
        return Chosen(first, second, block.of(self.index))

    def place_of_h_m(self, block: Block) -> Tensor:
        return block.of(self.to_m)

    def recall_back(self, block: Block, to_m: Tensor, to_g: Tensor) -> None:
        h_g, index, to_a = block.of(self.dense.out), block.of(self.index), self.passing("to h_a", block, self.h_a)
        self.plan.add("read_rows_backward_weights", to_m, self.memory.M, index, to_a)
        first, second = self.keys.first, self.keys.second
        places: list[Tensor | None] = [None] * 4
        if not self.worker.fixed:
            places = [self.gradient_of(one) for key in (first, second) for one in (key.weight, key.bias)]
        operands = (self.squash_back(block, to_a), index, h_g, first.weight, second.weight, block.before > 0)
        self.plan.add("keys_backward", *operands, *places, to_g)
