"""Planned calls of the heads of the paper's nets and their derivatives: likelihoods, and the posterior with z."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from memgen.accelerate.blocks import Block
from memgen.accelerate.layers import Part
from memgen.core.likelihoods import Bernoulli, Gaussian

if TYPE_CHECKING:
    from memgen.accelerate.worker import Worker


class BernoulliPart(Part):
    """log p(x|z) = sum_d x_d l_d - log(1 + e^l_d), l = W h + b."""

    def __init__(self, worker: Worker, head: Bernoulli, h: Tensor) -> None:
        super().__init__(worker)
        self.linear, self.h, self.x = head.logits, h, worker.x
        self.products, self.log_p = h.new_empty(len(h), self.x.shape[1]), h.new_empty(len(h))

    def begin(self, block: Block) -> None:
        products, x = block.of(self.products), block.once(self.x)
        self.plan.product(block.of(self.h), self.linear.weight.t(), products)
        self.plan.add("bernoulli", products, self.linear.bias, x, block.samples, block.of(self.log_p))

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        weights, products, x = block.of(self.worker.back_weights), block.of(self.products), block.once(self.x)
        to_products = self.passing("to products", block, x)
        operands = (weights, products, self.linear.bias, x, block.samples, to_products, block.before > 0)
        self.plan.add("bernoulli_backward", *operands, self.gradient_of(self.linear.bias))
        self.product_gradient(self.linear.weight, block, to_products, block.of(self.h))
        if to_h is not None:
            self.plan.product(to_products, self.linear.weight, to_h)


class GaussianPart(Part):
    """log p(x|z) = -1/2 sum_d log 2 pi + log s^2 + e^2 with e = (x - m) / s and s^2 = exp(raw) + floor^2."""

    def __init__(self, worker: Worker, head: Gaussian, h: Tensor) -> None:
        super().__init__(worker)
        self.head, self.h, self.x, self.square = head, h, worker.x, float(head.floor) ** 2
        self.mean, self.raw = (h.new_empty(len(h), self.x.shape[1]) for _ in range(2))
        self.log_p = h.new_empty(len(h))

    def begin(self, block: Block) -> None:
        h, mean, raw, x = block.of(self.h), block.of(self.mean), block.of(self.raw), block.once(self.x)
        self.plan.linear(self.head.mean, h, mean)
        self.plan.linear(self.head.log_variance, h, raw)
        self.plan.add("gaussian", mean, raw, x, block.samples, self.square, block.of(self.log_p))

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        h, mean, raw, x = block.of(self.h), block.of(self.mean), block.of(self.raw), block.once(self.x)
        to_mean, to_raw = (self.passing(name, block, x) for name in ("to mean", "to raw"))
        operands = (block.of(self.worker.back_weights), mean, raw, x, block.samples, self.square)
        self.plan.add("gaussian_backward", *operands, to_mean, to_raw)
        self.linear_back(self.head.mean, block, h, to_mean, to_h)
        self.linear_back(self.head.log_variance, block, h, to_raw, to_h, keep=1.0)


class PosteriorPart(Part):
    """z = m + s * noise and log q(z|x), from the last layer of Q."""

    def __init__(self, worker: Worker, head: Gaussian, h: Tensor) -> None:
        super().__init__(worker)
        self.head, self.h = head, h
        K, B, d, new = worker.K, len(h), head.columns, h.new_empty
        self.mean, self.log_variance, self.noise, self.log_q = new(B, d), new(B, d), new(K, B, d), new(K, B)
        self.z = worker.matrix(K * B, d)
        self.to_mean, self.to_log_variance = worker.matrix(B, d), worker.matrix(B, d)

    def begin(self, block: Block) -> None:
        self.plan.linear(self.head.mean, block.of(self.h), block.of(self.mean))
        self.plan.linear(self.head.log_variance, block.of(self.h), block.of(self.log_variance))

    def settle(self) -> None:
        self.plan.add("reparameterise", self.mean, self.log_variance, self.noise, self.z, self.log_q)

    def settle_back(self, to_z: Tensor, to_log_q: Tensor) -> None:
        operands = (to_z, to_log_q, self.log_variance, self.noise)
        self.plan.add("reparameterise_backward", *operands, self.to_mean, self.to_log_variance)

    def finish_back(self, block: Block, to_h: Tensor | None) -> None:
        h = block.of(self.h)
        self.linear_back(self.head.mean, block, h, block.of(self.to_mean), to_h)
        self.linear_back(self.head.log_variance, block, h, block.of(self.to_log_variance), to_h, keep=1.0)
