"""Weights into the zoo, and out of it again to see whether they still give the number that they came with."""

from __future__ import annotations

import json
from typing import Any

import torch
from torch import Tensor

from memgen.core.model import DGM
from memgen.errors import FailedError, MemgenError
from memgen.runs import zoo
from memgen.runs.run import WEIGHTS, read_model
from memgen.runs.scores import score
from memgen.runs.storage import CHECKSUM, load_tensors, save_tensors
from memgen.tasks.density import log_likelihood
from reproduction.job import Job, Place, read_result
from reproduction.jobs import data_of

TOLERANCE = 0.01
"""Nats by which half precision may change a likelihood."""
CHECKED, SAMPLES = 1000, 1000
"""Test examples and samples by which that is measured."""
NUMBERS = (
    *("row", "model", "table", "recipe", "seed", "epochs", "seconds", "parameters", "data", "scale", "binarisation"),
    *("log_likelihood", "standard_error", "elbo", "samples", "examples", "first", "paper", "difference", "compared"),
    *("commit", "recipe_sha256", "weights_sha256", "before"),
)
"""What of a result goes with the weights."""


def ship(job: Job, place: Place) -> dict[str, Any]:
    """Put the weights of a job into the zoo, in half precision if that leaves its likelihood as it is."""
    name, result = job.shipped_as, read_result(job.result(place))
    if result is None:
        raise MemgenError(
            f"{name} has no result yet: "
            f"python -m reproduction {job.row.name} --schedule {job.schedule} --seed {job.seed}"
        )
    file = job.run(place) / WEIGHTS
    tensors, about = load_tensors(file)
    if about[CHECKSUM] != result["weights_sha256"]:
        raise MemgenError(f"{file} is not what {job.result(place)} was measured with")
    saved = read_model(file)
    model, x = saved.model, data_of(saved).fixed("test", CHECKED)
    before = log_likelihood(model, x, SAMPLES).log_p
    small = halved(model, tensors)
    model.load_state_dict(small)
    changes = log_likelihood(model, x, SAMPLES).log_p - before
    change = float(changes.mean())
    half = abs(change) < TOLERANCE
    summary = {key: result[key] for key in NUMBERS} | {
        "half_precision": half,
        "half_precision_change": change,
        "half_precision_change_of_one_example": float(changes.abs().mean()),
    }
    metadata = {key: value for key, value in about.items() if key != CHECKSUM} | {zoo.RESULT: json.dumps(summary)}
    target = zoo.folder() / f"{name}{zoo.ENDING}"
    save_tensors(target, small if half else tensors, metadata)
    return {"name": name, "half_precision": half, "change": change, "bytes": target.stat().st_size}


def halved(model: DGM, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """Matrices of weights in half precision; vectors and statistics are few, and stay as they are."""
    weights = {name for name, value in model.named_parameters() if value.ndim > 1}
    return {name: value.to(torch.float16) if name in weights else value for name, value in tensors.items()}


def verify(name: str, limit: int | None, device: str) -> dict[str, Any]:
    """Score the shipped weights of a row again, with the same noise, and compare; `limit`: the first examples only."""
    stored = zoo.result(name)
    if limit is not None and str(limit) not in stored["first"]:
        known = ", ".join(stored["first"])
        raise MemgenError(f"--limit {limit}: the mean is known of the first {known} or of all; choose one of them")
    saved = read_model(zoo.folder() / f"{name}{zoo.ENDING}", device)
    x = data_of(saved).fixed("test", limit)
    result, seconds = score(None, saved, x, "test", stored["samples"])
    expected = stored["log_likelihood"] if limit is None else stored["first"][str(limit)]
    # Half precision was measured on some of the examples, and other hardware rounds otherwise.
    allowed = 2 * TOLERANCE
    answer = {
        "row": name,
        "log_likelihood": result.mean,
        "standard_error": result.standard_error,
        "expected": expected,
        "difference": result.mean - expected,
        "allowed": allowed,
        "samples": stored["samples"],
        "examples": len(x),
        "seconds": seconds,
    }
    if abs(answer["difference"]) > allowed:
        raise FailedError(
            f"{name}: {result.mean:.3f} nats here, {expected:.3f} where it was measured: they differ by more than "
            f"{allowed} nats"
        )
    return answer
