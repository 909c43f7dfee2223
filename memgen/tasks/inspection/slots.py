"""The effect of slots: decoded pictures, the contribution of each to log p(x), and samples without memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import NamedTuple, cast

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from memgen.core.batch import Batch, Rows, chunks
from memgen.core.layers import Activation, evaluating
from memgen.core.likelihoods import factorised
from memgen.core.model import GenerativeModel, Levels, Terms
from memgen.core.noise import BLOCK, ExampleNoise
from memgen.core.objective import importance
from memgen.tasks.common import weights_of
from memgen.tasks.density import standard_error
from memgen.tasks.inspection.changes import Change, changing, without
from memgen.tasks.inspection.places import Place, decided, hooked, replaced, require_memory
from memgen.tasks.sampling import one, sample

ROWS_AT_ONCE = 10_000
"""Samples of rows that pass through P together in an ablation."""


@torch.no_grad()
def slot_pictures(model: GenerativeModel, place: Place) -> Float[Tensor, "slots D"]:
    """Each slot alone, decoded: h_g := 0, h_m := the slot."""
    M = cast(Tensor, place.layer.memory.M)
    unobserved = Batch.unobserved(len(M), model.likelihood.columns).to(M)
    zeros = tuple(M.new_zeros(1, len(M), d) for d in model.latent)

    def no_h_g(activation: Activation) -> Activation:
        return Activation(activation.pre, torch.zeros_like(activation.output))

    def slots(h_m: Tensor) -> Tensor:
        """Row i reads slot i, at every position of an image."""
        between = [1] * (h_m.ndim - (3 if h_m.shape[0] == 1 and h_m.ndim > 2 else 2))
        return M.view(len(M), *between, -1).expand_as(h_m)

    with evaluating(model), hooked(place.layer.dense, no_h_g), hooked(place.layer.memory, slots):
        p = model.decode(one(model.prior(zeros, unobserved)), unobserved)
        return decided(model, factorised(p, "the picture of a slot"))


class Ablation(NamedTuple):
    """The contribution of each slot to log p(x), in nats: with the slot minus without it."""

    mean: Float[Tensor, " slots"]
    standard_error: Float[Tensor, " slots"]
    """The standard error over rows, paired."""


@torch.no_grad()
def ablation(
    model: GenerativeModel,
    place: Place,
    rows: Rows,
    *,
    samples: int = 100,
    seed: int = 0,
    tick: Callable[[int], None] = lambda rows: None,
) -> Ablation:
    """Importance estimates of log p(x) with `samples` samples, with and without each slot, for the same z.

    Q has no memory, so that z and q(z|x) do not change. `tick` gets the number of rows scored since its last call.
    """
    losses = []
    with evaluating(model):
        for where in chunks(rows, max(1, ROWS_AT_ONCE // samples)):
            batch = rows.rows(where).to(weights_of(model))
            z, log_q = _from_q(model, batch, range(where.start, where.stop), samples, seed)
            intact, lost = _log_p(model, batch, z, log_q), []
            for slot in range(place.slots):
                with without(place, slot):
                    lost.append(intact - _log_p(model, batch, z, log_q))
                tick(len(batch))
            losses.append(torch.stack(lost))
    loss = torch.cat(losses, 1)
    return Ablation(loss.mean(1).float(), torch.tensor([standard_error(of_slot) for of_slot in loss]))


class Effect(NamedTuple):
    """log p(x) in nats of every row, estimated from the same z."""

    intact: Float64[Tensor, " B"]
    changed: Float64[Tensor, " B"]


@torch.no_grad()
def effect(
    model: GenerativeModel, batch: Batch, changes: Sequence[Change], samples: int = 100, *, seed: int = 0
) -> Effect:
    """Importance estimates of log p(x) as in `ablation`, with the memory intact and with the changes.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[8]", "model.slots=[5]", "model.norm=none"]), columns=3)
    >>> intact, changed = effect(model, Batch(torch.ones(2, 3)), [Change(0, slot=2, factor=1.0)])
    >>> torch.allclose(intact, changed)
    True
    """
    with evaluating(model):
        batch = batch.to(weights_of(model))
        z, log_q = _from_q(model, batch, range(len(batch)), samples, seed)
        intact = _log_p(model, batch, z, log_q)
        with changing(model, changes):
            return Effect(intact, _log_p(model, batch, z, log_q) if changes else intact)


def _from_q(model: GenerativeModel, batch: Batch, keys: Sequence[int], samples: int, seed: int) -> tuple[Levels, Terms]:
    """z ~ q(z|x) and log q(z|x), with the noise that `log_likelihood` has for these keys."""
    noise = ExampleNoise(seed, keys, model.latent)
    blocks = zip(*(noise.block() for _ in range(math.ceil(samples / BLOCK))), strict=True)
    eps = tuple(torch.cat(level)[:samples].to(batch.x) for level in blocks)
    z, log_q, _ = model.infer(model.encode(batch), eps)
    return z, log_q


def _log_p(model: GenerativeModel, batch: Batch, z: Levels, log_q: Terms) -> Float64[Tensor, " B"]:
    """The importance estimate of log p(x) from given z."""
    joint = model.joint(batch, z)
    log_w = sum(joint.log_p_z, joint.log_p_x) - sum(log_q[1:], log_q[0])
    return importance(log_w.double()).cpu()


def disabled_samples(model: GenerativeModel, n: int = 20, *, seed: int = 0) -> dict[str, Float[Tensor, "n D"]]:
    """Images from the same n draws of z: intact, and with h_m := 1 (as in the paper) and h_m := 0 in each layer alone
    and in all of them.
    """
    images, layers = {"intact": sample(model, n, seed=seed)}, require_memory(model)
    groups = [(place.name, [place]) for place in layers] + ([("all layers", layers)] if len(layers) > 1 else [])
    for value, symbol in ((1.0, "1"), (0.0, "0")):
        for name, group in groups:
            with ExitStack() as stack:
                for place in group:
                    stack.enter_context(replaced(place, value))
                images[f"h_m = {symbol}, {name}"] = sample(model, n, seed=seed)
    return images


def nearest(
    pictures: Float[Tensor, "N D"], rows: Float[Tensor, "M D"], k: int = 3
) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """The k rows nearest to each picture: Euclidean distance and index."""
    best = torch.cdist(pictures, rows).topk(min(k, len(rows)), largest=False)
    return best.values, best.indices


def filled(x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Missing values replaced by the mean of their column.

    >>> filled(torch.tensor([[1.0, torch.nan], [3.0, 4.0]]))
    tensor([[1., 4.],
            [3., 4.]])
    """
    return x.where(~x.isnan(), x.nanmean(0).nan_to_num()) if bool(x.isnan().any()) else x
