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
"""Number of completions that are drawn, each state with a probability equal to its weight."""
SHOWN = 8
"""Number of completions that are shown: those drawn most often."""
POINTS = 400
"""Number of rows on the map."""


def need_images(shown: Shown) -> None:
    if not shown.shape:
        raise MemgenError(f"{shown.name} is a model of a table; see the panel Tables")


def samples(shown: Shown, ask: asks.Samples, check: Check) -> dict[str, Any]:
    model = service.view(shown.model, check)
    x, z = service.samples(model, ask.n, ask.seed, ask.draw, ask.hold)
    return {"images": as_bytes(x), "z": as_floats(z)}


def decode(shown: Shown, ask: asks.Decode, check: Check) -> dict[str, Any]:
    model = service.view(shown.model, check)
    with service.changing(model, ask.changes):
        x = service.decoded(model, service.code(model, ask.z), ask.seed if ask.draw else None)
    return {"image": as_bytes(x)}


def morph(shown: Shown, ask: asks.Morph, check: Check) -> dict[str, Any]:
    model = service.view(shown.model, check)
    x, z = service.morph(model, service.code(model, ask.a), service.code(model, ask.b), ask.steps)
    return {"images": as_bytes(x), "z": as_floats(z)}


def latent_map(shown: Shown, ask: asks.OfModel, check: Check) -> dict[str, Any]:
    pool = shown.pool
    result = shown.once("map", lambda: service.latent_map(service.view(shown.model), pool.grey))
    return {
        "centre": as_floats(result.centre),
        "axes": as_floats(result.axes, 5),
        "deviations": as_floats(result.deviations),
        "explained": as_floats(result.explained),
        "points": as_floats(result.points[:POINTS], 3),
        "labels": None if pool.labels is None else [pool.classes[i] for i in pool.labels[:POINTS].tolist()],
        "rows": min(len(pool.grey), service.MAPPED),
        "about": pool.about,
    }


def images(shown: Shown, ask: asks.Images, check: Check) -> dict[str, Any]:
    need_images(shown)
    pool = shown.pool
    requested = slice(ask.first, ask.first + ask.n)
    labels = None if pool.labels is None else [pool.classes[i] for i in pool.labels[requested].tolist()]
    about = {"total": len(pool.rows), "about": pool.about, "real": pool.real}
    return {"images": as_bytes(pool.rows[requested]), "count": len(pool.rows[requested]), "labels": labels, **about}


def encode(shown: Shown, ask: asks.Encode, check: Check) -> dict[str, Any]:
    x = row(shown, ask.image, ask.pixels)
    if x is None:
        raise MemgenError("say which image: image or pixels")
    model = service.view(shown.model, check)
    z = service.means(model, x)
    return {"z": as_floats(z[0]), "image": as_bytes(x)}


def look(shown: Shown, ask: asks.Look, check: Check) -> dict[str, Any]:
    """The image of z and log p(x), with the memory intact and changed. x is the given row or the mode of p(x|z)."""
    model = service.view(shown.model, check)
    z = service.code(model, ask.z)
    given = row(shown, ask.image, ask.pixels)
    x = service.likeliest(model, z) if given is None else given
    key = "log_p", x.numpy().tobytes()
    before = service.reading(model, z)
    log_p = shown.recent(key, lambda: float(service.log_p(model, x)))
    if not ask.changes:
        after, log_p_changed = before, log_p
    else:
        with service.changing(model, ask.changes):
            after = service.reading(model, z)
            log_p_changed = float(service.log_p(model, x))
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
    """Pictures and usage of the slots of a layer, read from the rows of the pool."""
    pool = shown.pool
    return shown.once(("slots", place), lambda: service.slots(service.view(shown.model), place, pool.grey, pool.labels))


def slots(shown: Shown, ask: asks.OfPlace, check: Check) -> dict[str, Any]:
    pool = shown.pool
    result = known(shown, ask.place)
    labels = [] if pool.labels is None else pool.labels[: service.READ].unique().tolist()
    return {
        "pictures": as_bytes(result.pictures[: service.MOST_LISTED]) if shown.shape else None,
        "share": as_floats(result.usage.share, 5),
        "used": as_floats(result.usage.used),
        "top": as_floats(result.usage.top),
        "effective": round(float(torch.tensor(result.usage.entropy).exp()), 2),
        "dead": result.usage.dead,
        "classes": None if result.classes is None else as_floats(result.classes, 5),
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
    distances, indices = shown.once(("nearest", ask.place), lambda: service.neighbours(pictures, rows))
    where = f"the first {len(rows):,} training images" if pool.train is not None else "samples of the model"
    return {
        "images": as_bytes(rows[indices[ask.slot]]),
        "distances": as_floats(distances[ask.slot], 2),
        "count": indices.shape[1],
        "where": where,
    }


def values(shown: Shown, ask: asks.OfPlace, check: Check, report: Report) -> dict[str, Any]:
    """The gain in log p(x) from every slot of a layer, in nats."""
    key, pool = ("values", ask.place), shown.pool
    if (result := shown.answers.get(key)) is None:
        model, done = service.view(shown.model, check), 0
        total = service.place_of(model, ask.place).slots * min(len(pool.rows), service.ABLATED)

        def tick(rows: int) -> None:
            nonlocal done
            done += rows
            report(done, total)

        result = shown.answers[key] = service.values(model, ask.place, pool.rows, tick)
    return {
        "mean": as_floats(result.mean),
        "standard_error": as_floats(result.standard_error),
        "rows": min(len(pool.rows), service.ABLATED),
        "samples": service.ABLATION_SAMPLES,
    }


def pattern(shown: Shown, ask: asks.Pattern, check: Check) -> dict[str, Any]:
    hidden = service.hidden_by(ask.pattern, shown.shape, shown.model.likelihood.columns, ask.seed)
    return {"hidden": "".join("1" if h else "0" for h in hidden.tolist())}


def complete(shown: Shown, ask: asks.Complete, check: Check) -> dict[str, Any]:
    """Several completions of an image with hidden pixels, their mean, and their spread."""
    need_images(shown)
    x = row(shown, ask.image, ask.pixels)
    if x is None:
        raise MemgenError("say which image: image or pixels")
    if len(ask.hidden) != x.shape[1]:
        raise MemgenError(f"the mask has {len(ask.hidden)} values, the image has {x.shape[1]}")
    hidden = torch.tensor([h == "1" for h in ask.hidden])
    clock = time.perf_counter()
    model = service.view(shown.model, check)
    # The hidden values of an image of the data are known. They are masked here, so that no result depends on them.
    result = service.imputed(
        model, x.masked_fill(hidden, torch.nan), ~hidden[None], draws=min(DRAWS, ask.steps // 2), steps=ask.steps,
        smooth=True, seed=ask.seed,
    )  # fmt: skip
    kinds, weights = _distinct(result.draws[:, 0], hidden)
    return {
        "mean": as_bytes(result.mean[0]),
        "spread": as_bytes(2 * result.draws[:, 0].std(0)),
        "completions": as_bytes(kinds),
        "weights": weights,
        "draws": len(result.draws),
        "log_visible": as_floats(result.log_observed[0], 2),
        "effective": as_floats(result.effective[0], 1),
        "steps": ask.steps,
        "seconds": round(time.perf_counter() - clock, 3),
    }


def _distinct(draws: Tensor, hidden: Bool[Tensor, " D"]) -> tuple[Tensor, list[float]]:
    """The distinct completions, most frequent first, and the fraction of the draws that each accounts for."""
    kinds, counts = draws.unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:SHOWN]
    return kinds[order], [round(float(c), 4) for c in counts[order] / len(draws)]
