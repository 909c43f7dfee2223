"""A look inside the memory: what each slot is for, by reading and replacing what passes between the parts of a layer.

Nothing in the model knows about inspection. A forward hook on `attention` reads h_a, or takes one slot out of it; a
hook on `memory` replaces h_m; a hook on `dense` replaces h_g. Layers are counted from the data upwards, as in the
paper: layer 1 is next to x.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor, nn

from memgen.core.layers import Activation, MemoryLayer, evaluating
from memgen.core.memory import Preference
from memgen.core.model import DGM, Batch, Levels, Terms
from memgen.core.noise import BLOCK, ExampleNoise, RowNoise
from memgen.core.objective import importance
from memgen.errors import MemgenError
from memgen.tasks.density import standard_error
from memgen.tasks.sampling import sample

CHUNK = 1000
ROWS_AT_ONCE = 10_000
"""Samples of rows that pass through P together while slots are silenced."""
MOST_SLOTS = 10_000
"""Every slot is decoded, silenced and drawn by itself."""
DEAD = 0.1
"""A slot is called dead if in no image it gets this part of an even share, 1/slots, of the preference."""


class Place(NamedTuple):
    """A layer with memory."""

    name: str
    layer: MemoryLayer

    @property
    def slots(self) -> int:
        return len(cast(Tensor, self.layer.memory.M))


def places(model: DGM) -> list[Place]:
    """The layers with memory, from the data upwards."""
    found = []
    for level, net in enumerate(model.p, 1):
        layers = list(cast(Any, net).layers)
        for index, layer in enumerate(reversed(layers), 1):
            if isinstance(layer, MemoryLayer):
                found.append(Place(f"layer {index}" if len(model.p) == 1 else f"level {level} layer {index}", layer))
    return found


def require_memory(model: DGM) -> list[Place]:
    if not (found := places(model)):
        raise MemgenError("this model has no memory to look into; train one with model.slots, such as digits-mem-vae")
    if (most := max(place.slots for place in found)) > MOST_SLOTS:
        raise MemgenError(f"every slot is looked at by itself, so up to {MOST_SLOTS:,} slots; this model has {most:,}")
    return found


@contextmanager
def hooked(module: nn.Module, change: Callable[[Any], Any]) -> Iterator[None]:
    """Inside, what the module returns is change(what it returned); None leaves it."""
    handle = module.register_forward_hook(lambda module, inputs, output: change(output))
    try:
        yield
    finally:
        handle.remove()


def replaced(place: Place, value: float) -> Any:
    """Inside, h_m of this layer is a constant: its memory is disabled."""
    return hooked(place.layer.memory, lambda h_m: torch.full_like(h_m, value))


def without(place: Place, slot: int) -> Any:
    """Inside, one slot of this layer is never read."""

    def silence(h_a: Preference) -> Preference:
        index = torch.arange(h_a.weights.shape[-1], device=h_a.weights.device) if h_a.index is None else h_a.index
        return Preference(h_a.weights.masked_fill(index == slot, 0.0), h_a.index)

    return hooked(place.layer.attention, silence)


def dense(h_a: Preference, slots: int) -> Float[Tensor, "*rows slots"]:
    """The weight of every slot, where an attention names only the chosen ones."""
    if h_a.index is None:
        return h_a.weights
    return h_a.weights.new_zeros(*h_a.weights.shape[:-1], slots).scatter_add(-1, h_a.index, h_a.weights)


@torch.no_grad()
def preferences(model: DGM, x: Float[Tensor, "N D"], *, seed: int = 0) -> dict[str, Float[Tensor, "N slots"]]:
    """h_a of every row for one z ~ q(z|x), divided by its sum: which part of its reading falls on each slot.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[8]", "model.slots=[5]", "model.norm=none"]), columns=3)
    >>> preferences(model, torch.rand(4, 3))["layer 1"].sum(-1).allclose(torch.ones(4))
    True
    """
    weights = next(model.parameters())
    found: dict[str, list[Tensor]] = {place.name: [] for place in require_memory(model)}
    with evaluating(model), ExitStack() as stack:
        for place in places(model):

            def keep(h_a: Preference, place: Place = place) -> None:
                h = dense(h_a, place.slots)[0]
                found[place.name].append((h / h.sum(-1, keepdim=True).clamp_min(1e-30)).cpu())

            stack.enter_context(hooked(place.layer.attention, keep))
        for first in range(0, len(x), CHUNK):
            batch = Batch.of(x[first : first + CHUNK].to(weights))
            own = RowNoise(seed, range(first, first + len(batch.x)), model.latent, 0, weights.device)
            noise = tuple(level.to(weights) for level in next(own.steps()).normal)
            model.joint(batch, model.infer(model.encode(batch), noise).z)
    return {name: torch.cat(parts) for name, parts in found.items()}


def by_class(h: Float[Tensor, "N slots"], labels: Int[Tensor, " N"]) -> Float[Tensor, "classes slots"]:
    """The mean of each class, in the order of the classes."""
    return torch.stack([h[labels == label].mean(0) for label in labels.unique()])


def correlation(a: Float[Tensor, "classes columns"]) -> Float[Tensor, "classes classes"]:
    """Correlation coefficients between the classes' rows."""
    return torch.corrcoef(a.double()).float()


def resemblance(a: Float[Tensor, "classes classes"], b: Float[Tensor, "classes classes"]) -> float | None:
    """How alike two correlation matrices are: the correlation of what stands above their diagonals; None where that has
    no meaning, with fewer than three classes or where nothing varies.

    >>> a = torch.corrcoef(torch.randn(5, 9))
    >>> round(resemblance(a, a) or 0.0, 5)
    1.0
    """
    if len(a) < 3:
        return None
    above = torch.triu_indices(len(a), len(a), 1)
    pair = torch.stack([a[above[0], above[1]], b[above[0], above[1]]]).double()
    value = float(torch.corrcoef(pair)[0, 1])
    return value if math.isfinite(value) else None


class Usage(NamedTuple):
    """How the rows spread their reading over the slots."""

    share: Float[Tensor, " slots"]
    """Mean part of the preference."""
    used: Float[Tensor, " slots"]
    """Part of the rows that give the slot more than an even share."""
    top: Float[Tensor, " slots"]
    """Part of the rows that prefer it to all others."""
    entropy: float
    """Of a row's preference, in nats, mean over rows; e to that power is an effective number of slots."""
    dead: list[int]


def usage(h: Float[Tensor, "N slots"]) -> Usage:
    """From preferences that sum to one per row.

    >>> found = usage(torch.eye(3)[:2])
    >>> found.share, found.dead
    (tensor([0.5000, 0.5000, 0.0000]), [2])
    """
    slots = h.shape[-1]
    entropy = -torch.xlogy(h, h).sum(-1).mean()
    top = torch.bincount(h.argmax(-1), minlength=slots) / len(h)
    dead = (h.amax(0) < DEAD / slots).nonzero().flatten().tolist()
    return Usage(h.mean(0), (h > 1 / slots).float().mean(0), top, float(entropy) + 0.0, dead)


@torch.no_grad()
def slot_pictures(model: DGM, place: Place) -> Float[Tensor, "slots D"]:
    """What each slot alone looks like: h_g := 0, h_m := the slot, decoded."""
    M = cast(Tensor, place.layer.memory.M)
    nothing = tuple(M.new_zeros(1, len(M), d) for d in model.latent)

    def no_h_g(activation: Activation) -> Activation:
        return Activation(activation.pre, torch.zeros_like(activation.output))

    alone = hooked(place.layer.dense, no_h_g), hooked(place.layer.memory, lambda h_m: M.view_as(h_m))
    with evaluating(model), alone[0], alone[1]:
        return model.decode(model.prior(nothing)[0][0]).mean.cpu()


class Ablation(NamedTuple):
    """What each slot adds to log p(x), in nats: intact minus silenced."""

    mean: Float[Tensor, " slots"]
    standard_error: Float[Tensor, " slots"]
    """Over rows, paired."""


@torch.no_grad()
def ablation(
    model: DGM,
    place: Place,
    x: Float[Tensor, "N D"],
    *,
    samples: int = 100,
    seed: int = 0,
    tick: Callable[[int], None] = lambda rows: None,
) -> Ablation:
    """Silence one slot after the other and score the rows again, with the very same z: importance estimates of log p(x)
    with so many samples. Q has no memory, so z and q(z|x) stay as they are. `tick` is given the rows scored since.
    """
    weights = next(model.parameters())
    rows, losses = max(1, ROWS_AT_ONCE // samples), []
    with evaluating(model):
        for first in range(0, len(x), rows):
            batch = Batch.of(x[first : first + rows].to(weights))
            own = ExampleNoise(seed, range(first, first + len(batch.x)), model.latent)
            blocks = zip(*(own.block() for _ in range(math.ceil(samples / BLOCK))), strict=True)
            noise = tuple(torch.cat(level)[:samples].to(weights) for level in blocks)
            z, log_q, _ = model.infer(model.encode(batch), noise)
            intact = _log_p(model, batch, z, log_q)
            lost = []
            for slot in range(place.slots):
                with without(place, slot):
                    lost.append(intact - _log_p(model, batch, z, log_q))
                tick(len(batch.x))
            losses.append(torch.stack(lost))
    loss = torch.cat(losses, 1)
    return Ablation(loss.mean(1).float(), torch.tensor([standard_error(own) for own in loss]))


def _log_p(model: DGM, batch: Batch, z: Levels, log_q: Terms) -> Float64[Tensor, " B"]:
    """The importance estimate of log p(x) from given z."""
    joint = model.joint(batch, z)
    log_w = sum(joint.log_p_z, joint.log_p_x) - sum(log_q[1:], log_q[0])
    return importance(log_w.double()).cpu()


def disabled_samples(model: DGM, n: int = 20, *, seed: int = 0) -> dict[str, Float[Tensor, "n D"]]:
    """Images from the same n draws of z: intact, and with h_m := 1 (as in the paper) and h_m := 0 in each layer alone
    and in all of them.
    """
    found = {"intact": sample(model, n, seed=seed)}
    here = require_memory(model)
    groups = [(place.name, [place]) for place in here] + ([("all layers", here)] if len(here) > 1 else [])
    for value, symbol in ((1.0, "1"), (0.0, "0")):
        for name, group in groups:
            with ExitStack() as stack:
                for place in group:
                    stack.enter_context(replaced(place, value))
                found[f"h_m = {symbol}, {name}"] = sample(model, n, seed=seed)
    return found


def nearest(
    pictures: Float[Tensor, "N D"], rows: Float[Tensor, "M D"], k: int = 3
) -> tuple[Float[Tensor, "N k"], Int[Tensor, "N k"]]:
    """The k nearest rows to each picture: Euclidean distance, and which they are."""
    best = torch.cdist(pictures, rows).topk(min(k, len(rows)), largest=False)
    return best.values, best.indices


def filled(x: Float[Tensor, "N D"]) -> Float[Tensor, "N D"]:
    """Missing values replaced by the mean of their column.

    >>> filled(torch.tensor([[1.0, torch.nan], [3.0, 4.0]]))
    tensor([[1., 4.],
            [3., 4.]])
    """
    return x.where(~x.isnan(), x.nanmean(0).nan_to_num()) if bool(x.isnan().any()) else x


@dataclass(frozen=True)
class LayerInspection:
    """All that was found out about the memory of one layer."""

    name: str
    usage: Usage
    ablation: Ablation
    pictures: Float[Tensor, "slots D"]
    neighbours: tuple[Float[Tensor, "shown k"], Int[Tensor, "shown k"]]
    """Distance and index of the training rows that are nearest to the pictures of the most read slots (`shown`)."""
    shown: list[int]
    classes: Float[Tensor, "classes slots"] | None
    """Mean preference of each class."""
    correlation: Float[Tensor, "classes classes"] | None
    pixel_resemblance: float | None
    """Of the class correlations here and those of raw pixels."""


@dataclass(frozen=True)
class Inspection:
    """All that was found out about a model's memory."""

    layers: list[LayerInspection]
    labels: list[int] | list[str]
    """The classes, by number or by name; empty where there are none."""
    pixels: Float[Tensor, "classes classes"] | None
    """Correlation between the classes' mean images, or rows."""
    disabled: dict[str, Float[Tensor, "n D"]]
    rows: int
    ablated_rows: int
    samples: int


SHOWN = 10
"""Slots whose picture is shown with its neighbours."""


def inspect(
    model: DGM,
    x: Float[Tensor, "N D"],
    scored: Float[Tensor, "n D"],
    train: Float[Tensor, "M D"],
    labels: Int[Tensor, " N"] | None = None,
    *,
    values: Float[Tensor, "N E"] | None = None,
    samples: int = 100,
    seed: int = 0,
    tick: Callable[[int], None] = lambda rows: None,
) -> Inspection:
    """Everything above. `x` are rows to read the preferences from (grey images, as in the paper), `scored` rows whose
    log p(x) is compared (binary for a Bernoulli likelihood), `train` rows in which neighbours are looked for. The
    classes' correlation by the memory is compared with that by `values` of the rows, x itself if none are given.
    """
    here = require_memory(model)
    h = preferences(model, x, seed=seed)
    classes = [] if labels is None else labels.unique().tolist()
    raw = filled(x if values is None else values)
    pixels = correlation(by_class(raw, labels)) if labels is not None and len(classes) > 1 else None
    layers = []
    for place in here:
        own, pictures = usage(h[place.name]), slot_pictures(model, place)
        shown = own.share.argsort(descending=True)[:SHOWN].tolist()
        mean = None if labels is None else by_class(h[place.name], labels)
        between = None if mean is None or pixels is None else correlation(mean)
        layers.append(
            LayerInspection(
                place.name,
                own,
                ablation(model, place, scored, samples=samples, seed=seed, tick=tick),
                pictures,
                nearest(pictures[shown], filled(train)),
                shown,
                mean,
                between,
                None if between is None or pixels is None else resemblance(between, pixels),
            )
        )
    return Inspection(layers, classes, pixels, disabled_samples(model, seed=seed), len(x), len(scored), samples)
