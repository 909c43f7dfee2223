"""Long tasks with a progress bar: scoring (resumed from stored results), imputation, inspection of the memory."""

from __future__ import annotations

import sys
import time
from contextlib import closing
from dataclasses import replace
from typing import Any

import torch

from memgen.core.batch import Batch, Rows, pieces
from memgen.core.model import GenerativeModel
from memgen.data import Dataset
from memgen.data.kinds import LEVELLED
from memgen.errors import MemgenError
from memgen.runs.kept import Scores
from memgen.runs.modelfile import Saved
from memgen.runs.progress import Progress
from memgen.runs.run import Run
from memgen.tasks.density import BitsPerDimension, Likelihood, bits_per_dimension, join, log_likelihoods
from memgen.tasks.imputation import Imputation, imputations
from memgen.tasks.imputation import join as join_rows
from memgen.tasks.inspection import Inspection, inspect, require_memory
from memgen.tasks.scores import SquaredError, comparable, row_errors, squared_error

MANY_PARTS = 1000
"""Partial results of a few rows each are joined when there are so many: a small tensor takes more than its values."""
KEEP_EVERY = 60.0
"""Seconds between writes of the partial results of an evaluation."""


def score(
    run: Run | None,
    saved: Saved,
    batch: Rows,
    split: str,
    samples: int,
    seed: int = 0,
    fresh: bool = False,
    other: str = "",
) -> tuple[Likelihood, float]:
    """log p(x) of every row, and the seconds that it took. Results stored by an earlier evaluation of the run are
    used. `other` names data other than those of the run. Without a run nothing is stored.
    """
    scores = None if run is None else run.scores(split, samples, seed, saved.sha256, other)
    previous, seconds = (None, 0.0) if fresh or scores is None else scores.read()
    parts = [] if previous is None else [previous]
    before = done = sum(len(part.log_p) for part in parts)
    if before:
        anew = "memgen evaluate --fresh scores them again"
        print(f"{min(before, len(batch)):,} examples were scored before; {anew}", file=sys.stderr)
    clock = time.perf_counter() - seconds
    kept_at = time.monotonic()
    scored = log_likelihoods(saved.model, batch, samples, before, seed)
    with Progress("scoring", len(batch), "example", before) as progress, closing(scored) as stream:
        try:
            for piece in stream:
                parts.append(piece)
                if len(parts) > MANY_PARTS:
                    parts = [join(parts)]
                done += len(piece.log_p)
                progress.to(done)
                if time.monotonic() - kept_at > KEEP_EVERY:
                    kept_at = time.monotonic()
                    keep(scores, parts, time.perf_counter() - clock)
        except KeyboardInterrupt:
            where = keep(scores, parts, time.perf_counter() - clock)
            raise KeyboardInterrupt(f"{done:,} of {len(batch):,} examples scored {where}") from None
    seconds = time.perf_counter() - clock
    if done > before:
        keep(scores, parts, seconds)
    return first(join(parts), len(batch)), seconds * len(batch) / done


def bits_of(saved: Saved, result: Likelihood, batch: Rows) -> BitsPerDimension | None:
    """Bits per dimension, by which likelihoods of 8-bit pixels are compared; None for other likelihoods."""
    if saved.recipe.model.likelihood != "discretised_logistic":
        return None
    observed = [(~batch.rows(part).values.isnan()).sum(-1) for part in pieces(batch)]
    return bits_per_dimension(result.log_p, torch.cat(observed))


def fill(
    model: GenerativeModel, batch: Batch, method: str | None = None, what: str = "imputing", **options: Any
) -> Imputation:
    """Missing values of all rows; `options` are those of `imputations`."""
    parts: list[Imputation] = []
    with Progress(what, len(batch), "row") as progress:
        for part in imputations(model, batch, method, **options):
            parts.append(part)
            progress.to(sum(len(part.mean) for part in parts))
    return join_rows(parts)


def look(
    model: GenerativeModel, data: Dataset, split: str, limit: int | None, rows: int, samples: int, seed: int
) -> Inspection:
    """Inspect the memory: preferences of the first `limit` rows of a split, the gain from each slot over `rows`."""
    scored = data.fixed(split, rows)
    slots = sum(place.slots for place in require_memory(model))
    with Progress("silencing slots", slots * len(scored), "score") as progress:
        done = 0

        def tick(n: int) -> None:
            nonlocal done
            done += n
            progress.to(done)

        batch = data.split(split).rows(slice(limit))
        inspection = inspect(
            model,
            batch,
            scored,
            data.some("train"),
            values=None if data.shape else encoded(model, batch.x),
            samples=samples,
            seed=seed,
            tick=tick,
        )
    return replace(inspection, labels=[data.classes[int(i)] for i in inspection.labels]) if data.classes else inspection


def encoded(model: GenerativeModel, x: torch.Tensor) -> torch.Tensor:
    """Rows of a table in the encoding that Q reads, in which all columns have comparable scales; NaN is missing."""
    head, x = model.likelihood, x.to(next(model.parameters()))
    missing = x.isnan()
    return head.encode(x.where(~missing, 0)).masked_fill(missing[..., head.owners], torch.nan).cpu()


def imputation_error(
    data: Dataset, guess: torch.Tensor, x: torch.Tensor, missing: torch.Tensor
) -> tuple[SquaredError, torch.Tensor]:
    """Squared error of the imputed values whose true values are known, in total and for each row. In a table, numbers
    are scaled by their standard deviation over training rows, and the error of a level is 0 (right) or 1 (wrong).
    """
    known = missing & ~x.isnan()
    if data.columns is not None:
        levelled = torch.tensor([kind in LEVELLED for kind in data.columns.kinds])
        guess, x = comparable(guess, x, levelled, data.some("train"))
    return squared_error(guess, x, known), row_errors(guess, x, known)


def keep(scores: Scores | None, parts: list[Likelihood], seconds: float) -> str:
    """Write partial results into the run if possible. Returns the end of a message about it."""
    if scores is None:
        return "but not kept: a model file has no place for them"
    try:
        if parts:
            scores.write(join(parts), seconds)
    except MemgenError as error:
        print(f"results per example are not kept: {error}", file=sys.stderr)
        return "but not kept"
    return "and kept; the same command goes on"


def first(result: Likelihood, n: int) -> Likelihood:
    """The first n examples."""
    bounds = {K: values[:n] for K, values in result.bounds.items()}
    return Likelihood(result.samples, result.log_p[:n], result.elbo[:n], result.effective[:n], bounds)
