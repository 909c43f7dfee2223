"""Changes of the memory: slots silenced, amplified or swapped, and what z reads from the changed memory.

A change acts on h_a, the weights of the slots, so that it holds for dense and for sparse attention. Inside `changing`
every task answers for the changed memory, `log_likelihood` with the same noise as outside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.layers import evaluating
from memgen.core.likelihoods import factorised
from memgen.core.memory import Preference
from memgen.core.model import Codes, GenerativeModel
from memgen.errors import MemgenError
from memgen.tasks.common import weights_of
from memgen.tasks.inspection.places import Place, decided, dense, hooked, places, require_memory

ALL = -1
"""The slot of a change of the whole layer."""


class Change(NamedTuple):
    """The weight of a slot, or of ALL slots, times `factor`; or the weights of two slots swapped."""

    place: int
    """Index of the layer in `places`."""
    slot: int
    factor: float = 0.0
    other: int | None = None
    """The slot to swap with; then `factor` is not used."""


def changed(h_a: Preference, change: Change) -> Preference:
    """The weights after one change.

    >>> changed(Preference(torch.tensor([[1.0, 2.0, 3.0]])), Change(0, slot=1, factor=0.5)).weights
    tensor([[1., 1., 3.]])
    >>> changed(Preference(torch.tensor([[1.0, 2.0, 3.0]])), Change(0, slot=0, other=2)).weights
    tensor([[3., 2., 1.]])
    """
    weights, index, slot = h_a.weights, h_a.index, change.slot
    if slot == ALL:
        return Preference(weights * change.factor, index)
    which = torch.arange(weights.shape[-1], device=weights.device) if index is None else index
    if change.other is None:
        return Preference(torch.where(which == slot, weights * change.factor, weights), index)
    swapped = torch.where(which == slot, change.other, torch.where(which == change.other, slot, which))
    return Preference(weights[..., swapped], None) if index is None else Preference(weights, swapped)


def without(place: Place, slot: int) -> Any:
    """A context in which one slot of this layer has weight zero."""
    return hooked(place.layer.attention, partial(changed, change=Change(0, slot)))


def _changed_after_first(h_a: Preference, change: Change) -> Preference:
    """The change for every row but the first. Rows are the second axis, after the samples."""
    new = changed(Preference(h_a.weights[:, 1:], None if h_a.index is None else h_a.index[:, 1:]), change)
    index = None if h_a.index is None or new.index is None else torch.cat([h_a.index[:, :1], new.index], 1)
    return Preference(torch.cat([h_a.weights[:, :1], new.weights], 1), index)


@contextmanager
def changing(
    model: GenerativeModel, changes: Sequence[Change], change_of: Callable[..., Preference] = changed
) -> Iterator[None]:
    """A context in which the changes hold, one after the other."""
    layers = require_memory(model) if changes else []
    with ExitStack() as stack:
        for change in changes:
            if change.place >= len(layers):
                raise MemgenError(f"there is no layer {change.place}: {len(layers)} have a memory, counted from 0")
            place = layers[change.place]
            if max(change.slot, change.other or 0) >= place.slots:
                raise MemgenError(f"{place.name} has {place.slots} slots, counted from 0")
            stack.enter_context(hooked(place.layer.attention, partial(change_of, change=change)))
        yield


class Reading(NamedTuple):
    """What z reads from the memory, and what it becomes. The first row is of the intact memory, the second of the
    changed one."""

    attention: list[Float[Tensor, "2 slots"]]
    """h_a of every layer; the mean over the positions of an image."""
    x: Float[Tensor, "2 D"]
    """The means of p(x|z), or of categories the likeliest level."""


@torch.no_grad()
def read(model: GenerativeModel, z: Codes, changes: Sequence[Change] = ()) -> Reading:
    """The attention and the image of one z, whose tensors are (1, d), with the memory intact and changed."""
    layers = places(model)
    h: dict[str, Tensor] = {}
    rows = Batch.unobserved(2, model.likelihood.columns).to(weights_of(model))
    with evaluating(model), changing(model, changes, _changed_after_first), ExitStack() as stack:
        for place in layers:

            def keep(h_a: Preference, place: Place = place) -> None:
                h[place.name] = dense(h_a, place.slots).reshape(2, -1, place.slots).mean(1).cpu()

            stack.enter_context(hooked(place.layer.attention, keep))
        pair = tuple(level.to(rows.x).expand(1, 2, -1) for level in z)
        model.log_p_z(rows, pair)  # runs the nets above the first level
        p = model.decode(pair, rows)
        x = decided(model, factorised(p, "the image of a changed memory"))[0]
    return Reading([h[place.name] for place in layers], x)
