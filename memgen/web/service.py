"""The calls of the page into memgen.tasks: the same functions as on the command line, with the same numbers."""

from __future__ import annotations

import base64
import copy
import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from memgen.core.layers import evaluating
from memgen.core.likelihoods import Factorised, draw, factorised
from memgen.core.model import DGM, Batch, Codes
from memgen.core.noise import Purpose, generator
from memgen.errors import MemgenError
from memgen.tasks import imputation, inspection
from memgen.tasks.features import features

MAPPED = 2000
"""Number of rows whose posterior means make the map."""
DIRECTIONS = 8
SMALLEST = 1e-3
"""Smallest deviation along a direction, so that a slider moves also where nothing varies."""
READ = 2000
"""Number of rows from which preferences are read."""
ABLATED = 20
"""Number of rows that are scored with each slot silenced."""
ABLATION_SAMPLES = 20
NEAREST = 4
MOST_LISTED = 2000
"""Largest number of slots of a layer that are sent to the page."""


def sharing_weights(model: DGM) -> DGM:
    """A copy of the model's modules around the same weights."""
    return copy.deepcopy(model, {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]})


def place_of(model: DGM, index: int) -> inspection.Place:
    places = inspection.require_memory(model)
    if index >= len(places):
        raise MemgenError(f"there is no layer {index}: {len(places)} have a memory, counted from 0")
    return places[index]


# ---- rows from codes


@torch.no_grad()
def codes(model: DGM, z: Float[Tensor, "n d"]) -> Codes:
    """z of all levels: of those above the first the mean of q. x does not depend on them, their attention does."""
    levels = [z.to(next(model.parameters()))]
    with evaluating(model):
        for net in model.q[1:]:
            levels.append(net(levels[-1])[0].mean)
    return tuple(levels)


def code(model: DGM, z: Sequence[float]) -> Float[Tensor, "1 d"]:
    if len(z) != model.latent[0]:
        raise MemgenError(f"z has {len(z)} values, the first level of this model has {model.latent[0]}")
    return torch.tensor([z], dtype=torch.float32)


def _p(model: DGM, z: Float[Tensor, "n d"]) -> Factorised:
    """p(x|z)"""
    rows = Batch.unobserved(len(z), model.likelihood.columns).to(next(model.parameters()))
    return factorised(model.decode(codes(model, z), rows), "the page")


@torch.no_grad()
def decoded(model: DGM, z: Float[Tensor, "n d"], seed: int | None = None) -> Float[Tensor, "n D"]:
    """The means of p(x|z), or with a seed draws from it."""
    with evaluating(model):
        p = _p(model, z)
        return (p.mean if seed is None else draw(p, p.mean.shape, generator(seed, Purpose.SAMPLING))).cpu()


@torch.no_grad()
def likeliest(model: DGM, z: Float[Tensor, "n d"]) -> Float[Tensor, "n D"]:
    with evaluating(model):
        return _p(model, z).mode.cpu()


def means(model: DGM, x: Float[Tensor, "N D"]) -> Float[Tensor, "N d"]:
    """`memgen features`: the means of q(z_1|x)."""
    return features(model, Batch.of(x)).mean


class Map(NamedTuple):
    """The principal axes of posterior means."""

    centre: Float[Tensor, " d"]
    axes: Float[Tensor, "k d"]
    deviations: Float[Tensor, " k"]
    explained: Float[Tensor, " k"]
    points: Float[Tensor, "N 2"]


def latent_map(model: DGM, x: Float[Tensor, "N D"]) -> Map:
    z = means(model, x[:MAPPED]).double()
    centre = z.mean(0)
    _, s, axes = torch.linalg.svd(z - centre, full_matrices=False)
    k = min(DIRECTIONS, len(axes))
    variance = s.square() / max(1, len(z) - 1)
    points = (z - centre) @ axes[:2].T
    explained = variance / variance.sum().clamp_min(1e-12)
    return Map(centre, axes[:k], variance[:k].sqrt().clamp_min(SMALLEST), explained[:k], points)


# ---- the memory


class Slots(NamedTuple):
    """Pictures of all slots of a layer, and who reads them."""

    pictures: Float[Tensor, "slots D"]
    preferences: Float[Tensor, "N slots"]
    """Of the first rows of the examples."""
    usage: inspection.Usage


def slots(model: DGM, index: int, x: Float[Tensor, "N D"]) -> Slots:
    """`memgen inspect`: pictures, preferences and usage."""
    place = place_of(model, index)
    h = inspection.preferences(model, Batch.of(x[:READ]))[place.name]
    return Slots(inspection.slot_pictures(model, place), h, inspection.usage(h))


def values(model: DGM, index: int, x: Float[Tensor, "N D"], tick: Callable[[int], None]) -> inspection.Ablation:
    """`memgen inspect`: the gain in log p(x) from every slot."""
    place = place_of(model, index)
    return inspection.ablation(model, place, Batch.of(x[:ABLATED]), samples=ABLATION_SAMPLES, tick=tick)


@torch.no_grad()
def neighbours(
    model: DGM, pictures: Float[Tensor, "N D"], rows: Float[Tensor, "M D"]
) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """Distance and index of the nearest rows, as Q reads them: numbers of a table in units of their columns."""
    encode = model.likelihood.encode
    return inspection.nearest(encode(pictures), encode(inspection.filled(rows)), NEAREST)


# ---- missing values


def imputed(
    model: DGM, x: Float[Tensor, "N D"], observed: Bool[Tensor, "N D"], *, draws: int, steps: int, **options: Any
) -> imputation.Imputation:
    """`memgen impute`."""
    method = imputation.method_for(None, 0, model.mask)
    settings = imputation.Settings(steps=steps, draws=draws, **options)
    parts = imputation.imputations(model, Batch(x, observed), method, settings)
    return imputation.join(list(parts))


# ---- for JSON


def as_bytes(x: Float[Tensor, "*rows D"]) -> str:
    """Values from 0 to 1 as bytes, in base64."""
    return base64.b64encode((x.clamp(0, 1) * 255).round().byte().contiguous().numpy().tobytes()).decode()


def as_floats(x: Tensor, digits: int = 4) -> Any:
    """Rounded numbers. A number that is not finite becomes null.

    >>> as_floats(torch.tensor([[0.12345, torch.inf]]), 2)
    [[0.12, None]]
    """
    return _rounded(x.tolist(), digits)


def _rounded(values: Any, digits: int) -> Any:
    if isinstance(values, list):
        return [_rounded(value, digits) for value in values]
    return round(values, digits) if math.isfinite(values) else None
