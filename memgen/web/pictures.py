"""The answers for models of images: from a request to JSON."""

from __future__ import annotations

import time
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from memgen.errors import MemgenError
from memgen.web import asks, service
from memgen.web.service import as_bytes, as_floats
from memgen.web.shelf import Shown, row
from memgen.web.work import Check, Report

DRAWS = 40
"""Completions that are drawn, each by the weight of its state."""
SHOWN = 8
"""Completions that are shown: those drawn most often."""
POINTS = 400
"""Rows on the map."""


def need_images(shown: Shown) -> None:
    if not shown.shape:
        raise MemgenError(f"{shown.name} is a model of a table; see the panel Tables")


def samples(shown: Shown, ask: asks.Samples, check: Check) -> dict[str, Any]:
    own = service.view(shown.model, check)
    x, z = service.samples(own, ask.n, ask.seed, ask.draw, ask.hold)
    return {"images": as_bytes(x), "z": as_floats(z)}


def decode(shown: Shown, ask: asks.Decode, check: Check) -> dict[str, Any]:
    own = service.view(shown.model, check)
    with service.changing(own, ask.changes):
        x = service.decoded(own, service.code(own, ask.z), ask.seed if ask.draw else None)
    return {"image": as_bytes(x)}


def morph(shown: Shown, ask: asks.Morph, check: Check) -> dict[str, Any]:
    own = service.view(shown.model, check)
    x, z = service.morph(own, service.code(own, ask.a), service.code(own, ask.b), ask.steps)
    return {"images": as_bytes(x), "z": as_floats(z)}


def latent_map(shown: Shown, ask: asks.OfModel, check: Check) -> dict[str, Any]:
    pool = shown.pool
    found = shown.once("map", lambda: service.latent_map(service.view(shown.model), pool.grey))
    return {
        "centre": as_floats(found.centre),
        "axes": as_floats(found.axes, 5),
        "deviations": as_floats(found.deviations),
        "explained": as_floats(found.explained),
        "points": as_floats(found.points[:POINTS], 3),
        "labels": None if pool.labels is None else [pool.classes[i] for i in pool.labels[:POINTS].tolist()],
        "rows": min(len(pool.grey), service.MAPPED),
        "about": pool.about,
    }


def images(shown: Shown, ask: asks.Images, check: Check) -> dict[str, Any]:
    need_images(shown)
    pool = shown.pool
    some = slice(ask.first, ask.first + ask.n)
    labels = None if pool.labels is None else [pool.classes[i] for i in pool.labels[some].tolist()]
    about = {"total": len(pool.rows), "about": pool.about, "real": pool.real}
    return {"images": as_bytes(pool.rows[some]), "count": len(pool.rows[some]), "labels": labels, **about}


def encode(shown: Shown, ask: asks.Encode, check: Check) -> dict[str, Any]:
    x = row(shown, ask.image, ask.pixels)
    if x is None:
        raise MemgenError("say which image: image or pixels")
    own = service.view(shown.model, check)
    z = service.means(own, x)
    return {"z": as_floats(z[0]), "image": as_bytes(x)}


def look(shown: Shown, ask: asks.Look, check: Check) -> dict[str, Any]:
    """The image of z and log p(x), intact and changed; x is the row that is given, else the likeliest of z."""
    own = service.view(shown.model, check)
    z = service.code(own, ask.z)
    given = row(shown, ask.image, ask.pixels)
    x = service.likeliest(own, z) if given is None else given
    key = "log_p", x.numpy().tobytes()
    before = service.reading(own, z)
    log_p = shown.recent(key, lambda: float(service.log_p(own, x)))
    if not ask.changes:
        after, log_p_changed = before, log_p
    else:
        with service.changing(own, ask.changes):
            after = service.reading(own, z)
            log_p_changed = float(service.log_p(own, x))
    return {
        "attention": [as_floats(h) for h in before.attention],
        "changed": [as_floats(h) for h in after.attention],
        "image": as_bytes(before.x),
        "image_changed": as_bytes(after.x),
        "x": as_bytes(x[0]),
        "log_p": round(log_p, 3),
        "log_p_changed": round(log_p_changed, 3),
        "samples": service.SAMPLES,
    }


def known(shown: Shown, place: int) -> service.Slots:
    """What the rows of the pool say of the slots of a layer."""
    pool = shown.pool
    return shown.once(("slots", place), lambda: service.slots(service.view(shown.model), place, pool.grey, pool.labels))


def slots(shown: Shown, ask: asks.OfPlace, check: Check) -> dict[str, Any]:
    pool = shown.pool
    found = known(shown, ask.place)
    labels = [] if pool.labels is None else pool.labels[: service.READ].unique().tolist()
    return {
        "pictures": as_bytes(found.pictures[: service.MOST_LISTED]) if shown.shape else None,
        "share": as_floats(found.usage.share, 5),
        "used": as_floats(found.usage.used),
        "top": as_floats(found.usage.top),
        "effective": round(float(torch.tensor(found.usage.entropy).exp()), 2),
        "dead": found.usage.dead,
        "classes": None if found.classes is None else as_floats(found.classes, 5),
        "labels": [pool.classes[i] for i in labels],
        "rows": min(len(pool.grey), service.READ),
        "about": pool.about,
    }


def nearest(shown: Shown, ask: asks.OfSlot, check: Check) -> dict[str, Any]:
    """The training images that are nearest to a slot's picture."""
    need_images(shown)
    place, pool = service.place_of(shown.model, ask.place), shown.pool
    if ask.slot >= place.slots:
        raise MemgenError(f"{place.name} has {place.slots} slots, counted from 0")
    rows = pool.grey if pool.train is None else pool.train
    pictures = known(shown, ask.place).pictures
    distances, found = shown.once(("nearest", ask.place), lambda: service.neighbours(pictures, rows))
    where = f"the first {len(rows):,} training images" if pool.train is not None else "samples of the model"
    return {
        "images": as_bytes(rows[found[ask.slot]]),
        "distances": as_floats(distances[ask.slot], 2),
        "count": found.shape[1],
        "where": where,
    }


def values(shown: Shown, ask: asks.OfPlace, check: Check, report: Report) -> dict[str, Any]:
    """What every slot of a layer adds to log p(x), in nats."""
    key, pool = ("values", ask.place), shown.pool
    if (found := shown.kept.get(key)) is None:
        own, done = service.view(shown.model, check), 0
        total = service.place_of(own, ask.place).slots * min(len(pool.rows), service.ABLATED)

        def tick(rows: int) -> None:
            nonlocal done
            done += rows
            report(done, total)

        found = shown.kept[key] = service.values(own, ask.place, pool.rows, tick)
    return {
        "mean": as_floats(found.mean),
        "standard_error": as_floats(found.standard_error),
        "rows": min(len(pool.rows), service.ABLATED),
        "samples": service.ABLATION_SAMPLES,
    }


def pattern(shown: Shown, ask: asks.Pattern, check: Check) -> dict[str, Any]:
    hidden = service.hidden_by(ask.pattern, shown.shape, shown.model.likelihood.columns, ask.seed)
    return {"hidden": "".join("1" if h else "0" for h in hidden.tolist())}


def complete(shown: Shown, ask: asks.Complete, check: Check) -> dict[str, Any]:
    """Several completions of an image of which a part is hidden, their mean, and how far they differ."""
    need_images(shown)
    x = row(shown, ask.image, ask.pixels)
    if x is None:
        raise MemgenError("say which image: image or pixels")
    if len(ask.hidden) != x.shape[1]:
        raise MemgenError(f"the mask has {len(ask.hidden)} values, the image has {x.shape[1]}")
    hidden = torch.tensor([h == "1" for h in ask.hidden])
    clock = time.perf_counter()
    own = service.view(shown.model, check)
    # Not one truth below: the hidden values are known for an image of the data, and are looked at by nobody.
    found = service.imputed(
        own, x.masked_fill(hidden, torch.nan), ~hidden[None], draws=min(DRAWS, ask.steps // 2), steps=ask.steps,
        smooth=True, seed=ask.seed,
    )  # fmt: skip
    kinds, weights = _distinct(found.draws[:, 0], hidden)
    return {
        "mean": as_bytes(found.mean[0]),
        "spread": as_bytes(2 * found.draws[:, 0].std(0)),
        "completions": as_bytes(kinds),
        "weights": weights,
        "draws": len(found.draws),
        "log_visible": as_floats(found.log_observed[0], 2),
        "effective": as_floats(found.effective[0], 1),
        "steps": ask.steps,
        "seconds": round(time.perf_counter() - clock, 3),
    }


def _distinct(draws: Tensor, hidden: Bool[Tensor, " D"]) -> tuple[Tensor, list[float]]:
    """The completions that differ, those drawn most often first, and which part of the draws each of them is."""
    kinds, counts = draws.unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:SHOWN]
    return kinds[order], [round(float(c), 4) for c in counts[order] / len(draws)]
