"""The parts of the paper's nets with their derivatives, each at work on a fixed number of rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor, nn

from memgen.layers import BatchNorm, Dense, MemoryLayer
from memgen.likelihoods import Bernoulli, Gaussian
from memgen.memory import Attention, Memory, Mlp, softmax
from memgen.native.functions import EPS
from memgen.native.library import addresses
from memgen.native.program import Tape
from memgen.tasks.decoding import coefficients, recall

if TYPE_CHECKING:
    from memgen.fused.share import Share


class Part:
    """A part of a net at work on a fixed number of rows. From the derivative of the loss by the part's output,
    `back` makes that by its parameters, kept in `gradients`, or left to the end (`Share.products`), and that by its
    input, which it returns; `slope` makes the latter alone.
    """

    def __init__(self, share: Share) -> None:
        self.share, self.forward, self.backward = share, share.forward, share.backward
        self.gradients: list[tuple[Tensor, Tensor]] = []
        self.silent = False
        """Whether the parameters' part is left out."""

    def back(self, gradient: Tensor) -> Tensor | None:
        raise NotImplementedError

    def slope(self, gradient: Tensor) -> Tensor | None:
        self.silent = True
        try:
            return self.back(gradient)
        finally:
            self.silent = False

    def gradient_of(self, parameter: Tensor) -> Tensor:
        """A place for it."""
        place = torch.empty_like(parameter)
        if not self.silent:
            self.gradients.append((parameter, place))
        return place

    def linear_back(
        self, linear: nn.Linear, h: Tensor, gradient: Tensor, out: Tensor | None, bias: bool = True, more: float = 0.0
    ) -> None:
        """Of y = W h + b: to W, to b if it has a part, and to h, where `out` is the place for that, or for `more`."""
        self.product_gradient(linear.weight, gradient, h)
        if bias and not self.silent:
            self.backward.add("sum_rows", gradient, *gradient.shape, self.gradient_of(linear.bias))
        if out is not None:
            self.backward.product(gradient, linear.weight, out, more)

    def product_gradient(self, parameter: Tensor, a: Tensor, b: Tensor) -> None:
        """a' b over all rows. Where others have some of them it is done at the end, by all threads."""
        if self.silent:
            return
        if self.share.shares == 1:
            self.backward.product(a.t(), b, self.gradient_of(parameter))
        else:
            self.share.products.append((parameter, self.share.whole(a), self.share.whole(b)))


class Comparison(NamedTuple):
    """One side of a term of the local reconstruction: h, standardised over all rows and averaged over its K samples."""

    h: Tensor
    K: int
    numbers: Tensor
    out: Tensor
    difference: Tensor
    """Of the averages of both sides."""
    factor: float
    """The loss has the derivative factor * difference by `out`."""

    def back(self, tape: Tape, gradient: Tensor) -> None:
        """Added to the gradient of h."""
        operands = (self.difference, self.h, self.out, self.K, *self.out.shape, self.numbers, self.factor, True)
        tape.add("standardise_backward", *operands, gradient)


class DensePart(Part):
    """h = max(0, norm(W h_in)); batch norm takes the bias away, so it has no gradient."""

    def __init__(self, share: Share, layer: Dense, h: Tensor, root: bool = False) -> None:
        super().__init__(share)
        self.layer, self.h, self.norm, self.root = layer, h, cast(BatchNorm, layer.norm), root
        """root: its input is x, of which nobody needs a gradient."""
        rows, units = len(h), layer.linear.out_features
        self.pre, self.out, self.numbers = h.new_empty(rows, units), share.matrix(rows, units), h.new_empty(3, units)
        """numbers: mean, 1 / sigma and gamma / sigma."""
        self.compared: Comparison | None = None
        """Where the pre-activation receives a gradient beside the one that comes through the output."""
        self.forward.product(h, layer.linear.weight.t(), self.pre)
        operands = (self.pre, rows, units, self.norm.gamma, self.norm.beta, EPS)
        self.forward.add("batch_norm_relu", *operands, self.numbers, self.out)

    def back(self, gradient: Tensor) -> Tensor | None:
        shape = self.pre.shape
        to_pre = self.share.matrix(*shape)
        gamma, beta = self.gradient_of(self.norm.gamma), self.gradient_of(self.norm.beta)
        operands = (gradient, self.pre, *shape, self.numbers, self.norm.beta)
        self.backward.add("normalise_backward", *operands, to_pre, gamma, beta)
        if self.compared is not None and not self.silent:
            self.compared.back(self.backward, to_pre)
        to_h = None if self.root else torch.empty_like(self.h)
        self.linear_back(self.layer.linear, self.h, to_pre, to_h, bias=False)
        return to_h


class MemoryPart(Part):
    """h = f_c(h_g, h_m), h_m = M h_a, h_a = squash(A h_g + b_A), h_g of a DensePart."""

    def __init__(self, share: Share, layer: MemoryLayer, h: Tensor) -> None:
        super().__init__(share)
        self.dense = DensePart(share, cast(Dense, layer.dense), h)
        self.h_g = h_g = self.dense.out
        self.attention, self.memory = cast(Attention, layer.attention), cast(Memory, layer.memory)
        self.composition = layer.composition
        self.h_a, self.h_m, self.out = recall(self.forward, layer, h_g, share.matrix)

    def back(self, gradient: Tensor) -> Tensor | None:
        tape, h_g, shape = self.backward, self.h_g, self.h_g.shape
        to_m, to_g = self.share.matrix(*shape), torch.empty_like(h_g)
        if isinstance(self.composition, Mlp):
            to_c, c = h_g.new_empty(9, shape[1]), coefficients(self.composition)
            tape.add("mlp_backward", gradient, h_g, self.h_m, *shape, addresses(c), to_g, to_m, to_c)
            if not self.silent:
                self.gradients += zip(c, to_c, strict=True)
        else:
            tape.add("sum_backward", gradient, self.out, gradient.numel(), to_g, to_m)
        to_a, to_scores = torch.empty_like(self.h_a), self.share.matrix(*self.h_a.shape)
        self.product_gradient(self.memory.M, self.h_a, to_m)
        tape.product(to_m, self.memory.M.t(), to_a)
        if self.attention.squash is softmax:
            tape.add("softmax_backward", to_a, self.h_a, *to_a.shape, to_scores)
        else:
            tape.add("sigmoid_backward", to_a, self.h_a, to_a.numel(), to_scores)
        self.linear_back(self.attention.A, h_g, to_scores, to_g, more=1.0)
        if self.silent:
            return self.dense.slope(to_g)
        to_h = self.dense.back(to_g)
        self.gradients += self.dense.gradients
        return to_h


class BernoulliPart(Part):
    """log p(x|z) = sum_d x_d l_d - log(1 + e^l_d), l = W h + b."""

    def __init__(self, share: Share, head: Bernoulli, h: Tensor, x: Tensor, K: int) -> None:
        super().__init__(share)
        self.head, self.h, self.x, self.K = head, h, x, K
        self.products, self.log_p = h.new_empty(len(h), x.shape[1]), h.new_empty(K, len(x))
        self.forward.product(h, head.logits.weight.t(), self.products)
        self.forward.add("bernoulli", self.products, head.logits.bias, x, K, *x.shape, self.log_p)

    def back(self, weights: Tensor) -> Tensor:
        linear, to_products = self.head.logits, self.share.matrix(*self.products.shape)
        to_h = torch.empty_like(self.h)
        operands = (weights, self.products, linear.bias, self.x, self.K, *self.x.shape)
        self.backward.add("bernoulli_backward", *operands, to_products, self.gradient_of(linear.bias))
        self.linear_back(linear, self.h, to_products, to_h, bias=False)
        return to_h


class GaussianPart(Part):
    """log p(x|z) = -1/2 sum_d log 2 pi + log s^2 + e^2 with e = (x - m) / s and s^2 = exp(raw) + floor^2."""

    def __init__(self, share: Share, head: Gaussian, h: Tensor, x: Tensor, K: int) -> None:
        super().__init__(share)
        self.head, self.h, self.x, self.K = head, h, x, K
        self.mean, self.raw = (h.new_empty(len(h), x.shape[1]) for _ in range(2))
        self.log_p = h.new_empty(K, len(x))
        self.forward.linear(head.mean, h, self.mean)
        self.forward.linear(head.log_variance, h, self.raw)
        self.forward.add("gaussian", self.mean, self.raw, x, K, *x.shape, float(head.floor) ** 2, self.log_p)

    def back(self, weights: Tensor) -> Tensor:
        to_mean, to_raw = (self.share.matrix(*self.mean.shape) for _ in range(2))
        to_h = torch.empty_like(self.h)
        operands = (weights, self.mean, self.raw, self.x, self.K, *self.x.shape, float(self.head.floor) ** 2)
        self.backward.add("gaussian_backward", *operands, to_mean, to_raw)
        self.linear_back(self.head.mean, self.h, to_mean, to_h)
        self.linear_back(self.head.log_variance, self.h, to_raw, to_h, more=1.0)
        return to_h
