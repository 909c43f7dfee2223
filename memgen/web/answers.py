"""The answers about z, images and the memory: from a query to JSON.

An answer is a function (served, model, query): `model` is this thread's copy of the model, see `Served.view`.
"""

from __future__ import annotations

import math
import time
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor

from memgen.core.batch import UNKNOWN, Batch
from memgen.core.model import DGM
from memgen.data.columns import Columns
from memgen.data.kinds import LEVELLED
from memgen.data.texts import as_texts
from memgen.errors import MemgenError
from memgen.tasks import inspection, sampling
from memgen.tasks.patterns import missing_entries
from memgen.web import queries, service
from memgen.web.models import Served
from memgen.web.service import as_bytes, as_floats
from memgen.web.work import Report

DRAWS = 40
"""Number of completions that are drawn, each state with a probability equal to its weight."""
SHOWN = 8
"""Number of completions that are shown: those drawn most often."""
POINTS = 400
"""Number of rows on the map."""


def shown(served: Served, x: Float[Tensor, "n D"]) -> Any:
    """Rows in the form that the page shows: images as bytes, rows of a table as text."""
    columns = served.saved.form.columns
    if served.shape:
        return as_bytes(x)
    return as_floats(x) if columns is None else as_texts(columns, x.numpy())


def schema_of(served: Served) -> Columns:
    columns = served.saved.form.columns
    if columns is None:
        raise MemgenError(f"{served.name} is no model of a table with named columns")
    return columns


def require_images(served: Served) -> None:
    if not served.shape:
        raise MemgenError(f"{served.name} is a model of a table; see the panel Tables")


# ---- generate


def samples(served: Served, model: DGM, query: queries.Samples) -> dict[str, Any]:
    if query.label is None:
        sample = sampling.sample_with_codes(model, query.n, seed=query.seed, draw=query.draw, hold=query.hold)
    else:
        rows = Batch.of(served.examples.of_class(query.label))
        sample = sampling.sample_near(model, rows, query.n, seed=query.seed, draw=query.draw)
    return {"images": shown(served, sample.x), "z": as_floats(sample.z[0])}


def decode(served: Served, model: DGM, query: queries.Decode) -> dict[str, Any]:
    with inspection.changing(model, query.memory_changes):
        x = service.decoded(model, service.code(model, query.z), query.seed if query.draw else None)
    return {"image": shown(served, x)}


def morph(served: Served, model: DGM, query: queries.Morph) -> dict[str, Any]:
    """`memgen sample --interpolate` between two codes."""
    z = sampling.slerp(service.code(model, query.a), service.code(model, query.b), query.steps)[0]
    return {"images": shown(served, service.decoded(model, z)), "z": as_floats(z)}


def latent_map(served: Served, model: DGM, query: queries.OfModel) -> dict[str, Any]:
    examples = served.examples
    result = served.once("map", lambda: service.latent_map(model, examples.grey))
    return {
        "centre": as_floats(result.centre),
        "axes": as_floats(result.axes, 5),
        "deviations": as_floats(result.deviations),
        "explained": as_floats(result.explained),
        "points": as_floats(result.points[:POINTS], 3),
        "labels": examples.labels(slice(POINTS)),
        "rows": min(len(examples.grey), service.MAPPED),
        "about": examples.about,
    }


def examples(served: Served, model: DGM, query: queries.Examples) -> dict[str, Any]:
    examples = served.examples
    part = slice(query.first, query.first + query.n)
    rows = examples.rows[part]
    about = {"total": len(examples.rows), "about": examples.about, "classes": examples.present}
    return {"rows": shown(served, rows), "count": len(rows), "labels": examples.labels(part), **about}


def encode(served: Served, model: DGM, query: queries.Row) -> dict[str, Any]:
    x = required_row(served, query)
    return {"z": as_floats(service.means(model, x)[0]), "row": shown(served, x)}


# ---- the memory


def look(served: Served, model: DGM, query: queries.Look) -> dict[str, Any]:
    """What z reads and log p(x), with the memory intact and changed. x is the given row or the mode of p(x|z)."""
    z = service.code(model, query.z)
    x = row(served, query)
    x = service.likeliest(model, z) if x is None else x
    reading = inspection.read(model, service.codes(model, z), query.memory_changes)
    effect = inspection.effect(model, Batch.of(x), query.memory_changes, query.samples)
    return {
        "attention": [as_floats(h[0]) for h in reading.attention],
        "changed": [as_floats(h[1]) for h in reading.attention],
        "means": shown(served, reading.x),
        "x": shown(served, x),
        "log_p": round(float(effect.intact), 3),
        "log_p_changed": round(float(effect.changed), 3),
        "samples": query.samples,
    }


def known(served: Served, model: DGM, place: int) -> service.Slots:
    """Pictures and usage of the slots of a layer, read from the example rows."""
    return served.once(("slots", place), lambda: service.slots(model, place, served.examples.grey))


def slots(served: Served, model: DGM, query: queries.Slots) -> dict[str, Any]:
    result, groups = known(served, model, query.place), groups_of(served, query.by)
    classes = inspection.by_class(result.preferences, groups.label) if groups.names else None
    return {
        "pictures": shown(served, result.pictures[: service.MOST_LISTED]),
        "share": as_floats(result.usage.share, 5),
        "effective": round(math.exp(result.usage.entropy), 2),
        "dead": result.usage.dead,
        "classes": None if classes is None else as_floats(classes, 5),
        "labels": groups.names,
        "rows": len(result.preferences),
    }


class Groups(NamedTuple):
    """The classes of the first example rows."""

    label: Int[Tensor, " N"]
    names: list[str]
    """Of the labels that occur, in order; empty without classes."""


def groups_of(served: Served, by: str | None) -> Groups:
    """By the labels of the data, or by a column of a table that has levels."""
    examples = served.examples
    if by is None:
        none = torch.full((len(examples.grey),), UNKNOWN)
        label, names = (none, ()) if examples.label is None else (examples.label, examples.classes)
    else:
        columns = schema_of(served)
        place = columns.names.index(by) if by in columns.names else None
        if place is None or columns.columns[place].kind not in LEVELLED:
            raise MemgenError(f"there is no column {by!r} with levels")
        label = examples.grey[:, place].nan_to_num(UNKNOWN).long()
        names = tuple(map(str, columns.columns[place].levels))
    label = label[: service.READ]
    return Groups(label, [names[i] for i in label[label != UNKNOWN].unique().tolist()])


def nearest(served: Served, model: DGM, query: queries.OfSlot) -> dict[str, Any]:
    """The training rows that are nearest to a slot's picture."""
    place, examples = service.place_of(model, query.place), served.examples
    if query.slot >= place.slots:
        raise MemgenError(f"{place.name} has {place.slots} slots, counted from 0")
    rows = examples.grey if examples.train is None else examples.train
    pictures = known(served, model, query.place).pictures
    distances, index = served.once(("nearest", query.place), lambda: service.neighbours(model, pictures, rows))
    where = "samples of the model" if examples.train is None else f"the first {len(rows):,} training rows"
    return {
        "rows": shown(served, rows[index[query.slot]]),
        "distances": as_floats(distances[query.slot], 2),
        "count": index.shape[1],
        "where": where,
    }


def values(served: Served, model: DGM, query: queries.OfPlace, report: Report) -> dict[str, Any]:
    """The gain in log p(x) from every slot of a layer, in nats."""
    rows = served.examples.rows[: service.ABLATED]
    total, done = service.place_of(model, query.place).slots * len(rows), 0

    def tick(scored: int) -> None:
        nonlocal done
        done += scored
        report(done, total)

    result = served.once(("values", query.place), lambda: service.values(model, query.place, rows, tick))
    return {
        "mean": as_floats(result.mean),
        "standard_error": as_floats(result.standard_error),
        "rows": len(rows),
        "samples": service.ABLATION_SAMPLES,
    }


# ---- complete


def pattern(served: Served, model: DGM, query: queries.Pattern) -> dict[str, Any]:
    hidden = missing_entries(query.pattern, served.shape, model.likelihood.columns, 1, seed=query.seed)[0]
    return {"hidden": "".join("1" if h else "0" for h in hidden.tolist())}


def complete(served: Served, model: DGM, query: queries.Complete) -> dict[str, Any]:
    """Several completions of an image with hidden pixels, their mean, and their spread."""
    require_images(served)
    x = required_row(served, query)
    if len(query.hidden) != x.shape[1]:
        raise MemgenError(f"the mask has {len(query.hidden)} values, the image has {x.shape[1]}")
    hidden = torch.tensor([h == "1" for h in query.hidden])
    clock = time.perf_counter()
    # The hidden values of an image of the data are known. They are masked here, so that no result depends on them.
    result = service.imputed(
        model, x.masked_fill(hidden, torch.nan), ~hidden[None], draws=min(DRAWS, query.steps // 2), steps=query.steps,
        smooth=True, seed=query.seed,
    )  # fmt: skip
    completions, weights = _distinct(result.draws[:, 0])
    return {
        "mean": as_bytes(result.mean[0]),
        "spread": as_bytes(2 * result.draws[:, 0].std(0)),
        "completions": as_bytes(completions),
        "weights": weights,
        "draws": len(result.draws),
        "log_visible": as_floats(result.log_observed[0], 2),
        "effective": as_floats(result.effective[0], 1),
        "steps": query.steps,
        "seconds": round(time.perf_counter() - clock, 3),
    }


def _distinct(draws: Float[Tensor, "n D"]) -> tuple[Float[Tensor, "m D"], list[float]]:
    """The distinct completions, most frequent first, and the fraction of the draws that each accounts for."""
    kinds, counts = draws.unique(dim=0, return_counts=True)
    order = counts.argsort(descending=True, stable=True)[:SHOWN]
    return kinds[order], [round(float(c), 4) for c in counts[order] / len(draws)]


# ---- the row of a query


def row(served: Served, query: queries.Row) -> Float[Tensor, "1 D"] | None:
    """Example number `row`, or `pixels` in hexadecimal. None if neither is given."""
    if query.row is not None:
        return served.examples.row(query.row)
    if query.pixels is None:
        return None
    require_images(served)
    likelihood = served.model.likelihood
    levels = torch.tensor(list(bytes.fromhex(query.pixels)), dtype=torch.float32)
    if len(levels) != likelihood.columns:
        raise MemgenError(f"the image has {len(levels)} values, the model has {likelihood.columns}")
    x = levels / 255
    return ((x > 0.5).float() if likelihood.binary else x).unsqueeze(0)


def required_row(served: Served, query: queries.Row) -> Float[Tensor, "1 D"]:
    x = row(served, query)
    if x is None:
        raise MemgenError("say which row: row or pixels")
    return x
