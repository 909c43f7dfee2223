"""The loss of a training step and its gradients without autograd: for the paper's models in float32 on a CPU.

autograd finds the derivative of any program, and pays for it with every call: on small nets a step spends more time
between the formulas than in them. The nets of the paper have few kinds of parts, whose derivatives are known. So a step
is written down once, as a list of matrix products and kernels with all their operands (`Tape`), and then only repeated;
nothing is allocated on the way. What it buys: docs/performance.md.

`objective.py` and `model.py` say what is computed; tests/test_fused.py holds values and gradients of both together.
What does not fit (`fits`) goes the ordinary way.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.modules.module import _has_any_global_hook as has_global_hooks

from memgen.layers import BatchNorm, Dense, MemoryLayer
from memgen.likelihoods import Bernoulli, Gaussian
from memgen.memory import Attention, Memory, Mlp, Sum, softmax
from memgen.model import DGM, Batch, Conditional, Levels, log_prior
from memgen.native.functions import EPS, LOG_2PI
from memgen.native.library import addresses, library, serves
from memgen.recipe import Objective

SERVED = [*product(("plain", "stl"), ("elbo", "importance")), ("dreg", "importance")]
"""Estimators and bounds."""
ATEN = torch.ops.aten


def fits(model: DGM, objective: Objective) -> bool:
    """Whether a step of this model can be written down: the very classes of the paper's models, one level, batch norm,
    dense attention, Bernoulli or Gaussian rows, every parameter once, float32 on the CPU.
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
        and all(map(_linear_fits, (*model.q[0].head.children(), *cast(nn.Module, model.p[0].head).children())))
        and len([*model.named_parameters(remove_duplicate=False)]) == len([*model.parameters()])
        and serves(*model.parameters())
    )


def _layer_fits(layer: nn.Module) -> bool:
    if type(layer) is MemoryLayer:
        attention, memory = layer.attention, layer.memory
        return (
            type(attention) is Attention
            and attention.top is None
            and attention.squash in (torch.sigmoid, softmax)
            and _linear_fits(attention.A)
            and type(memory) is Memory
            and not memory.sparse
            and type(layer.composition) in (Mlp, Sum)
            and type(layer.dense) is Dense
            and _layer_fits(layer.dense)
        )
    return type(layer) is Dense and type(layer.norm) is BatchNorm and _linear_fits(layer.linear)


def _linear_fits(module: nn.Module) -> bool:
    return type(module) is nn.Linear and module.bias is not None


class Tape:
    """Calls with all their operands, to be made one after the other."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], Any]] = []
        self.kept: list[Tensor] = []
        """Operands that a call knows by their address alone."""

    def add(self, function: Callable[..., Any], *operands: Any, **named: Any) -> None:
        self.calls.append(partial(function, *operands, **named))

    def mm(self, a: Tensor, b: Tensor, out: Tensor) -> None:
        """out = a b"""
        self.add(torch.mm, a, b, out=out)

    def kernel(self, name: str, *operands: Any) -> None:
        """A kernel of memgen/native. The operands stay where they are, so their addresses are taken once."""
        self.kept += [operand for operand in operands if isinstance(operand, Tensor)]
        self.add(getattr(library(), name), *(o.data_ptr() if isinstance(o, Tensor) else o for o in operands))

    def run(self) -> None:
        for call in self.calls:
            call()


class Part:
    """A part of a net at work on a fixed number of rows. From the derivative of the loss by the part's output,
    `back` makes that by its parameters, kept in `gradients`, and that by its input, which it returns; `slope` makes the
    latter alone.
    """

    def __init__(self, forward: Tape, backward: Tape) -> None:
        self.forward, self.backward = forward, backward
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
        self, linear: nn.Linear, h: Tensor, gradient: Tensor, out: Tensor | None, bias: bool = True
    ) -> None:
        """Of y = W h + b: to W, to b if it has a part, and to h, where `out` is the place for that."""
        if not self.silent:
            self.backward.mm(gradient.t(), h, self.gradient_of(linear.weight))
            if bias:
                self.backward.add(torch.sum, gradient, 0, out=self.gradient_of(linear.bias))
        if out is not None:
            self.backward.mm(gradient, linear.weight, out)


class DensePart(Part):
    """h = max(0, norm(W h_in)); batch norm takes the bias away, so it has no gradient."""

    def __init__(self, forward: Tape, backward: Tape, layer: Dense, h: Tensor, root: bool = False) -> None:
        super().__init__(forward, backward)
        self.layer, self.h, self.norm, self.root = layer, h, cast(BatchNorm, layer.norm), root
        """root: its input is x, of which nobody needs a gradient."""
        rows, units = len(h), layer.linear.out_features
        self.pre, self.out, self.numbers = h.new_empty(rows, units), h.new_empty(rows, units), h.new_empty(3, units)
        self.extra: Tensor | None = None
        """A gradient that the pre-activation receives beside the one that comes through the output."""
        forward.mm(h, layer.linear.weight.t(), self.pre)
        forward.kernel(
            "batch_norm_relu", self.pre, rows, units, self.norm.gamma, self.norm.beta, EPS, self.numbers, self.out
        )

    def back(self, gradient: Tensor) -> Tensor | None:
        to_pre, (rows, units) = torch.empty_like(self.pre), self.pre.shape
        gamma, beta = self.gradient_of(self.norm.gamma), self.gradient_of(self.norm.beta)
        self.backward.kernel(
            "normalise_backward", gradient, self.pre, rows, units, *self.numbers, self.norm.beta, to_pre, gamma, beta
        )
        if self.extra is not None and not self.silent:
            self.backward.add(to_pre.add_, self.extra)
        to_h = None if self.root else torch.empty_like(self.h)
        self.linear_back(self.layer.linear, self.h, to_pre, to_h, bias=False)
        return to_h


class MemoryPart(Part):
    """h = f_c(h_g, h_m), h_m = M h_a, h_a = squash(A h_g + b_A), h_g of a DensePart."""

    def __init__(self, forward: Tape, backward: Tape, layer: MemoryLayer, h: Tensor) -> None:
        super().__init__(forward, backward)
        self.dense = DensePart(forward, backward, cast(Dense, layer.dense), h)
        self.h_g = h_g = self.dense.out
        self.attention, self.memory = cast(Attention, layer.attention), cast(Memory, layer.memory)
        self.composition = layer.composition
        slots = len(self.memory.M)
        scores, self.h_a = h_g.new_empty(len(h_g), slots), h_g.new_empty(len(h_g), slots)
        self.h_m, self.out = torch.empty_like(h_g), torch.empty_like(h_g)
        forward.add(torch.addmm, self.attention.A.bias, h_g, self.attention.A.weight.t(), out=scores)
        if self.attention.squash is softmax:
            forward.add(torch.softmax, scores, -1, out=self.h_a)
        else:
            forward.add(torch.sigmoid, scores, out=self.h_a)
        forward.mm(self.h_a, self.memory.M, self.h_m)
        if isinstance(self.composition, Mlp):
            m = self.composition
            self.coefficients = (m.a1, m.a2, m.a3, m.a4, m.b1, m.c1, m.c2, m.c3, m.c4)
            forward.kernel("mlp", h_g, self.h_m, *h_g.shape, addresses(self.coefficients), self.out)
        else:
            forward.add(torch.add, h_g, self.h_m, out=self.out)
            forward.add(self.out.clamp_min_, 0.0)

    def back(self, gradient: Tensor) -> Tensor | None:
        tape, h_g, shape = self.backward, self.h_g, self.h_g.shape
        to_m, to_g = torch.empty_like(h_g), torch.empty_like(h_g)
        if isinstance(self.composition, Mlp):
            to_c, c = h_g.new_empty(9, shape[1]), addresses(self.coefficients)
            tape.kernel("mlp_backward", gradient, h_g, self.h_m, *shape, c, to_g, to_m, to_c)
            if not self.silent:
                self.gradients += zip(self.coefficients, to_c, strict=True)
        else:
            tape.add(ATEN.threshold_backward.grad_input, gradient, self.out, 0, grad_input=to_m)
            tape.add(to_g.copy_, to_m)
        to_a, to_scores = torch.empty_like(self.h_a), torch.empty_like(self.h_a)
        if not self.silent:
            tape.mm(self.h_a.t(), to_m, self.gradient_of(self.memory.M))
        tape.mm(to_m, self.memory.M.t(), to_a)
        if self.attention.squash is softmax:
            tape.add(ATEN._softmax_backward_data.out, to_a, self.h_a, -1, to_a.dtype, grad_input=to_scores)
        else:
            tape.add(ATEN.sigmoid_backward.grad_input, to_a, self.h_a, grad_input=to_scores)
        self.linear_back(self.attention.A, h_g, to_scores, None)
        tape.add(to_g.addmm_, to_scores, self.attention.A.weight)
        if self.silent:
            return self.dense.slope(to_g)
        to_h = self.dense.back(to_g)
        self.gradients += self.dense.gradients
        return to_h


class BernoulliPart(Part):
    """log p(x|z) = sum_d x_d l_d - log(1 + e^l_d), l = W h + b."""

    def __init__(self, forward: Tape, backward: Tape, head: Bernoulli, h: Tensor, x: Tensor, K: int) -> None:
        super().__init__(forward, backward)
        self.head, self.h, self.x, self.K = head, h, x, K
        self.products, self.log_p = h.new_empty(len(h), x.shape[1]), h.new_empty(K, len(x))
        forward.mm(h, head.logits.weight.t(), self.products)
        forward.kernel("bernoulli", self.products, head.logits.bias, x, K, *x.shape, self.log_p)

    def back(self, weights: Tensor) -> Tensor:
        linear, to_products, to_h = self.head.logits, torch.empty_like(self.products), torch.empty_like(self.h)
        operands = (weights, self.products, linear.bias, self.x, self.K, *self.x.shape)
        self.backward.kernel("bernoulli_backward", *operands, to_products, self.gradient_of(linear.bias))
        self.linear_back(linear, self.h, to_products, to_h, bias=False)
        return to_h


class GaussianPart(Part):
    """log p(x|z) = -1/2 sum_d log 2 pi + log s^2 + e^2 with e = (x - m) / s and s^2 = exp(raw) + floor^2."""

    def __init__(self, forward: Tape, backward: Tape, head: Gaussian, h: Tensor, x: Tensor, K: int) -> None:
        super().__init__(forward, backward)
        self.head, self.h, (B, D) = head, h, x.shape
        self.mean, self.raw, self.log_variance, self.precision = (h.new_empty(len(h), D) for _ in range(4))
        self.e, self.squares = h.new_empty(K, B, D), h.new_empty(K, B, D)
        self.log_p, total = h.new_empty(K, B), h.new_empty(K, B)
        for linear, out in ((head.mean, self.mean), (head.log_variance, self.raw)):
            forward.add(torch.addmm, linear.bias, h, linear.weight.t(), out=out)
        if head.floor:
            forward.add(torch.logaddexp, self.raw, h.new_tensor(2 * math.log(head.floor)), out=self.log_variance)
        else:
            forward.add(self.log_variance.copy_, self.raw)
        forward.add(torch.neg, self.log_variance, out=self.precision)
        forward.add(self.precision.exp_)
        forward.add(torch.sub, x, self.mean.view(K, B, D), out=self.e)
        forward.add(torch.mul, self.e, self.e, out=self.squares)
        forward.add(self.squares.mul_, self.precision.view(K, B, D))
        forward.add(torch.sum, self.squares, -1, out=self.log_p)
        forward.add(torch.sum, self.log_variance.view(K, B, D), -1, out=total)
        forward.add(self.log_p.add_, total)
        forward.add(self.log_p.add_, D * LOG_2PI)
        forward.add(self.log_p.mul_, -0.5)

    def back(self, weights: Tensor) -> Tensor:
        tape, to_mean, to_raw = self.backward, torch.empty_like(self.mean), torch.empty_like(self.raw)
        w = weights.view(-1, 1)
        tape.add(torch.mul, self.e.view_as(self.mean), self.precision, out=to_mean)
        tape.add(to_mean.mul_, w)
        tape.add(torch.sub, self.squares.view_as(self.raw), 1.0, out=to_raw)
        tape.add(to_raw.mul_, w)
        tape.add(to_raw.mul_, 0.5)
        if self.head.floor:  # d log(e^raw + floor^2) / d raw = e^(raw - log s^2)
            slope = torch.empty_like(self.raw)
            tape.add(torch.sub, self.raw, self.log_variance, out=slope)
            tape.add(slope.exp_)
            tape.add(to_raw.mul_, slope)
        to_h = torch.empty_like(self.h)
        self.linear_back(self.head.mean, self.h, to_mean, to_h)
        self.linear_back(self.head.log_variance, self.h, to_raw, None)
        tape.add(to_h.addmm_, to_raw, self.head.log_variance.weight)
        return to_h


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
        forward, backward = Tape(), Tape()
        q, p = cast(Conditional, model.q[0]), cast(Conditional, model.p[0])
        d, new = model.latent[0], next(model.parameters()).new_empty
        self.forward, self.backward, self.K, self.B, self.objective = forward, backward, K, B, objective
        self.x, self.noise = new(B, model.likelihood.columns), new(K, B, d)

        up: list[DensePart] = []
        h = self.x
        for layer in q.layers:
            up.append(DensePart(forward, backward, cast(Dense, layer), h, root=not up))
            h = up[-1].out
        self.h, self.head = h, cast(Gaussian, q.head)
        self.mean, self.log_variance = new(B, d), new(B, d)
        for linear, out in ((self.head.mean, self.mean), (self.head.log_variance, self.log_variance)):
            forward.add(torch.addmm, linear.bias, h, linear.weight.t(), out=out)
        self.z, self.log_q = new(K, B, d), new(K, B)
        shape = (K, B, d)
        forward.kernel("reparameterise", self.mean, self.log_variance, self.noise, *shape, self.z, self.log_q)

        down: list[DensePart | MemoryPart] = []
        h = self.z.view(K * B, d)
        for layer in p.layers:
            memory = isinstance(layer, MemoryLayer)
            down.append((MemoryPart if memory else DensePart)(forward, backward, layer, h))  # type: ignore[arg-type]
            h = down[-1].out
        kind = BernoulliPart if isinstance(p.head, Bernoulli) else GaussianPart
        self.likelihood = kind(forward, backward, p.head, h, self.x, K)  # type: ignore[arg-type]

        self.weights, self.squares, self.to_log_q = (torch.zeros_like(self.log_q) for _ in range(3))
        """Derivatives of the loss by log w, what dreg adds to them for Q, and derivatives by log q."""
        terms = self._local_reconstruction(up, down[::-1], objective.local_reconstruction)
        self._back(up, down, terms)
        parts: list[Part] = [*up, *down, self.likelihood, self.q_part]
        self.gradients = [pair for part in parts for pair in part.gradients]
        self.modules, self.places = [*model.modules()], [(p, p.data_ptr()) for p in model.parameters()]

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

    def _local_reconstruction(
        self, up: list[DensePart], down: Sequence[DensePart | MemoryPart], weights: Sequence[Sequence[float]]
    ) -> dict[int, Tensor]:
        """lambda * mean (a - b)^2 of every layer, a and b being standardised over all rows. Returns what the output of
        each layer of P receives; the pre-activation of Q is told (`extra`).
        """
        found: dict[int, Tensor] = {}
        self.errors: list[tuple[float, Tensor]] = []
        if not any(map(any, weights)):
            return found
        for q, p, weight in zip(up, down, weights[0], strict=True):
            if not weight:
                continue
            both = []
            for h, K in ((p.out, self.K), (q.pre, 1)):
                units = h.shape[1]
                numbers, out, gradient = h.new_empty(2, units), h.new_empty(self.B, units), torch.empty_like(h)
                self.forward.kernel("standardise", h, K, self.B, units, EPS, numbers, out)
                both.append((h, K, numbers, out, gradient))
            (_, _, _, a, _), (_, _, _, b, _) = both
            difference, squares, error = torch.empty_like(a), torch.empty_like(a), a.new_empty(())
            self.forward.add(torch.sub, a, b, out=difference)
            self.forward.add(torch.mul, difference, difference, out=squares)
            self.forward.add(torch.mean, squares, (0, 1), out=error)
            self.errors.append((weight, error))
            for (h, K, numbers, out, gradient), sign in zip(both, (1, -1), strict=True):
                to_out = torch.empty_like(out)
                self.backward.add(torch.mul, difference, sign * 2 * weight / out.numel(), out=to_out)
                operands = (to_out, h, out, K, self.B, out.shape[1], numbers)
                self.backward.kernel("standardise_backward", *operands, gradient)
            found[id(p)], q.extra = both[0][4], both[1][4]
        return found

    def _back(self, up: list[DensePart], down: Sequence[DensePart | MemoryPart], terms: dict[int, Tensor]) -> None:
        tape, w = self.backward, self.weights.unsqueeze(-1)
        path = self._path(tape)
        if self.objective.estimator == "dreg":
            slope = self.likelihood.slope(self.squares)
            for part in reversed(down):
                slope = part.slope(cast(Tensor, slope))
            weighed = cast(Tensor, slope).view_as(self.z)
        gradient = self.likelihood.back(self.weights)
        for part in reversed(down):
            if id(part) in terms:
                tape.add(gradient.add_, terms[id(part)])
            gradient = cast(Tensor, part.back(gradient))
        to_z = gradient.view_as(self.z)
        tape.add(to_z.addcmul_, path, w)
        if self.objective.estimator == "dreg":
            # So far each z_k has received v_k; what it lacks, in place of the score of q, is v_k^2 - v_k.
            tape.add(to_z.add_, weighed)
            tape.add(to_z.addcmul_, path, self.squares.unsqueeze(-1))
        to_mean, to_log_variance = torch.empty_like(self.mean), torch.empty_like(self.mean)
        operands = (to_z, self.to_log_q, self.log_variance, self.noise, *self.z.shape)
        tape.kernel("reparameterise_backward", *operands, to_mean, to_log_variance)
        self.q_part = Part(self.forward, tape)
        to_h = torch.empty_like(self.h) if up else None
        self.q_part.linear_back(self.head.mean, self.h, to_mean, to_h)
        self.q_part.linear_back(self.head.log_variance, self.h, to_log_variance, None)
        if to_h is None:
            return
        tape.add(to_h.addmm_, to_log_variance, self.head.log_variance.weight)
        for layer in reversed(up):
            to_h = layer.back(cast(Tensor, to_h))

    def _path(self, tape: Tape) -> Tensor:
        """What log p(z) - log q(z|x) gives to z: -z; and noise/s where the parameters of q are constants in log q. For
        `plain` they are not: there log q of z = mu + s*noise depends on s alone.
        """
        path = torch.empty_like(self.z)
        if self.objective.estimator == "plain":
            tape.add(torch.neg, self.z, out=path)
            tape.add(torch.neg, self.weights, out=self.to_log_q)
            return path
        inverse = torch.empty_like(self.log_variance)
        tape.add(torch.mul, self.log_variance, -0.5, out=inverse)
        tape.add(inverse.exp_)
        tape.add(torch.mul, self.noise, inverse, out=path)
        tape.add(path.sub_, self.z)
        return path

    @torch.no_grad()
    def __call__(self, batch: Batch, noise: Levels) -> Float[Tensor, "2"]:
        if batch.x.shape != self.x.shape or noise[0].shape != self.noise.shape:
            raise ValueError(f"this step is for rows {tuple(self.x.shape)} and noise {tuple(self.noise.shape)}")
        self.x.copy_(batch.x)
        self.noise.copy_(noise[0])
        self.forward.run()
        log_w = self.likelihood.log_p + log_prior(self.z) - self.log_q
        if self.K == 1 or self.objective.bound == "elbo":
            bound = log_w.mean(0)
            self.weights.fill_(-1 / (self.K * self.B))
            self.squares.zero_()
        else:
            bound = torch.logsumexp(log_w, 0) - math.log(self.K)
            v = torch.softmax(log_w, 0)
            torch.mul(v, -1 / self.B, out=self.weights)
            torch.mul(v * v - v, -1 / self.B, out=self.squares)
        self.backward.run()
        for parameter, gradient in self.gradients:
            parameter.grad = gradient
        mean = bound.mean()
        return torch.stack([sum((weight * error for weight, error in self.errors), -mean), mean])


class Written:
    """The steps of a model that are written down so far, by objective, K and B."""

    def __init__(self) -> None:
        self.steps: dict[tuple[Objective, int, int], Step | None] = {}

    def __deepcopy__(self, memo: dict[int, Any]) -> Written:
        return Written()  # a step knows its model by addresses

    def find(self, model: DGM, objective: Objective, batch: Batch, noise: Levels) -> Step | None:
        """The step for this batch; None if it is autograd's."""
        if batch.observed is not None or batch.context is not None:
            return None
        key = objective, len(noise[0]), len(batch.x)
        step = self.steps.get(key)
        if key not in self.steps or (step is not None and step.moved):
            step = self.steps[key] = Step(model, *key) if fits(model, objective) else None
        return step if step is not None and step.alone else None
