"""The parts of the paper's nets with their derivatives, each at work on the rows of a share, block by block."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from memgen.accelerate.blocks import Block
from memgen.accelerate.decoding import Chosen, coefficients, read, recall
from memgen.accelerate.library import addresses
from memgen.accelerate.program import Tape
from memgen.core.layers import BatchNorm, Dense, MemoryLayer
from memgen.core.likelihoods import Bernoulli, Gaussian
from memgen.core.memory import Attention, Memory, Mlp, ProductKeys, softmax

if TYPE_CHECKING:
    from memgen.accelerate.share import Share


class Part:
    """A part of a net. `begin` writes down what it does with a block of its input, `settle` what needs all of them, as
    batch norm does, `finish` what comes after that.

    Back from the other end: `begin_back` has a block of the derivative of the loss by the part's output where `place`
    says; after `settle_back`, `finish_back` makes the derivative by the input, where `to_h` is the place for it, and
    that by the parameters, in `gradients`, or left to the end (`Share.products`).
    """

    def __init__(self, share: Share) -> None:
        self.share, self.tape = share, share.tape
        self.gradients: dict[int, tuple[Tensor, Tensor]] = {}
        """By the parameter's id: parameter and gradient."""

    def begin(self, block: Block) -> None:
        raise NotImplementedError

    def settle(self) -> None:
        pass

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        raise NotImplementedError

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """A place for it."""
        if self.share.silent:
            return torch.empty_like(parameter)
        return self.gradients.setdefault(id(parameter), (parameter, torch.empty_like(parameter)))[1]

    def passing(self, name: str, block: Block, like: Tensor) -> Tensor:
        """A place for a block of a gradient that nobody needs for longer, as wide as another matrix. All parts share
        it; where there is only one block, each has its own, because the gradients of matrices come at the end."""
        return self.share.passing(f"{name} of {id(self)}" if block.only else name, block, like.shape[1])

    def linear_back(
        self, linear: nn.Linear, block: Block, h: Tensor, gradient: Tensor, out: Tensor | None, more: float = 0.0
    ) -> None:
        """Of y = W h + b: to W, to b, and to h, where `out` is the place for that, or for `more`."""
        self.product_gradient(linear.weight, block, gradient, h)
        if not self.share.silent:
            place = self.gradient_of(linear.bias)
            self.tape.add("sum_rows", gradient, *gradient.shape, block.before > 0, place)
        if out is not None:
            self.tape.product(gradient, linear.weight, out, more)

    def product_gradient(self, parameter: Tensor, block: Block, a: Tensor, b: Tensor) -> None:
        """a' b. Where others have some of the rows, and few, it is done at the end, by all threads."""
        if self.share.silent:
            return
        if block.only and self.share.shares > 1:
            self.share.products.append((parameter, self.share.whole(a), self.share.whole(b)))
        else:
            self.tape.product(a.t(), b, self.gradient_of(parameter), float(block.before > 0))


class Standardised:
    """One side of a term of the local reconstruction: h, standardised over all rows and averaged over its K samples."""

    def __init__(
        self, tape: Tape, h: Tensor, K: int, factor: float, norm: BatchNorm, numbers: Tensor | None = None
    ) -> None:
        """The loss has the derivative factor * difference by `out`. norm: whose epsilon counts. numbers: of h, if batch
        norm has taken them."""
        self.epsilon = norm.epsilon
        self.tape, self.h, self.K, self.factor, self.known = tape, h, K, factor, numbers is not None
        rows, units = len(h) // K, h.shape[1]
        self.numbers = h.new_empty(5, units) if numbers is None else numbers
        self.total = h if self.known else h.new_empty(rows, units)
        self.out, self.sums = h.new_empty(rows, units), h.new_empty(3 * units + 1)

    def gather(self, block: Block) -> None:
        """As soon as a block of h is there."""
        own, units = block.of(self.h), self.h.shape[1]
        self.tape.add("gather", own, *own.shape, block.before, self.numbers)
        sizes = (block.samples, block.rows, units)
        self.tape.add("sum_samples", own, *sizes, block.sample > 0, block.once(self.total))

    def settle(self) -> None:
        if not self.known:
            self.tape.add("settle", self.numbers, *self.h.shape, None, self.epsilon)
        self.tape.add("centre", self.total, *self.out.shape, 1.0 / self.K, self.numbers, self.out)

    def settle_back(self, difference: Tensor) -> None:
        """difference: of the averages of both sides."""
        self.difference = difference
        operands = (difference, self.out, self.K, *self.out.shape, self.numbers, self.factor)
        self.tape.add("standardise_sums", *operands, self.sums)

    def back(self, block: Block, gradient: Tensor) -> None:
        """Added to a block of the gradient of h."""
        sizes = (block.samples, block.rows, self.h.shape[1])
        operands = (block.once(self.difference), block.of(self.h), *sizes, self.numbers, self.sums, 1.0 / self.K)
        self.tape.add("standardise_to_input", *operands, gradient)


class Layer(Part):
    """A part with a layer after it."""

    out: Tensor
    compared: Standardised | None = None
    """The output, where the local reconstruction compares it."""

    def finish(self, block: Block) -> None:
        raise NotImplementedError

    def place(self, block: Block) -> Tensor:
        raise NotImplementedError

    def begin_back(self, block: Block) -> None:
        raise NotImplementedError

    def settle_back(self) -> None:
        raise NotImplementedError


class DensePart(Layer):
    """h = max(0, norm(W h_in)); batch norm takes the bias away, so it has no gradient."""

    compared_pre: Standardised | None = None
    """What batch norm gets, where the local reconstruction compares that."""

    def __init__(self, share: Share, layer: Dense, h: Tensor) -> None:
        super().__init__(share)
        self.linear, self.norm, self.h = layer.linear, cast(BatchNorm, layer.norm), h
        rows, units = len(h), layer.linear.out_features
        self.pre, self.out, self.to_out = h.new_empty(rows, units), share.matrix(rows, units), h.new_empty(rows, units)
        self.numbers, self.sums = h.new_empty(5, units), h.new_empty(2 * units + 1)
        """numbers: mean, 1 / sigma, gamma / sigma, and two places more."""

    def begin(self, block: Block) -> None:
        pre = block.of(self.pre)
        self.tape.product(block.of(self.h), self.linear.weight.t(), pre)
        self.tape.add("gather", pre, *pre.shape, block.before, self.numbers)

    def settle(self) -> None:
        self.tape.add("settle", self.numbers, *self.pre.shape, self.norm.gamma, self.norm.epsilon)

    def finish(self, block: Block) -> None:
        pre = block.of(self.pre)
        self.tape.add("normalise", pre, *pre.shape, self.numbers, self.norm.beta, block.of(self.out))

    def place(self, block: Block) -> Tensor:
        return block.of(self.to_out)

    def begin_back(self, block: Block) -> None:
        pre = block.of(self.pre)
        operands = (block.of(self.to_out), pre, *pre.shape, self.numbers, self.norm.beta, block.before > 0)
        self.tape.add("normalise_sums", *operands, self.sums)

    def settle_back(self) -> None:
        gamma, beta = self.gradient_of(self.norm.gamma), self.gradient_of(self.norm.beta)
        self.tape.add("normalise_settle", self.sums, *self.pre.shape, self.numbers, gamma, beta)

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        pre, to_pre = block.of(self.pre), self.passing("to pre", block, self.pre)
        operands = (block.of(self.to_out), pre, *pre.shape, self.numbers, self.norm.beta, self.sums)
        self.tape.add("normalise_to_input", *operands, to_pre)
        if self.compared_pre is not None and not self.share.silent:
            self.compared_pre.back(block, to_pre)
        self.product_gradient(self.linear.weight, block, to_pre, block.of(self.h))
        if to_h is not None:
            self.tape.product(to_pre, self.linear.weight, to_h)


class MemoryPart(Layer):
    """h = f_c(h_g, h_m), h_m = M h_a, h_a = squash(A h_g + b_A), h_g of a DensePart."""

    def __init__(self, share: Share, layer: MemoryLayer, h: Tensor) -> None:
        super().__init__(share)
        self.layer, self.dense = layer, DensePart(share, cast(Dense, layer.dense), h)
        self.gradients, self.memory = self.dense.gradients, cast(Memory, layer.memory)
        rows, units = self.dense.out.shape
        self.h_a, self.h_m, self.out = (share.matrix(rows, n) for n in (read(layer), units, units))

    def begin(self, block: Block) -> None:
        self.dense.begin(block)

    def settle(self) -> None:
        self.dense.settle()

    def finish(self, block: Block) -> None:
        self.dense.finish(block)
        h_g, h_a, h_m, out = map(block.of, (self.dense.out, self.h_a, self.h_m, self.out))
        recall(self.tape, self.layer, h_g, h_a, h_m, out, self.chosen(block))

    def chosen(self, block: Block) -> Chosen | None:
        """Places for what an attention to few slots needs."""
        return None

    def place(self, block: Block) -> Tensor:
        return self.passing("to out", block, self.out)

    def begin_back(self, block: Block) -> None:
        gradient, to_g, to_m = self.place(block), self.dense.place(block), self.place_of_h_m(block)
        h_g, h_m, out = map(block.of, (self.dense.out, self.h_m, self.out))
        if isinstance(self.layer.composition, Mlp):
            c = coefficients(self.layer.composition)
            operands = (gradient, h_g, h_m, *h_g.shape, addresses(c), to_g, to_m, block.before > 0)
            self.tape.add("mlp_backward", *operands, self._to_coefficients(c))
        else:
            self.tape.add("sum_backward", gradient, out, out.numel(), to_g, to_m)
        self.recall_back(block, to_m, to_g)
        self.dense.begin_back(block)

    def place_of_h_m(self, block: Block) -> Tensor:
        """For its gradient."""
        return self.passing("to h_m", block, self.h_m)

    def recall_back(self, block: Block, to_m: Tensor, to_g: Tensor) -> None:
        """From h_m by M and the attention to h_g, whose gradient grows by that."""
        h_g, h_a, attention = block.of(self.dense.out), block.of(self.h_a), cast(Attention, self.layer.attention)
        to_a = self.passing("to h_a", block, self.h_a)
        self.product_gradient(self.memory.M, block, h_a, to_m)
        self.tape.product(to_m, self.memory.M.t(), to_a)
        self.linear_back(attention.A, block, h_g, self.squash_back(block, to_a), to_g, more=1.0)

    def squash_back(self, block: Block, to_a: Tensor) -> Tensor:
        """To the scores."""
        h_a, to_scores = block.of(self.h_a), self.passing("to scores", block, self.h_a)
        if cast(Attention, self.layer.attention).squash is softmax:
            self.tape.add("softmax_backward", to_a, h_a, *h_a.shape, to_scores)
        else:
            self.tape.add("sigmoid_backward", to_a, h_a, h_a.numel(), to_scores)
        return to_scores

    def settle_back(self) -> None:
        self.dense.settle_back()

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        self.dense.finish_back(block, to_h)

    def _to_coefficients(self, c: tuple[Tensor, ...]) -> Tensor:
        """Places for all nine, one after the other."""
        if self.share.silent:
            return c[0].new_empty(9, len(c[0]))
        if id(c[0]) not in self.gradients:
            to_c = c[0].new_empty(9, len(c[0]))
            self.gradients |= {id(one): (one, to_one) for one, to_one in zip(c, to_c, strict=True)}
        return self.gradients[id(c[0])][1]


class KeysPart(MemoryPart):
    """The same with product keys: h_a is for the `top` slots of the largest scores, and `index` says which these are;
    the gradient of M has the rows that were read (`Share.reads`)."""

    def __init__(self, share: Share, layer: MemoryLayer, h: Tensor) -> None:
        super().__init__(share, layer, h)
        self.keys, rows = cast(ProductKeys, layer.attention), len(self.h_a)
        self.index, self.to_m = share.matrix(rows, self.keys.top, torch.int64), share.matrix(*self.h_m.shape)
        index, h_a, to_m = map(share.whole, (self.index, self.h_a, self.to_m))
        share.reads.append((self.memory.M, index, h_a, to_m))

    def chosen(self, block: Block) -> Chosen:
        first, second = (self.share.passing(name, block, self.keys.side) for name in ("first", "second"))
        return Chosen(first, second, block.of(self.index))

    def place_of_h_m(self, block: Block) -> Tensor:
        return block.of(self.to_m)

    def recall_back(self, block: Block, to_m: Tensor, to_g: Tensor) -> None:
        h_g, index, to_a = block.of(self.dense.out), block.of(self.index), self.passing("to h_a", block, self.h_a)
        self.tape.add("read_rows_backward_weights", to_m, self.memory.M, index, *index.shape, to_m.shape[1], to_a)
        to_scores, keys = self.squash_back(block, to_a), (self.keys.first, self.keys.second)
        sizes = (*h_g.shape, self.keys.halves[0], self.keys.side, self.keys.top)
        weights, to_keys = addresses([key.weight for key in keys]), None
        if not self.share.silent:
            to_keys = addresses([self.gradient_of(one) for key in keys for one in (key.weight, key.bias)])
        self.tape.add("keys_backward", to_scores, index, h_g, *sizes, weights, block.before > 0, to_keys, to_g)


class BernoulliPart(Part):
    """log p(x|z) = sum_d x_d l_d - log(1 + e^l_d), l = W h + b."""

    def __init__(self, share: Share, head: Bernoulli, h: Tensor) -> None:
        super().__init__(share)
        self.linear, self.h, self.x = head.logits, h, share.x
        self.products, self.log_p = h.new_empty(len(h), self.x.shape[1]), h.new_empty(len(h))

    def begin(self, block: Block) -> None:
        products, x = block.of(self.products), block.once(self.x)
        self.tape.product(block.of(self.h), self.linear.weight.t(), products)
        self.tape.add("bernoulli", products, self.linear.bias, x, block.samples, *x.shape, block.of(self.log_p))

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        weights, products, x = block.of(self.share.back_weights), block.of(self.products), block.once(self.x)
        to_products = self.passing("to products", block, x)
        operands = (weights, products, self.linear.bias, x, block.samples, *x.shape, to_products, block.before > 0)
        self.tape.add("bernoulli_backward", *operands, self.gradient_of(self.linear.bias))
        self.product_gradient(self.linear.weight, block, to_products, block.of(self.h))
        if to_h is not None:
            self.tape.product(to_products, self.linear.weight, to_h)


class GaussianPart(Part):
    """log p(x|z) = -1/2 sum_d log 2 pi + log s^2 + e^2 with e = (x - m) / s and s^2 = exp(raw) + floor^2."""

    def __init__(self, share: Share, head: Gaussian, h: Tensor) -> None:
        super().__init__(share)
        self.head, self.h, self.x, self.square = head, h, share.x, float(head.floor) ** 2
        self.mean, self.raw = (h.new_empty(len(h), self.x.shape[1]) for _ in range(2))
        self.log_p = h.new_empty(len(h))

    def begin(self, block: Block) -> None:
        h, mean, raw, x = block.of(self.h), block.of(self.mean), block.of(self.raw), block.once(self.x)
        self.tape.linear(self.head.mean, h, mean)
        self.tape.linear(self.head.log_variance, h, raw)
        self.tape.add("gaussian", mean, raw, x, block.samples, *x.shape, self.square, block.of(self.log_p))

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        h, mean, raw, x = block.of(self.h), block.of(self.mean), block.of(self.raw), block.once(self.x)
        to_mean, to_raw = (self.passing(name, block, x) for name in ("to mean", "to raw"))
        operands = (block.of(self.share.back_weights), mean, raw, x, block.samples, *x.shape, self.square)
        self.tape.add("gaussian_backward", *operands, to_mean, to_raw)
        self.linear_back(self.head.mean, block, h, to_mean, to_h)
        self.linear_back(self.head.log_variance, block, h, to_raw, to_h, more=1.0)


class PosteriorPart(Part):
    """z = m + s * noise and log q(z|x), from the last layer of Q."""

    def __init__(self, share: Share, head: Gaussian, h: Tensor) -> None:
        super().__init__(share)
        self.head, self.h = head, h
        K, B, d, new = share.K, len(h), head.columns, h.new_empty
        self.mean, self.log_variance, self.noise, self.log_q = new(B, d), new(B, d), new(K, B, d), new(K, B)
        self.z = share.matrix(K * B, d)
        self.to_mean, self.to_log_variance = share.matrix(B, d), share.matrix(B, d)

    def begin(self, block: Block) -> None:
        self.tape.linear(self.head.mean, block.of(self.h), block.of(self.mean))
        self.tape.linear(self.head.log_variance, block.of(self.h), block.of(self.log_variance))

    def settle(self) -> None:
        operands = (self.mean, self.log_variance, self.noise, *self.noise.shape)
        self.tape.add("reparameterise", *operands, self.z, self.log_q)

    def settle_back(self, to_z: Tensor, to_log_q: Tensor) -> None:
        operands = (to_z, to_log_q, self.log_variance, self.noise, *self.noise.shape)
        self.tape.add("reparameterise_backward", *operands, self.to_mean, self.to_log_variance)

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        h = block.of(self.h)
        self.linear_back(self.head.mean, block, h, block.of(self.to_mean), to_h)
        self.linear_back(self.head.log_variance, block, h, block.of(self.to_log_variance), to_h, more=1.0)
