"""The loss of a training step and its gradients without autograd: for the paper's models in float32 on a CPU.

autograd finds the derivative of any program, and pays for it with every call: on small nets a step spends more time
between the formulas than in them. The nets of the paper have few kinds of parts, whose derivatives are known. So a step
is written down once, as a list of matrix products and kernels with all their operands (`Tape`), and then only repeated;
nothing is allocated on the way, and Python is not asked. With several threads each has a share of the rows and a list
of its own (`Share`). What it buys: docs/performance.md.

`objective.py` and `model.py` say what is computed; tests/test_fused.py holds values and gradients of both together.
What does not fit (`fits`) goes the ordinary way.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

from memgen.layers import BatchNorm, Dense, MemoryLayer
from memgen.likelihoods import Bernoulli, Gaussian
from memgen.memory import Attention, Memory, Mlp, softmax
from memgen.model import DGM, Batch, Conditional, Levels
from memgen.native.functions import EPS
from memgen.native.library import addresses, serves
from memgen.native.program import Program, Tape, blas
from memgen.recipe import Objective
from memgen.tasks.decoding import coefficients, linear_fits, recall, recall_fits, sizes_chain

SERVED = [*product(("plain", "stl"), ("elbo", "importance")), ("dreg", "importance")]
"""Estimators and bounds."""
ENTRIES = 16384
"""Rows of P times units that each thread must have; where there are fewer, threads would rather wait than work, and
all work together on those calls that are large enough."""


def fits(model: DGM, objective: Objective) -> bool:
    """Whether a step of this model can be written down: the very classes of the paper's models, one level, batch norm,
    dense attention, Bernoulli or Gaussian rows, layers that fit each other, every parameter once, float32 on the CPU,
    and a torch whose matrix products are MKL's.
    """
    return (
        (objective.estimator, objective.bound) in SERVED
        and type(model) is DGM
        and not model.mask
        and len(model.q) == 1
        and all(type(net) is Conditional and not net.skip for net in (*model.q, *model.p))
        and all(type(layer) is Dense and _layer_fits(layer) for layer in cast(Conditional, model.q[0]).layers)
        and all(map(_layer_fits, cast(Conditional, model.p[0]).layers))
        and type(model.q[0].head) is Gaussian
        and not model.q[0].head.floor
        and type(model.p[0].head) in (Bernoulli, Gaussian)
        and all(map(linear_fits, (*model.q[0].head.children(), *cast(nn.Module, model.p[0].head).children())))
        and _sizes_fit(model, objective)
        and len([*model.named_parameters(remove_duplicate=False)]) == len([*model.parameters()])
        and serves(*model.parameters())
        and blas()
    )


def _sizes_fit(model: DGM, objective: Objective) -> bool:
    """Whether torch would not refuse them: that a call takes more numbers than there are, nobody would notice."""
    q, p = cast(Conditional, model.q[0]), cast(Conditional, model.p[0])
    up = [cast(Dense, layer) for layer in q.layers]
    down = [cast(Dense, layer.dense if isinstance(layer, MemoryLayer) else layer) for layer in p.layers]
    x, z = model.likelihood.columns, model.latent[0]
    compared = any(map(any, objective.local_reconstruction))
    return (
        sizes_chain([dense.linear for dense in up], x, [*q.head.children()], z)
        and sizes_chain([dense.linear for dense in down], z, [*p.head.children()], x)
        and all(len(dense.norm.gamma) == dense.linear.out_features for dense in (*up, *down))  # type: ignore[arg-type]
        and (not compared or [d.linear.out_features for d in up] == [d.linear.out_features for d in down[::-1]])
    )


def _layer_fits(layer: nn.Module) -> bool:
    if type(layer) is MemoryLayer:
        return type(layer.dense) is Dense and _layer_fits(layer.dense) and recall_fits(layer)
    return type(layer) is Dense and type(layer.norm) is BatchNorm and linear_fits(layer.linear)


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
        self.bound, self.weights, self.squares = (self.z.new_empty(shape) for shape in ((B,), (K, B), (K, B)))
        terms = (self.likelihood.log_p, self.z, self.log_q)
        importance = K > 1 and self.objective.bound == "importance"
        self.forward.add("weigh", *terms, K, B, d, importance, self.rows, self.bound, self.weights, self.squares)

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
        self.errors: list[tuple[float, Tensor]] = []
        """What a sum of squares counts in the loss, and the sum."""
        if not any(map(any, weights)):
            return found
        for q, p, weight in zip(up, down, weights[0], strict=True):
            if not weight:
                continue
            (B, units), new = q.pre.shape, q.pre.new_empty
            a, b, difference, error, numbers = new(B, units), new(B, units), new(B, units), new(()), new(2, units)
            self.forward.add("standardise", p.out, self.K, B, units, EPS, False, numbers, a)
            self.forward.add("standardise", q.pre, 1, B, units, EPS, True, q.numbers, b)  # batch norm has taken these
            self.forward.add("compare", a, b, a.numel(), difference, error)
            share = weight / (self.rows * units)
            self.errors.append((share, error))
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


def _hooked(parameter: nn.Parameter) -> bool:
    return bool(parameter._backward_hooks or parameter._post_accumulate_grad_hooks)


def _watched(module: nn.Module) -> bool:
    return bool(
        module._forward_hooks or module._forward_pre_hooks or module._backward_hooks or module._backward_pre_hooks
    )


class Step:
    """The step of a model with K samples of each of B rows, written down. Calling it leaves the gradients of the loss
    in the parameters, in the same places every time, and returns loss and bound.
    """

    def __init__(self, model: DGM, objective: Objective, K: int, B: int) -> None:
        if not fits(model, objective):
            raise ValueError("a step of this model cannot be written down")
        self.model, self.objective, self.K = model, objective, K
        self.x = next(model.parameters()).new_empty(B, model.likelihood.columns)
        self.modules, self.places = [*model.modules()], [(p, p.data_ptr()) for p in model.parameters()]
        self.widest = max([net.linear.out_features for net in self.modules if isinstance(net, Dense)], default=0)
        threads = torch.get_num_threads()
        self.write(threads if min(B, K * B * self.widest // ENTRIES) >= threads else 1)

    def write(self, shares: int) -> None:
        """One list of calls for each of so many shares of the rows."""
        self.count = shares
        pool: list[Tensor] = []
        self.shares = [Share(self, index, pool) for index in range(shares)]
        whole = {id(parameter): [place] for parameter, place in self.shares[0].places}
        for share in self.shares:
            for parameter, place in share.gradients:
                whole.setdefault(id(parameter), []).append(place)
        self.gradients = [(parameter, whole[id(parameter)]) for parameter, _ in self.places if id(parameter) in whole]
        several = [places for _, places in self.gradients if shares > 1 and len(places) == shares]
        lists = [share.forward.calls + share.backward.calls for share in self.shares]
        self.program = Program(lists, several, self.widest)

    @property
    def moved(self) -> bool:
        """Whether a parameter lies elsewhere by now."""
        return any(parameter.data_ptr() != place for parameter, place in self.places)

    @property
    def alone(self) -> bool:
        """Whether all parts train and nobody looks on who would miss autograd."""
        return (
            all(parameter.requires_grad and not _hooked(parameter) for parameter, _ in self.places)
            and all(module.training and not _watched(module) for module in self.modules)
            and not has_global_hooks()
            and not torch.is_autocast_enabled("cpu")
            and not torch.compiler.is_compiling()
        )

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Levels) -> Float[Tensor, "2"]:
        wanted = (self.K, len(self.x), self.model.latent[0])
        if batch.x.shape != self.x.shape or noise[0].shape != wanted:
            raise ValueError(f"this step is for rows {tuple(self.x.shape)} and noise {wanted}")
        self.x.copy_(batch.x)
        if not self._run(noise[0]):  # somebody keeps the threads from it
            self.write(1)
            self._run(noise[0])
        for parameter, copies in self.gradients:
            parameter.grad = copies[0]
        mean = torch.cat([share.bound for share in self.shares]).mean()
        errors = [weight * error for share in self.shares for weight, error in share.errors]
        return torch.stack([sum(errors, -mean), mean])

    def _run(self, noise: Float[Tensor, "K B d"]) -> bool:
        """False if there were too few threads, and nothing was done."""
        for share, own in zip(self.shares, noise.tensor_split(len(self.shares), 1), strict=True):
            share.noise.copy_(own)
        return self.program.run()


class Written:
    """The steps of a model that are written down so far, by objective, K, B and number of threads."""

    def __init__(self) -> None:
        self.steps: dict[tuple[Objective, int, int, int], Step | None] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Written:
        return Written()  # a step knows its model by addresses

    def find(self, model: DGM, objective: Objective, batch: Batch, noise: Levels) -> Step | None:
        """The step for this batch; None if it is autograd's."""
        if batch.observed is not None or batch.context is not None:
            return None
        key = objective, len(noise[0]), len(batch.x), torch.get_num_threads()
        step = self.steps.get(key)
        if key not in self.steps or (step is not None and step.moved):
            step = self.steps[key] = Step(model, *key[:3]) if fits(model, objective) else None
        return step if step is not None and step.alone else None
