"""Formulas whose value and derivative are one pass each over the rows, where the kernels are at hand; else plain torch.

Each function says what it computes; the plain formula beside it is the definition, and what runs on a GPU, in float64
and without a compiler. What the kernels buy: docs/performance.md.
"""

from __future__ import annotations

import ctypes
import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable

from memgen.accelerate.library import addresses, library, serves

LOG_2PI = math.log(2 * math.pi)
EPSILON = 1e-5
"""Added to a variance before its root is taken, where nothing else is said."""
MOST_PAIRS = 1024
"""Of ranks; the kernel sorts by insertion, which is for few."""


def batch_norm_relu(
    h: Float[Tensor, "*rows units"],
    gamma: Float[Tensor, " units"],
    beta: Float[Tensor, " units"],
    epsilon: float = EPSILON,
) -> Float[Tensor, "*rows units"]:
    """max(0, gamma * (h - mean) / sqrt(variance + epsilon) + beta), mean and biased variance over all rows."""
    if serves(h, gamma, beta) and gamma.shape == beta.shape == h.shape[-1:]:
        return _call(_BatchNormRelu, h, gamma, beta, epsilon)  # type: ignore[no-any-return]
    rows = h.reshape(-1, h.shape[-1])
    return torch.relu(torch.batch_norm(rows, gamma, beta, None, None, True, 0.0, epsilon, False)).view_as(h)


def mean_and_variance(h: Float[Tensor, "*rows units"]) -> tuple[Float[Tensor, " units"], Float[Tensor, " units"]]:
    """Over all rows, the variance biased; no gradient."""
    if not serves(h):
        variance, mean = torch.var_mean(h.detach().flatten(0, -2), 0, correction=0)
        return mean, variance
    mean, variance = h.new_empty(2, h.shape[-1])
    _kernels().moments(h.data_ptr(), *_rows_units(h), mean.data_ptr(), variance.data_ptr())
    return mean, variance


def mlp(
    h_g: Float[Tensor, "*rows units"], h_m: Float[Tensor, "*rows units"], coefficients: Sequence[Tensor]
) -> Float[Tensor, "*rows units"]:
    """relu(a + b1 * sigmoid(c)); coefficients are a1, a2, a3, a4, b1, c1, c2, c3, c4 (see memory.Mlp)."""
    if serves(h_g, h_m, *coefficients) and h_g.shape == h_m.shape:
        return _call(_Mlp, h_g, h_m, *coefficients)  # type: ignore[no-any-return]
    a1, a2, a3, a4, b1, c1, c2, c3, c4 = coefficients
    # The terms with h_m are taken together, which saves a pass over all rows for a and one for c.
    a = a1 + a3 * h_g + (a2 + a4 * h_g) * h_m
    c = torch.sigmoid(c1 + c3 * h_g + (c2 + c4 * h_g) * h_m)
    return torch.relu(a + b1 * c)


def reparameterise(
    mean: Float[Tensor, "*batch columns"],
    log_variance: Float[Tensor, "*batch columns"],
    noise: Float[Tensor, "*noise columns"],
) -> tuple[Float[Tensor, "*noise columns"], Float[Tensor, "*noise"]]:
    """z = m + s*eps and log q(z) = -sum_d (log 2 pi + log s_d^2 + eps_d^2) / 2, which needs no division by s."""
    fits = noise.ndim == 3 and mean.shape == log_variance.shape == noise.shape[1:]
    if serves(mean, log_variance, noise) and fits and not noise.requires_grad:
        z, log_q = _call(_Reparameterise, mean, log_variance, noise)
        return z, log_q
    z = torch.addcmul(mean, torch.exp(0.5 * log_variance), noise)
    return z, -0.5 * (LOG_2PI + log_variance + noise**2).sum(-1)


def standardised_mean(h: Float[Tensor, "*K B units"], epsilon: float = EPSILON) -> Float[Tensor, "B units"]:
    """mean_k (h_k - mean) / sqrt(variance + epsilon), mean and variance over all rows of all samples."""
    if serves(h):
        return _call(_StandardisedMean, h, epsilon)  # type: ignore[no-any-return]
    rows = h.reshape(-1, h.shape[-1])
    h = torch.batch_norm(rows, None, None, None, None, True, 0.0, epsilon, False).view_as(h)
    return h if h.ndim == 2 else h.mean(0)


def bernoulli_log_prob(
    products: Float[Tensor, "*rows columns"], bias: Float[Tensor, " columns"], x: Float[Tensor, "B columns"]
) -> Float[Tensor, "*rows"]:
    """sum_d x_d * l_d - log(1 + e^l_d) with l = products + bias, which need not be stored."""
    fits = products.shape[-2:] == x.shape and x.numel() > 0
    if serves(products, bias, x) and fits and not x.requires_grad:
        return _call(_Bernoulli, products, bias, x)  # type: ignore[no-any-return]
    logits = products + bias
    return (x * logits - F.softplus(logits)).sum(-1)


def linear_relu(
    h: Float[Tensor, "*rows inputs"], weight: Float[Tensor, "units inputs"], bias: Float[Tensor, " units"]
) -> Float[Tensor, "*rows units"]:
    """max(0, W h + b); no gradient."""
    out = F.linear(h, weight)
    if not serves(out, bias):
        return torch.relu(out + bias)
    _kernels().add_bias_relu(out.data_ptr(), *_rows_units(out), bias.data_ptr())
    return out


def read_rows(
    M: Float[Tensor, "slots features"], index: Int[Tensor, "*rows chosen"], weights: Float[Tensor, "*rows chosen"]
) -> Float[Tensor, "*rows features"]:
    """sum_k weights_k * M[index_k]. The gradient of M is sparse: the rows that were read, each once."""
    if index.dtype is not torch.int64 or bool(((index < 0) | (index >= len(M))).any()):
        raise IndexError(f"slots are 64-bit whole numbers from 0 to {len(M) - 1}")
    return _call(_ReadRows, M, index, weights)  # type: ignore[no-any-return]


def gradient_of_rows(
    M: Float[Tensor, "slots features"],
    index: Int[Tensor, "*rows chosen"],
    weights: Float[Tensor, "*rows chosen"],
    gradient: Float[Tensor, "*rows features"],
) -> Float[Tensor, "slots features"]:
    """What `read_rows` gives to M when its result has this gradient: sparse, each row that was read once, in order."""
    if serves(M, weights, gradient):
        order, slots = torch.empty_like(index), index.new_empty(index.numel())
        first = index.new_empty(index.numel() + 1)
        places = (v.data_ptr() for v in (order, slots, first))
        count = _kernels().sort_slots(index.data_ptr(), index.numel(), *places)
        slots, to_slots = slots[:count], M.new_empty(count, M.shape[1])
        addressed = (v.data_ptr() for v in (gradient, weights, order, first))
        sizes = (count, index.shape[-1], M.shape[1])
        _kernels().read_rows_backward_slots(*addressed, *sizes, to_slots.data_ptr())
    else:
        shares = (weights.unsqueeze(-1) * gradient.unsqueeze(-2)).flatten(0, -2)
        slots, which = index.flatten().unique(return_inverse=True)
        to_slots = M.new_zeros(len(slots), M.shape[1]).index_add_(0, which, shares)
    return torch.sparse_coo_tensor(slots.unsqueeze(0), to_slots, M.shape, is_coalesced=True, check_invariants=False)


def largest_sums(
    first: Float[Tensor, "*rows side"], second: Float[Tensor, "*rows side"], pairs: Int[Tensor, "2 pairs"], top: int
) -> tuple[Float[Tensor, "*rows top"], Int[Tensor, "*rows top"]]:
    """The `top` largest of all sums first_i + second_j, the largest first, and i * side + j of each.

    `pairs` are the ranks of i and of j, from 0 on and below `top`, of the sums among which the largest must be.
    """
    if serves(first, second) and first.shape == second.shape and pairs.shape[1] <= MOST_PAIRS:
        sums, index = _call(_LargestSums, first, second, pairs, top)
        return sums, index
    side = first.shape[-1]
    reach = min(top, side)
    (a, i), (b, j) = first.detach().topk(reach), second.detach().topk(reach)
    best = (a[..., pairs[0]] + b[..., pairs[1]]).topk(top).indices
    i, j = i.gather(-1, pairs[0][best]), j.gather(-1, pairs[1][best])
    return first.gather(-1, i) + second.gather(-1, j), i * side + j


def _call(function: Any, *arguments: Any) -> Any:
    return function.apply(*arguments)


def _kernels() -> ctypes.CDLL:
    kernels = library()
    assert kernels is not None
    return kernels


def _rows_units(h: Tensor) -> tuple[int, int]:
    return h.numel() // h.shape[-1], h.shape[-1]


class _BatchNormRelu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, gamma: Tensor, beta: Tensor, epsilon: float) -> Tensor:
        numbers, out = h.new_empty(3, h.shape[-1]), torch.empty_like(h)
        addressed = (v.data_ptr() for v in (gamma, beta))
        places = (numbers.data_ptr(), out.data_ptr())
        _kernels().batch_norm_relu(h.data_ptr(), *_rows_units(h), *addressed, epsilon, *places)
        ctx.save_for_backward(h, numbers, beta)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:
        h, numbers, beta = ctx.saved_tensors
        gradient, to_h = gradients[0].contiguous(), torch.empty_like(h)
        to_gamma, to_beta = torch.empty_like(beta), torch.empty_like(beta)
        addressed = (v.data_ptr() for v in (numbers, beta, to_h, to_gamma, to_beta))
        _kernels().normalise_backward(gradient.data_ptr(), h.data_ptr(), *_rows_units(h), *addressed)
        return to_h, to_gamma, to_beta, None


class _Mlp(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h_g: Tensor, h_m: Tensor, *coefficients: Tensor) -> Tensor:
        ctx.save_for_backward(h_g, h_m, *coefficients)
        out = torch.empty_like(h_g)
        _kernels().mlp(h_g.data_ptr(), h_m.data_ptr(), *_rows_units(h_g), addresses(coefficients), out.data_ptr())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, ...]:
        h_g, h_m, *coefficients = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        to_g, to_m, to_c = torch.empty_like(h_g), torch.empty_like(h_m), h_g.new_empty(9, h_g.shape[-1])
        _kernels().mlp_backward(
            gradient.data_ptr(),
            h_g.data_ptr(),
            h_m.data_ptr(),
            *_rows_units(h_g),
            addresses(coefficients),
            *(to_g.data_ptr(), to_m.data_ptr(), False, to_c.data_ptr()),
        )
        return to_g, to_m, *to_c


class _Reparameterise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, mean: Tensor, log_variance: Tensor, noise: Tensor) -> tuple[Tensor, Tensor]:
        z, log_q = torch.empty_like(noise), noise.new_empty(noise.shape[:-1])
        addressed = (v.data_ptr() for v in (mean, log_variance, noise))
        _kernels().reparameterise(*addressed, len(noise), *mean.shape, z.data_ptr(), log_q.data_ptr())
        ctx.save_for_backward(log_variance, noise)
        return z, log_q

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        log_variance, noise = ctx.saved_tensors
        to_z, to_log_q = (gradient.contiguous() for gradient in gradients)
        to_mean, to_log_variance = torch.empty_like(log_variance), torch.empty_like(log_variance)
        addressed = (v.data_ptr() for v in (to_z, to_log_q, log_variance, noise))
        _kernels().reparameterise_backward(
            *addressed, len(noise), *log_variance.shape, to_mean.data_ptr(), to_log_variance.data_ptr()
        )
        return to_mean, to_log_variance, None


class _StandardisedMean(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, h: Tensor, epsilon: float) -> Tensor:
        samples, numbers, out = _samples(h), h.new_empty(2, h.shape[-1]), h.new_empty(h.shape[-2:])
        places = (numbers.data_ptr(), out.data_ptr())
        _kernels().standardise(h.data_ptr(), samples, *out.shape, epsilon, *places)
        ctx.save_for_backward(h, numbers, out)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        h, numbers, out = ctx.saved_tensors
        gradient, to_h = gradients[0].contiguous(), torch.empty_like(h)
        addressed = (v.data_ptr() for v in (gradient, h, out))
        _kernels().standardise_backward(*addressed, _samples(h), *out.shape, numbers.data_ptr(), to_h.data_ptr())
        return to_h, None


def _samples(h: Tensor) -> int:
    return len(h) if h.ndim > 2 else 1


class _Bernoulli(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, products: Tensor, bias: Tensor, x: Tensor) -> Tensor:
        ctx.save_for_backward(products, bias, x)
        out = products.new_empty(products.shape[:-1])
        samples = out.numel() // len(x)
        addressed = (v.data_ptr() for v in (products, bias, x))
        _kernels().bernoulli(*addressed, samples, *x.shape, out.data_ptr())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None]:
        products, bias, x = ctx.saved_tensors
        to_products, to_bias, gradient = torch.empty_like(products), torch.empty_like(bias), gradients[0].contiguous()
        samples = gradient.numel() // len(x)
        addressed = (v.data_ptr() for v in (gradient, products, bias, x))
        places = (to_products.data_ptr(), False, to_bias.data_ptr())
        _kernels().bernoulli_backward(*addressed, samples, *x.shape, *places)
        return to_products, to_bias, None


class _ReadRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, M: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        index, weights = index.contiguous(), weights.contiguous()
        ctx.save_for_backward(M, index, weights)
        if not serves(M, weights):
            rows = F.embedding_bag(index.flatten(0, -2), M, per_sample_weights=weights.flatten(0, -2), mode="sum")
            return rows.view(*index.shape[:-1], -1)
        out = M.new_empty(*index.shape[:-1], M.shape[1])
        addressed = (v.data_ptr() for v in (M, index, weights))
        _kernels().read_rows(*addressed, *_rows_units(index), M.shape[1], out.data_ptr())
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        M, index, weights = ctx.saved_tensors
        gradient = gradients[0].contiguous()
        if serves(M, weights, gradient):
            to_weights = torch.empty_like(weights)
            addressed = (v.data_ptr() for v in (gradient, M, index))
            _kernels().read_rows_backward_weights(*addressed, *_rows_units(index), M.shape[1], to_weights.data_ptr())
        else:
            to_weights = (M[index] @ gradient.unsqueeze(-1)).squeeze(-1)
        return gradient_of_rows(M, index, weights, gradient), None, to_weights


class _LargestSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, pairs: Tensor, top: int) -> tuple[Tensor, Tensor]:
        sums = first.new_empty(*first.shape[:-1], top)
        index = torch.empty_like(sums, dtype=torch.int64)
        pairs = pairs.contiguous()
        addressed, (rows, side) = (v.data_ptr() for v in (first, second, pairs)), _rows_units(first)
        sizes = (pairs.shape[1], rows, side, min(top, side), top)
        _kernels().largest_sums(*addressed, *sizes, sums.data_ptr(), index.data_ptr())
        ctx.save_for_backward(index)
        ctx.side = side
        ctx.mark_non_differentiable(index)
        return sums, index

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        (index,), gradient = ctx.saved_tensors, gradients[0].contiguous()
        to_first, to_second = (gradient.new_empty(*index.shape[:-1], ctx.side) for _ in range(2))
        addressed, places = (gradient.data_ptr(), index.data_ptr()), (to_first.data_ptr(), to_second.data_ptr())
        rows, top = _rows_units(index)
        _kernels().largest_sums_backward(*addressed, rows, ctx.side, top, *places)
        return to_first, to_second, None, None
