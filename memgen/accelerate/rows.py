"""The gradient of a memory that is read by index."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Tensor

from memgen.accelerate.calls import bind


def gradient_of_rows(
    M: Float[Tensor, "slots features"],
    index: Int[Tensor, "rows chosen"],
    weights: Float[Tensor, "rows chosen"],
    gradient: Float[Tensor, "rows features"],
) -> Float[Tensor, "slots features"]:
    """`core.sparse.gradient_of_rows` in C: sparse, one entry per row that was read, in order."""
    entries = index.numel()
    order, different, first, count = (index.new_empty(size) for size in (entries, entries, entries + 1, ()))
    bind("sort_slots", index.view(-1), len(M), order, different, first, count)()
    slots = different[: int(count)]
    to_slots = M.new_empty(len(slots), M.shape[1])
    bind("read_rows_backward_slots", gradient, weights, order, first[: len(slots) + 1], to_slots)()
    return torch.sparse_coo_tensor(slots.unsqueeze(0), to_slots, M.shape, is_coalesced=True, check_invariants=False)
