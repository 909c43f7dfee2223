"""A state of a chain or a sampler: a completion of every row, and the distribution that it was drawn from."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import Factorised, factorised
from memgen.core.model import GenerativeModel, Levels, Terms


class State(NamedTuple):
    """One state of every row."""

    x: Float[Tensor, "B D"]
    """The completed rows: by the means of p if states have weights, otherwise by draws."""
    p: Factorised
    """p(x|z) of the state's z."""
    log_weight: Float[Tensor, " B"]
    accepted: Bool[Tensor, " B"]


def decoded(model: GenerativeModel, batch: Batch, z: Levels) -> Factorised:
    """p(x|z) of K = 1 sample. Its columns must be independent, so that missing values can be drawn alone."""
    return factorised(model.decode(tuple(level[0] for level in z), batch), "imputation")


def completed(batch: Batch, x: Float[Tensor, "B D"]) -> Batch:
    """The rows as if all of x were observed."""
    return Batch(x, label=batch.label)


def complete(batch: Batch, values: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """x in observed entries, `values` in all others."""
    assert batch.observed is not None
    return batch.x.where(batch.observed, values)


def equally(x: Float[Tensor, "B D"], p: Factorised) -> State:
    """An accepted state with the same weight as all others."""
    return State(x, p, x.new_zeros(len(x)), torch.ones(len(x), dtype=torch.bool, device=x.device))


def total(terms: Terms) -> Float[Tensor, " B"]:
    """The sum of the terms of K = 1 sample over the levels."""
    return sum(terms[1:], terms[0])[0]


def select(chosen: Bool[Tensor, " B"], new: Tensor, old: Tensor, rows: int = 0) -> Tensor:
    """Per row the new value if chosen, otherwise the old one; `rows` is the axis of the rows."""
    shape = [1] * new.ndim
    shape[rows] = len(chosen)
    return torch.where(chosen.view(shape), new, old)


D = TypeVar("D")


def select_fields(chosen: Bool[Tensor, " B"], new: D, old: D) -> D:
    """`select` for every field of a distribution, except objects that both share, such as the bias of a head."""
    pairs = [(getattr(new, field.name), getattr(old, field.name)) for field in fields(cast(Any, new))]
    return type(new)(*(_selected(chosen, a, b) for a, b in pairs))


def _selected(chosen: Bool[Tensor, " B"], new: Any, old: Any) -> Any:
    """`select` for a tensor, a distribution or a tuple of them."""
    if new is old:
        return new
    if isinstance(new, tuple):
        return tuple(_selected(chosen, a, b) for a, b in zip(new, old, strict=True))
    return select(chosen, new, old) if isinstance(new, Tensor) else select_fields(chosen, new, old)
