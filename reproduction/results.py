"""What a result says: its numbers, and how they were made."""

from __future__ import annotations

import hashlib
import json
import subprocess
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.machine import describe
from memgen import __version__
from memgen.core.model import count_parameters
from memgen.data import Dataset
from memgen.errors import FailedError, MemgenError
from memgen.recipes import document
from memgen.recipes.settings import Recipe
from memgen.runs import zoo
from memgen.runs.modelfile import Saved
from memgen.runs.run import Run
from memgen.runs.scores import score
from memgen.tasks.density import Likelihood, standard_error
from reproduction.job import MADE, SEED, Job, Place, read_json
from reproduction.rows import Row, Scoring

FIRST = (100, 1000)
"""The mean over the first 100 and 1,000 examples is kept, too, so that a few can be verified."""


def about(job: Job, run: Run, saved: Saved, data: Dataset, place: Place) -> dict[str, Any]:
    """How the number was made: recipe, weights, seed, code, hardware, duration."""
    metrics = run.metrics()
    made = read_json(run.folder / MADE) or {"commit": "unknown", "hardware": describe()}
    checkpoint = run.checkpoint()
    return {
        "row": job.row.name,
        "table": job.row.table,
        "model": job.row.model,
        "recipe": job.row.command(job.schedule),
        "stage": saved.reached.stage,
        "recipe_sha256": recipe_sha256(run.recipe),
        "weights_sha256": saved.sha256,
        "seed": job.seed,
        "split": job.split,
        "epochs": saved.epoch - run.skipped,
        "seconds": round(metrics[-1]["seconds"], 1),
        "before": history(job, place),
        **{key: value for key, value in made.items() if key != "before"},
        "scored_commit": commit(),
        "execution": {} if checkpoint is None else checkpoint.execution,
        "parameters": count_parameters(saved.model),
        "data": data.name,
        "scale": data.scale,
        "binarisation": data.binarisation,
        "curve": [
            [line["epoch"] - run.skipped, round(line["seconds"], 1), line["train_bound"], line.get("valid_bound")]
            for line in metrics
            if "train_bound" in line
        ],
        "curve_is": "epoch, seconds, bound on training rows, bound on validation rows if they are not trained on",
        "more": {},
        "analyses": {},
    }


def legs(last: Job, start: Saved, model: str | None, place: Place) -> list[dict[str, Any]]:
    """The trainings that led to the weights with which a job is about to begin, each of which gave its own to the next.
    They are told from the run of the last of them, or from the zoo, and kept in the folder of the run that begins:
    later the one may be gone, and the other have been replaced.
    """
    leg = {"recipe": last.row.command(last.schedule), "weights_sha256": start.sha256}
    if model is not None:
        result = zoo.result(model)
        about = {key: result[key] for key in ("recipe_sha256", "epochs", "seconds")}
        return [*result["before"], leg | about | {"shipped": True}]
    run = Run.open(last.run(place))
    metrics = run.metrics()
    seconds = round(metrics[-1]["seconds"], 1)
    about = {"recipe_sha256": recipe_sha256(run.recipe), "epochs": len(metrics), "seconds": seconds}
    return [*history(last, place), leg | about]


def history(job: Job, place: Place) -> list[dict[str, Any]]:
    """The trainings before a job's, as its run folder has kept them."""
    folder = job.run(place)
    before: list[dict[str, Any]] = (read_json(folder / MADE) or {}).get("before", [])
    if [leg["recipe"] for leg in before] != [link.row.command(link.schedule) for link in job.chain]:
        raise MemgenError(f"{folder / MADE} does not say which trainings came before it; move {folder} away")
    return before


def compared(row: Row, result: Likelihood, seconds: float) -> dict[str, Any]:
    """The numbers, beside the paper's."""
    quantity = result.elbo if row.quantity == "elbo" else result.log_p
    return {
        **summary(result, seconds),
        "first": {str(n): float(result.log_p[:n].mean()) for n in FIRST if n <= len(result.log_p)},
        "paper": row.paper,
        "compared": row.quantity,
        "difference": float(quantity.mean()) - row.paper,
        "difference_standard_error": standard_error(quantity),
    }


def summary(result: Likelihood, seconds: float) -> dict[str, Any]:
    if not bool(result.log_p.isfinite().all()):
        raise FailedError("log p(x) is not finite for some test examples: these weights are of no use")
    return {
        "log_likelihood": result.mean,
        "standard_error": result.standard_error,
        "elbo": float(result.elbo.mean()),
        "elbo_standard_error": standard_error(result.elbo),
        "samples": result.samples,
        "examples": len(result.log_p),
        "effective_sample_size": float(result.effective.mean()),
        "bounds": {str(K): float(bound.mean()) for K, bound in result.bounds.items()},
        "evaluation_seconds": round(seconds, 1),
    }


def score_as(scoring: Scoring, run: Run | None, saved: Saved, data: Dataset) -> tuple[Likelihood, float]:
    """log p(x) of the test examples of a scoring."""
    batch = data.fixed("test")
    other = ""
    if scoring.examples is not None:
        batch, other = batch.rows(chosen(len(batch), scoring.examples)), f"chosen-{scoring.examples}"
    return score(run, saved, batch, "test", scoring.samples, other=other)


def beside(scoring: Scoring, first: Scoring, run: Run, saved: Saved, data: Dataset) -> dict[str, Any]:
    """A second scoring of chosen examples, and what it adds to the first one on the very same."""
    result, seconds = score_as(scoring, run, saved, data)
    n = len(data.rows("test"))
    rows = chosen(n, scoring.examples or n)
    gain = result.log_p - score_as(first, run, saved, data)[0].log_p[rows]
    return summary(result, seconds) | {"gain": float(gain.mean()), "gain_standard_error": standard_error(gain)}


def chosen(n: int, k: int) -> Tensor:
    """k of n examples, by a seed; in order."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED))[:k].sort().values


def recipe_sha256(recipe: Recipe) -> str:
    """Of the settings that are not the defaults, so that a setting which a later version adds changes nothing.

    >>> recipe_sha256(Recipe(about="one")) == recipe_sha256(Recipe(about="other"))
    True
    """
    table, defaults = document.plain(recipe), document.plain(Recipe())

    def changed(values: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in values.items() if value != others[key]}

    (stage,) = defaults["stages"]
    stages = [{part: changed(values[part], stage[part]) for part in document.OF_STAGE} for values in table["stages"]]
    sections = {part: changed(table[part], defaults[part]) for part in ("data", "model")}
    return hashlib.sha256(json.dumps([sections, stages], sort_keys=True).encode()).hexdigest()


def commit() -> str:
    """The commit of the program, with a mark where it has been changed since; its version where it is no clone."""
    package = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", str(Path(__file__)))  # it may lie inside a clone of something else
        return git("rev-parse", "HEAD").strip() + (
            "-changed" if git("status", "--porcelain", "--", ".").strip() else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return f"version {__version__}"
