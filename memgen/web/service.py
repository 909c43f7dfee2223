"""The calls of the page into memgen.tasks: the same functions as on the command line, with the same numbers.

Every request works on a view of the model: new module objects around the same weights. Its hooks change attention or
cancel outdated work. They do not affect other requests that run at the same time.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor

from memgen.core.layers import evaluating
from memgen.core.likelihoods import Factorised, draw, factorised
from memgen.core.memory import Preference
from memgen.core.model import DGM, Batch
from memgen.core.noise import Purpose, generator
from memgen.errors import MemgenError
from memgen.tasks import density, imputation, inspection, sampling
from memgen.tasks.features import features
from memgen.tasks.patterns import missing_entries
from memgen.web.asks import Change
from memgen.web.work import Check

SAMPLES = 100
"""Number of importance samples for log p(x) in an interactive request."""
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


def view(model: DGM, check: Check = lambda: None) -> DGM:
    """A copy of the model's modules that shares its weights. Every pass through P begins with a check."""
    shared = {id(tensor): tensor for tensor in [*model.parameters(), *model.buffers()]}
    result = copy.deepcopy(model, shared)
    result.p.get_submodule("0").register_forward_pre_hook(lambda module, inputs: check())
    return result


def memory(model: DGM) -> list[tuple[str, int]]:
    """Name and number of slots of every layer with memory, from the data upwards."""
    return [(place.name, place.slots) for place in inspection.places(model)]


def place_of(model: DGM, index: int) -> inspection.Place:
    places = inspection.require_memory(model)
    if index >= len(places):
        raise MemgenError(f"there is no layer {index}: {len(places)} layers have a memory, counted from 0")
    return places[index]


# ---- changing the memory


def changed(h_a: Preference, change: Change) -> Preference:
    """The weights of an attention after one change.

    >>> changed(Preference(torch.tensor([[1.0, 2.0, 3.0]])), Change(place=0, slot=1, factor=0.5)).weights
    tensor([[1., 1., 3.]])
    >>> changed(Preference(torch.tensor([[1.0, 2.0, 3.0]])), Change(place=0, slot=0, other=2)).weights
    tensor([[3., 2., 1.]])
    """
    weights, index, slot = h_a.weights, h_a.index, change.slot
    if slot < 0:
        return Preference(weights * change.factor, index)
    which = torch.arange(weights.shape[-1], device=weights.device) if index is None else index
    if change.other is None:
        return Preference(torch.where(which == slot, weights * change.factor, weights), index)
    swapped = torch.where(which == slot, change.other, torch.where(which == change.other, slot, which))
    return Preference(weights[..., swapped], None) if index is None else Preference(weights, swapped)


@contextmanager
def changing(model: DGM, changes: Sequence[Change]) -> Iterator[None]:
    """A context in which the changes are applied to the attention of the model."""
    with ExitStack() as stack:
        for change in changes:
            place = place_of(model, change.place)
            if max(change.slot, change.other or 0) >= place.slots:
                raise MemgenError(f"{place.name} has {place.slots} slots, counted from 0")
            stack.enter_context(inspection.hooked(place.layer.attention, partial(changed, change=change)))
        yield


# ---- making rows


class Drawn(NamedTuple):
    x: Float[Tensor, "n D"]
    z: Float[Tensor, "n d"]


def samples(model: DGM, n: int, seed: int, with_noise: bool, hold: int) -> Drawn:
    """`memgen sample`, with the codes that the rows were decoded from."""
    codes: list[Tensor] = []
    decode = model.decode

    def listening(z: tuple[Tensor, ...], *rest: Any) -> Any:
        codes.append(z[0])
        return decode(z, *rest)

    model.decode = listening  # type: ignore[method-assign, assignment]
    x = sampling.sample(model, n, seed=seed, draw=with_noise, hold=hold)
    return Drawn(x, torch.cat(codes)[:n].cpu())


def dreams(model: DGM, n: int) -> Float[Tensor, "n D"]:
    """Example rows for a model without data: the mode of p(x|z) for draws of z from the prior."""
    viewed = view(model)
    z = samples(viewed, n, 1, False, 0).z
    return likeliest(viewed, z)


def _p(model: DGM, z: Float[Tensor, "n d"]) -> Factorised:
    """p(x|z_1): x does not depend on the levels above the first."""
    given = Batch.unobserved(len(z), model.likelihood.columns).to(next(model.parameters()))
    above = (given.x.new_zeros(len(z), d) for d in model.latent[1:])
    return factorised(model.decode((z.to(given.x), *above), given), "the page")


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


def code(model: DGM, z: Sequence[float]) -> Float[Tensor, "1 d"]:
    if len(z) != model.latent[0]:
        raise MemgenError(f"z has {len(z)} values, the first level of this model has {model.latent[0]}")
    return torch.tensor([z], dtype=torch.float32)


def morph(model: DGM, a: Float[Tensor, "1 d"], b: Float[Tensor, "1 d"], steps: int) -> Drawn:
    """`memgen sample --interpolate` between two codes."""
    z = sampling.slerp(a, b, steps)[0]
    return Drawn(decoded(model, z), z)


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


# ---- numbers


def log_p(model: DGM, x: Float[Tensor, "N D"], n: int = SAMPLES) -> Float64[Tensor, " N"]:
    """`memgen evaluate`: log p(x) by importance sampling. The noise does not depend on changes of the memory."""
    return density.log_likelihood(model, Batch.of(x), n).log_p


class Reading(NamedTuple):
    """What a code reads from the memory, and the mean of p(x|z)."""

    attention: list[Float[Tensor, " slots"]]
    x: Float[Tensor, " D"]


@torch.no_grad()
def reading(model: DGM, z: Float[Tensor, "1 d"]) -> Reading:
    """The attention of every layer at z, and the mean of p(x|z)."""
    attention: dict[int, Tensor] = {}
    with ExitStack() as stack:
        for i, place in enumerate(inspection.places(model)):

            def keep(h_a: Preference, i: int = i, slots: int = place.slots) -> None:
                attention[i] = inspection.dense(h_a, slots).flatten(0, -2)[0].cpu()

            stack.enter_context(inspection.hooked(place.layer.attention, keep))
        x = decoded(model, z)[0]
    return Reading([attention.get(i, torch.zeros(0)) for i in range(len(inspection.places(model)))], x)


class Slots(NamedTuple):
    """Pictures, usage and class preferences of all slots of a layer."""

    pictures: Float[Tensor, "slots D"]
    usage: inspection.Usage
    classes: Float[Tensor, "classes slots"] | None


def slots(model: DGM, index: int, x: Float[Tensor, "N D"], labels: Int[Tensor, " N"] | None) -> Slots:
    """`memgen inspect`: pictures, usage, and the mean preference of every class."""
    place = place_of(model, index)
    h = inspection.preferences(model, Batch.of(x[:READ]))[place.name]
    classes = None if labels is None else inspection.by_class(h, labels[:READ])
    return Slots(inspection.slot_pictures(model, place), inspection.usage(h), classes)


def values(model: DGM, index: int, x: Float[Tensor, "N D"], tick: Callable[[int], None]) -> inspection.Ablation:
    """`memgen inspect`: the gain in log p(x) from every slot."""
    place = place_of(model, index)
    return inspection.ablation(model, place, Batch.of(x[:ABLATED]), samples=ABLATION_SAMPLES, tick=tick)


def neighbours(
    pictures: Float[Tensor, "N D"], rows: Float[Tensor, "M D"]
) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    return inspection.nearest(pictures, inspection.filled(rows), NEAREST)


# ---- missing values


def hidden_by(pattern: str, shape: tuple[int, ...], columns: int, seed: int) -> Bool[Tensor, " D"]:
    return missing_entries(pattern, shape, columns, 1, seed=seed)[0]


def imputed(
    model: DGM, x: Float[Tensor, "N D"], observed: Bool[Tensor, "N D"], *, draws: int, steps: int, **options: Any
) -> imputation.Imputation:
    """`memgen impute`."""
    method = imputation.method_for(None, 0, model.mask)
    parts = imputation.imputations(model, Batch(x, observed), method, steps, draws=draws, **options)
    return imputation.join(list(parts))


# ---- for the page


def as_bytes(x: Float[Tensor, "*rows D"]) -> str:
    """Values from 0 to 1 as bytes, in base64."""
    return base64.b64encode((x.clamp(0, 1) * 255).round().byte().contiguous().numpy().tobytes()).decode()


def as_floats(x: Tensor, digits: int = 4) -> Any:
    """Rounded numbers for JSON. A number that is not finite becomes null."""
    if x.ndim:
        return [as_floats(row, digits) for row in x]
    value = float(x)
    return round(value, digits) if torch.isfinite(x) else None
