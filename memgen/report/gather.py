"""What stands on the page: all numbers and figures of a run."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from memgen.data import Dataset
from memgen.figures.base import Figure
from memgen.figures.curves import training_curves
from memgen.figures.images import image_grid, image_rows
from memgen.figures.memory import memory_figures
from memgen.model import count_parameters
from memgen.progress import Progress
from memgen.run import Run, Saved
from memgen.scoring import score
from memgen.tasks.density import Likelihood
from memgen.tasks.imputation import DEFAULT, Imputation, imputations, join
from memgen.tasks.inspection import inspect, places
from memgen.tasks.patterns import missing_entries, scaled_patterns
from memgen.tasks.sampling import reconstruct, sample
from memgen.tasks.scores import SquaredError, squared_error

GRID = 64
ROW = 10
STEPS = 100
SILENCED_ROWS = SILENCED_SAMPLES = 100


@dataclass(frozen=True)
class Subject:
    """A run to report on, with its data as its model reads them."""

    name: str
    run: Run
    saved: Saved
    data: Dataset
    shape: tuple[int, ...]
    """Height and width of its images; () if they are none."""


@dataclass(frozen=True)
class Gathered:
    """Everything that the page says of one run."""

    subject: Subject
    likelihood: Likelihood
    imputation: dict[str, SquaredError]
    """By pattern."""
    sections: dict[str, list[Figure]] = field(default_factory=dict)

    @property
    def facts(self) -> dict[str, Any]:
        """Parameters, epochs, seconds of training."""
        metrics, saved = self.subject.run.metrics(), self.subject.saved
        return {
            "parameters": count_parameters(saved.model),
            "epochs": saved.epoch,
            "weights": saved.weights,
            "seconds": metrics[-1]["seconds"] if metrics else None,
        }

    def write(self, folder: Path) -> None:
        """All figures with their numbers."""
        for figures in self.sections.values():
            for figure in figures:
                figure.write(folder)


def gather(subject: Subject, samples: int, limit: int, seed: int) -> Gathered:
    """Score, draw, fill in and look inside."""
    x = subject.data.fixed("test", limit)
    likelihood, _ = score(subject.run, subject.saved, x, "test", samples, seed)
    errors, filled = impute_patterns(subject, x, seed)
    sections = {"training": [training_curves(subject.run.metrics())] if subject.run.metrics() else []}
    if subject.shape:
        sections |= {"samples": samples_of(subject, seed), "reconstructions": reconstructions(subject)}
    sections |= {"imputation": filled, "memory": memory(subject, limit, seed)}
    return Gathered(subject, likelihood, errors, sections)


def samples_of(subject: Subject, seed: int) -> list[Figure]:
    model, shape = subject.saved.model, subject.shape
    caption = f"Means of p(x|z) for the first {GRID} draws of z from the prior, seed {seed}, nothing picked."
    grid = image_grid("samples", caption, sample(model, GRID, seed=seed), shape)
    rows = {
        "mean": sample(model, ROW, seed=seed),
        "draw": sample(model, ROW, seed=seed, draw=True),
    }
    words = f"The first {ROW} of them again: the mean of p(x|z) above a draw of x from it."
    return [grid, image_rows("means-and-draws", words, rows, shape)]


def reconstructions(subject: Subject) -> list[Figure]:
    x = subject.data.rows("test")[: 2 * ROW]
    kept = reconstruct(subject.saved.model, x)
    rows = {"data": x[:ROW], "kept": kept[:ROW], "data ": x[ROW:], "kept ": kept[ROW:]}
    caption = f"The first {len(x)} test images, and below each the mean of p(x|z) at the mean of q(z|x)."
    return [image_rows("reconstructions", caption, rows, subject.shape)]


def impute_patterns(
    subject: Subject, x: Float[Tensor, "N D"], seed: int
) -> tuple[dict[str, SquaredError], list[Figure]]:
    """The paper's three patterns, scaled to the image, on the rows x."""
    errors, figures = {}, []
    for pattern in scaled_patterns(subject.shape):
        missing = missing_entries(pattern, subject.shape, x.shape[1], len(x), seed=seed)
        result = fill(subject, x, missing, pattern, seed)
        errors[pattern] = squared_error(result.mean, x, missing)
        if subject.shape:
            rows = {"data": x[:ROW], "missing": x[:ROW], "imputed": result.mean[:ROW].float()}
            caption = (
                f"{pattern}: test images, what was missing (blue), and the mean of what the model fills in; mean "
                f"squared error {errors[pattern].mean:.4f} ± {errors[pattern].standard_error:.4f} per missing value, "
                f"{len(x):,} rows."
            )
            name = f"imputation-{pattern}"
            figures.append(image_rows(name, caption, rows, subject.shape, {"missing": missing[:ROW]}))
    return errors, figures


def fill(subject: Subject, x: Float[Tensor, "N D"], missing: Bool[Tensor, "N D"], what: str, seed: int) -> Imputation:
    parts: list[Imputation] = []
    with Progress(f"imputing {what}", len(x), "row") as progress:
        for part in imputations(subject.saved.model, x, ~missing, DEFAULT, STEPS, seed=seed):
            parts.append(part)
            progress.to(sum(len(part.mean) for part in parts))
    return join(parts)


def memory(subject: Subject, limit: int, seed: int) -> list[Figure]:
    """What `memgen inspect` draws; nothing for a model without memory."""
    here = places(subject.saved.model)
    if not here:
        return []
    data = subject.data
    slots, labels = sum(place.slots for place in here), data.labels.get("test")
    with Progress("silencing", slots, "slot") as progress:
        done = iter(range(1, slots + 1))
        found = inspect(
            subject.saved.model,
            data.rows("test"),
            data.fixed("test", min(limit, SILENCED_ROWS)),
            data.rows("train"),
            labels,
            samples=SILENCED_SAMPLES,
            seed=seed,
            tick=lambda: progress.to(next(done)),
        )
    return memory_figures(found, data.rows("train"), subject.shape)


def paired_difference(a: Gathered, b: Gathered) -> Tensor | None:
    """log p(x) of b minus that of a, image by image; None where they were scored on other rows."""
    first, second = a.subject, b.subject
    key = [(s.data.name, s.data.scale, s.data.binarisation, s.saved.model.likelihood.binary) for s in (first, second)]
    if key[0] != key[1] or not torch.equal(first.data.fixed("test", 1), second.data.fixed("test", 1)):
        return None
    return b.likelihood.log_p - a.likelihood.log_p
