"""Sparse reading of a memory: the weighted sum of a few slots, and the search for the largest product-key scores."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from jaxtyping import Float, Int
from torch import Tensor
from torch.autograd.function import once_differentiable


def read_rows(
    M: Float[Tensor, "slots features"], index: Int[Tensor, "*rows chosen"], weights: Float[Tensor, "*rows chosen"]
) -> Float[Tensor, "*rows features"]:
    """sum_k weights_k * M[index_k]. The gradient of M is sparse: one entry for each row of M that was read."""
    if index.dtype is not torch.int64 or bool(((index < 0) | (index >= len(M))).any()):
        raise IndexError(f"slots are 64-bit whole numbers from 0 to {len(M) - 1}")
    return _ReadRows.apply(M, index, weights)  # type: ignore[no-any-return, no-untyped-call]


class _ReadRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, M: Tensor, index: Tensor, weights: Tensor) -> Tensor:
        ctx.save_for_backward(M, index, weights)
        rows = F.embedding_bag(index.flatten(0, -2), M, per_sample_weights=weights.flatten(0, -2), mode="sum")
        return rows.view(*index.shape[:-1], -1)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, Tensor]:
        M, index, weights = ctx.saved_tensors
        (gradient,) = gradients
        to_weights = (M[index] @ gradient.unsqueeze(-1)).squeeze(-1)
        return gradient_of_rows(M, index, weights, gradient), None, to_weights


def gradient_of_rows(
    M: Float[Tensor, "slots features"],
    index: Int[Tensor, "*rows chosen"],
    weights: Float[Tensor, "*rows chosen"],
    gradient: Float[Tensor, "*rows features"],
) -> Float[Tensor, "slots features"]:
    """The gradient of M in `read_rows` from that of its result: sparse, one entry per row that was read, in order."""
    contributions = (weights.unsqueeze(-1) * gradient.unsqueeze(-2)).flatten(0, -2)
    slots, inverse = index.flatten().unique(return_inverse=True)
    to_slots = M.new_zeros(len(slots), M.shape[1]).index_add_(0, inverse, contributions)
    return torch.sparse_coo_tensor(slots.unsqueeze(0), to_slots, M.shape, is_coalesced=True, check_invariants=False)


def largest_sums(
    first: Float[Tensor, "*rows side"], second: Float[Tensor, "*rows side"], pairs: Int[Tensor, "2 pairs"], top: int
) -> tuple[Float[Tensor, "*rows top"], Int[Tensor, "*rows top"]]:
    """The `top` largest of all sums first_i + second_j, in decreasing order, and i * side + j of each.

    `pairs` are the ranks of i and of j, counted from 0, of the sums that can be among the largest (`pairs_of_ranks`).
    """
    side = first.shape[-1]
    reach = min(top, side)
    (a, i), (b, j) = first.detach().topk(reach), second.detach().topk(reach)
    best = (a[..., pairs[0]] + b[..., pairs[1]]).topk(top).indices
    i, j = i.gather(-1, pairs[0][best]), j.gather(-1, pairs[1][best])
    return first.gather(-1, i) + second.gather(-1, j), i * side + j
