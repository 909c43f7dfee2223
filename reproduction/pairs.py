"""One row minus another under the same schedule: paired over images, and over seeds and splits; what both were analysed
for, too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor

from memgen.tasks.density import standard_error
from reproduction.job import Job, Place, read_json, read_result
from reproduction.jobs import LIKELIHOOD, current, examples, keep
from reproduction.rows import PAIRS, ROWS


def file_of(results: Path, pair: tuple[str, str]) -> Path:
    return results / "differences" / f"{pair[0]}--{pair[1]}.json"


def update(job: Job, place: Place) -> None:
    """Take the differences in which a job has a part, and whose other half is there, into the files of the pairs."""
    for pair in PAIRS:
        if job.row.name in pair:
            halves = [Job(ROWS[name], job.schedule, job.seed, job.split) for name in pair]
            if (entry := difference(halves, place)) is not None:
                add(file_of(place.results, pair), entry, halves)


def alike(halves: list[Job]) -> bool:
    """Whether both are trained by the same settings, also in all that comes before."""
    first, second = ([stage.training for stage in job.recipe.stages] for job in halves)
    return first == second


def difference(halves: list[Job], place: Place) -> dict[str, Any] | None:
    """First minus second, image by image; None if either is not scored, or if one was trained for longer: that is no
    difference between models."""
    weights = [weights_of(half, place) for half in halves]
    if None in weights or not alike(halves):
        return None
    differences = {
        f"{analysis} {name}": values
        for analysis in (LIKELIHOOD, *halves[0].row.analyses)
        for name, values in by_example(halves, weights, analysis, place).items()
    }
    quantity = f"{LIKELIHOOD} {'elbo' if halves[0].row.quantity == 'elbo' else 'log_p'}"
    if quantity not in differences:
        return None
    return {
        "schedule": halves[0].schedule,
        "seed": halves[0].seed,
        "split": halves[0].split,
        **_mean(differences[quantity]),
        "examples": len(differences[quantity]),
        "weights_sha256": weights,
        "analyses": {name: _mean(values) for name, values in differences.items() if not name.startswith(LIKELIHOOD)},
    }


def by_example(
    halves: list[Job], weights: list[str | None], analysis: str, place: Place
) -> dict[str, Float64[Tensor, " N"]]:
    """First minus second of every number that an analysis has of each example, where both have it."""
    first, second = (examples(half, place, analysis, weight) for half, weight in zip(halves, weights, strict=True))
    return {name: first[name] - second[name] for name in first if name in second}


def _mean(values: Float64[Tensor, " N"]) -> dict[str, float]:
    return {"mean": float(values.mean()), "standard_error": standard_error(values)}


def add(path: Path, entry: dict[str, Any], halves: list[Job]) -> None:
    def key(pair: dict[str, Any]) -> tuple[str, int, int]:
        return pair["schedule"], pair["seed"], pair["split"]

    before = (read_json(path) or {"pairs": []})["pairs"]
    pairs = sorted([pair for pair in before if key(pair) != key(entry)] + [entry], key=key)
    keep(path, {"first": halves[0].row.name, "second": halves[1].row.name, "pairs": pairs})


def weights_of(job: Job, place: Place) -> str | None:
    """The hash of the weights that a job's result was measured with; None if there is no result of today's recipe."""
    result = read_result(job.result(place)) if job.schedule in job.row.schedules else None
    return None if result is None or not current(job, result) else str(result["weights_sha256"])


def valid(results: Path, pair: tuple[str, str]) -> list[dict[str, Any]]:
    """The differences of a pair that belong to the results as they are now."""
    entries = []
    for entry in (read_json(file_of(results, pair)) or {"pairs": []})["pairs"]:
        halves = [Job(ROWS[name], entry["schedule"], entry["seed"], entry["split"]) for name in pair]
        results_of_both = [read_result(half.result(Place(results, results))) for half in halves]
        if [None if one is None else one["weights_sha256"] for one in results_of_both] == entry["weights_sha256"]:
            entries.append(entry)
    return entries


def by_schedule(results: Path, pair: tuple[str, str]) -> tuple[str, list[dict[str, Any]]]:
    """The first schedule by which both rows of a pair were trained, and their differences under it, or none. A row's
    own result may be of another, which the other row does not have."""
    entries = valid(results, pair)
    schedules = ROWS[pair[0]].schedules if entries else ()
    schedule = next((name for name in schedules if any(entry["schedule"] == name for entry in entries)), "")
    return schedule, [entry for entry in entries if entry["schedule"] == schedule]


def over(pairs: list[dict[str, Any]], schedule: str) -> dict[str, Any]:
    """Mean over the trainings of one schedule, and its standard error over them: over splits of the data where there
    are several, the mean over the seeds of each; else over seeds.
    """
    by_split: dict[int, list[float]] = {}
    for pair in pairs:
        if pair["schedule"] == schedule:
            by_split.setdefault(pair["split"], []).append(pair["mean"])
    only = next(iter(by_split.values()))
    means = torch.tensor(
        only if len(by_split) == 1 else [sum(pair) / len(pair) for pair in by_split.values()], dtype=torch.float64
    )
    return {
        "trainings": len(means),
        "over": "seeds" if len(by_split) == 1 else "splits",
        "mean": float(means.mean()),
        "standard_error": standard_error(means) if len(means) > 1 else None,
    }
