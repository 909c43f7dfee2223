"""With memory minus without, under the same recipe: paired over images, and over seeds and splits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from memgen.reproduce.jobs import Job, Place, keep, read_result
from memgen.reproduce.rows import PAIRS, ROWS
from memgen.run import Run
from memgen.tasks.density import Likelihood, standard_error


def file_of(place: Place, row: str) -> Path:
    return place.results / "differences" / f"{row}.json"


def update(job: Job, place: Place) -> dict[str, Any] | None:
    """Take the difference in which a job has a part, if its other half is there too, into the file of its pair."""
    with_memory = (
        job.row.name if job.row.name in PAIRS else {plain: mem for mem, plain in PAIRS.items()}.get(job.row.name)
    )
    if with_memory is None:
        return None
    halves = [Job(ROWS[name], job.schedule, job.seed, job.split) for name in (with_memory, PAIRS[with_memory])]
    scored = [kept(half, place) for half in halves]
    if scored[0] is None or scored[1] is None:
        return None
    quantity = "elbo" if job.row.quantity == "elbo" else "log_p"
    difference = getattr(scored[0], quantity) - getattr(scored[1], quantity)
    entry = {
        "schedule": job.schedule,
        "seed": job.seed,
        "split": job.split,
        "mean": float(difference.mean()),
        "standard_error": standard_error(difference),
        "examples": len(difference),
    }
    path = file_of(place, with_memory)
    before = read_result(path) or {"pairs": []}
    same = (entry["schedule"], entry["seed"], entry["split"])
    pairs = [old for old in before["pairs"] if (old["schedule"], old["seed"], old["split"]) != same] + [entry]
    pairs.sort(key=lambda own: (own["schedule"], own["seed"], own["split"]))
    found: dict[str, Any] = {"row": with_memory, "without": PAIRS[with_memory], "quantity": quantity, "pairs": pairs}
    found["over_pairs"] = {schedule: over(pairs, schedule) for schedule in {own["schedule"] for own in pairs}}
    keep(path, found)
    return found


def kept(job: Job, place: Place) -> Likelihood | None:
    """What was scored of a job, image by image, where its run is on this machine."""
    result, folder = read_result(job.result(place)), job.run(place)
    if result is None or not folder.is_dir():
        return None
    scores = Run.open(folder).scores("test", result["samples"], 0, result["weights_sha256"])
    found = scores.read()[0]
    return found if found is not None and len(found.log_p) == result["examples"] else None


def over(pairs: list[dict[str, Any]], schedule: str) -> dict[str, Any]:
    """Mean over the trainings of one schedule, and its standard error over them."""
    means = torch.tensor([own["mean"] for own in pairs if own["schedule"] == schedule], dtype=torch.float64)
    return {
        "trainings": len(means),
        "mean": float(means.mean()),
        "standard_error": standard_error(means) if len(means) > 1 else None,
    }
