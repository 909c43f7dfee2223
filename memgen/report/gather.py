"""The content of a report: all numbers and figures of a run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.model import count_parameters
from memgen.data import Dataset
from memgen.report.figures.base import Figure
from memgen.report.figures.curves import shared_limits, training_curves
from memgen.report.figures.images import image_grid, image_rows
from memgen.report.figures.memory import memory_figures
from memgen.report.figures.tables import column_figure, dependence_figure, privacy_figure
from memgen.report.synthetic import Synthesis, synthesis
from memgen.runs.modelfile import Saved
from memgen.runs.run import Run
from memgen.runs.scores import bits_of, fill, imputation_error, look, score
from memgen.tasks.density import BitsPerDimension, Likelihood
from memgen.tasks.imputation import method_for
from memgen.tasks.inspection import MOST_SLOTS, places
from memgen.tasks.patterns import missing_entries, scaled_patterns
from memgen.tasks.sampling import reconstruct, sample
from memgen.tasks.scores import SquaredError

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
    """Height, width and channels of its images; () if its rows are not images."""
    other: str = ""
    """A name for the data if they are not those that the run was trained on; else ""."""

    @property
    def method(self) -> str:
        """The imputation method."""
        return method_for(None, 0, self.saved.model.mask)


class Filled(NamedTuple):
    """Errors of imputed values."""

    error: SquaredError
    per_row: Tensor
    """Squared errors of each row, on a scale on which their mean is the error per missing value."""
    effective: float
    """Number of effective states, median over rows."""
    values: str
    """Kind and scale of the values."""


@dataclass(frozen=True)
class Gathered:
    """All content of the page about one run."""

    subject: Subject
    likelihood: Likelihood
    imputation: dict[str, Filled]
    """By pattern."""
    sections: dict[str, list[Figure]] = field(default_factory=dict)
    bits: BitsPerDimension | None = None
    """Only for pixels of 8 bits."""
    synthesis: Synthesis | None = None
    """Only for tables."""

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


def names(paths: Sequence[Path]) -> list[str]:
    """Short, distinct names of runs: the last part of each path, or more parts where these are equal.

    >>> names([Path("a/vae"), Path("b/vae")])
    ['a/vae', 'b/vae']
    """
    resolved = [path.absolute().parts for path in paths]  # not resolve: a link keeps its own name
    for length in range(1, max(map(len, resolved)) + 1):
        short = ["/".join(parts[-length:]) for parts in resolved]
        if len(set(short)) == len(short):
            return short
    return [f"{'/'.join(parts[-1:])} ({i})" for i, parts in enumerate(resolved, 1)]  # the same run, named twice


def gather_all(
    subjects: Sequence[Subject], samples: int, limit: int, seed: int, tell: Callable[[str], None] | None = None
) -> tuple[list[Gathered], int]:
    """Gather all runs with the same number of importance samples, which is also returned. Training curves of runs on
    the same data share an axis.
    """
    samples, rows = to_score(subjects, samples, limit, seed)
    first = subjects[0].data.name
    limits = shared_limits([one.run.metrics() for one in subjects if one.data.name == first])
    gathered = []
    for one in subjects:
        if tell is not None:
            tell(f"{one.name}:")
        gathered.append(gather(one, samples, rows, limit, seed, limits if one.data.name == first else None))
    return gathered, samples


def gather(
    subject: Subject, samples: int, rows: int, limit: int, seed: int, limits: tuple[float, float] | None = None
) -> Gathered:
    """Score `rows` test rows, impute `limit` of them, sample, inspect the memory; `limits`: of the training axis."""
    x = subject.data.fixed("test", rows)
    likelihood, _ = score(subject.run, subject.saved, x, "test", samples, seed, other=subject.other)
    filled, figures = impute_patterns(subject, subject.data.fixed("test", limit).values, seed)
    metrics = subject.run.metrics()
    sections = {"training": [training_curves(metrics, limits)] if metrics else []}
    if subject.shape:
        sections |= {"samples": samples_of(subject, seed), "reconstructions": reconstructions(subject)}
    found = None if subject.data.columns is None else synthesis(subject.saved.model, subject.data, limit, seed)
    if found is not None:
        sections |= {"columns": [column_figure(found)], "dependence": [dependence_figure(found)]}
        sections |= {"privacy": [privacy_figure(found)]}
    sections |= {"imputation": figures, "memory": memory(subject, limit, seed)}
    return Gathered(subject, likelihood, filled, sections, bits_of(subject.saved, likelihood, x), found)


def to_score(subjects: Sequence[Subject], samples: int, limit: int, seed: int) -> tuple[int, int]:
    """Numbers of importance samples and rows: those of an evaluation that all runs have stored, if they are larger."""
    if any(subject.other for subject in subjects):
        return samples, limit
    stored = [subject.run.kept_scores("test", seed, subject.saved.sha256) for subject in subjects]
    common = set(stored[0]).intersection(*stored)
    better = [K for K in common if samples < K and min(rows[K] for rows in stored) >= limit]
    if not better:
        return samples, limit
    return max(better), min(rows[max(better)] for rows in stored)


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
    x = subject.data.rows("test", 2 * ROW)
    means = reconstruct(subject.saved.model, Batch.of(x))
    # Labels are keys: a blank keeps those of the second row apart.
    rows = {"data": x[:ROW], "reconstruction": means[:ROW], "data ": x[ROW:], "reconstruction ": means[ROW:]}
    caption = f"The first {len(x)} test images, and below each the mean of p(x|z) at the mean of q(z|x)."
    return [image_rows("reconstructions", caption, rows, subject.shape)]


def impute_patterns(subject: Subject, x: Float[Tensor, "N D"], seed: int) -> tuple[dict[str, Filled], list[Figure]]:
    """Impute the rows x under the paper's three patterns, scaled to the image."""
    filled, figures = {}, []
    values = "numbers in units of their standard deviation, levels right (0) or wrong (1)"
    values = subject.data.binarisation if subject.data.columns is None else values
    for pattern in scaled_patterns(subject.shape):
        missing = missing_entries(pattern, subject.shape, x.shape[1], len(x), seed=seed)
        batch = Batch(x, ~(missing | x.isnan()))
        result = fill(subject.saved.model, batch, subject.method, f"imputing {pattern}", steps=STEPS, seed=seed)
        error, per_row = imputation_error(subject.data, result.mean, x, missing)
        filled[pattern] = Filled(error, per_row, float(result.effective.median()), values)
        if subject.shape:
            rows = {"data": x[:ROW], "missing": x[:ROW], "imputed": result.mean[:ROW].float()}
            caption = (
                f"{pattern}: test images, what was missing (blue), and the mean of what the model fills in; mean "
                f"squared error {error.mean:.4f} ± {error.standard_error:.4f} per missing value, {len(x):,} rows."
            )
            name = f"imputation-{pattern}"
            figures.append(image_rows(name, caption, rows, subject.shape, {"missing": missing[:ROW]}))
    return filled, figures


def memory(subject: Subject, limit: int, seed: int) -> list[Figure]:
    """The figures of `memgen inspect`; none for a model without memory or with more than MOST_SLOTS slots."""
    if not 0 < max((place.slots for place in places(subject.saved.model)), default=0) <= MOST_SLOTS:
        return []
    data, rows = subject.data, min(limit, SILENCED_ROWS)
    inspection = look(subject.saved.model, data, "test", None, rows, SILENCED_SAMPLES, seed)
    return memory_figures(inspection, data.some("train"), subject.shape)


def same_data(a: Gathered, b: Gathered) -> bool:
    """Whether two runs were scored on the very same values."""
    first, second = a.subject, b.subject
    key = [(s.data.name, s.data.scale, s.data.binarisation, s.saved.model.likelihood.binary) for s in (first, second)]
    return key[0] == key[1] and len(a.likelihood.log_p) == len(b.likelihood.log_p)


def paired_difference(a: Gathered, b: Gathered) -> Tensor | None:
    """log p(x) of b minus that of a, row by row; None if they were scored on different rows."""
    return b.likelihood.log_p - a.likelihood.log_p if same_data(a, b) else None
