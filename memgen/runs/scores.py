"""Long tasks with a progress bar: scoring (resumed from stored results), imputation, inspection of the memory."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import torch

from memgen.core.batch import Batch, Rows, pieces
from memgen.core.model import GenerativeModel
from memgen.data import Dataset
from memgen.data.kinds import LEVELLED
from memgen.errors import MemgenError
from memgen.runs.modelfile import Saved
from memgen.runs.progress import Progress
from memgen.runs.run import Run
from memgen.tasks.density import BATCH_SIZE, BitsPerDimension, Likelihood, bits_per_dimension, join, log_likelihoods
from memgen.tasks.imputation import Imputation, Settings, imputations
from memgen.tasks.imputation import join as join_rows
from memgen.tasks.inspection import Inspection, inspect, require_memory
from memgen.tasks.scores import SquaredError, comparable, row_errors, squared_error

MANY_PARTS = 1000
"""Partial results of a few rows each are joined when there are more: a small tensor takes more than its values."""
KEEP_EVERY = 60.0
"""Seconds between writes of the partial results of an evaluation."""


R = TypeVar("R", Likelihood, Imputation)


@runtime_checkable
class Kept(Protocol[R]):
    """Where the results of the first rows are kept, while those of the others are computed."""

    @property
    def required(self) -> bool:
        """Whether results that cannot be kept are an error."""
        ...

    def read(self) -> tuple[R | None, float]:
        """The results of the first rows, and the seconds that they took."""
        ...

    def write(self, result: R, seconds: float) -> None: ...


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
    return score_rows(saved.model, batch, samples, seed, scores, fresh)


def score_rows(
    model: GenerativeModel,
    batch: Rows,
    samples: int,
    seed: int = 0,
    scores: Kept[Likelihood] | None = None,
    fresh: bool = False,
    rows: range | None = None,
) -> tuple[Likelihood, float]:
    """log p(x) of `rows` (default: all), and the seconds that it took. What `scores` has kept is used, unless `fresh`.

    An unfinished scoring goes on at a border of batches, so that every row is scored in the same batch as without an
    interruption."""
    rows = range(len(batch)) if rows is None else rows
    previous, seconds = (None, 0.0) if fresh or scores is None else scores.read()
    parts = [] if previous is None else [previous]
    if previous is not None and len(previous) < len(rows):
        parts = [previous.first(len(previous) // BATCH_SIZE * BATCH_SIZE)]
    if before := sum(map(len, parts)):
        anew = "memgen evaluate --fresh scores them again"
        print(f"{min(before, len(rows)):,} examples were scored before; {anew}", file=sys.stderr)
    stream = log_likelihoods(model, batch, samples, rows.start + before, seed, stop=rows.stop)
    task = Long("scoring", "example", "scored", join, len(rows))
    result, seconds = task.collect(stream, parts, scores, seconds)
    return result.first(len(rows)), seconds * len(rows) / len(result)


def keep_all(scores: Kept[Likelihood], result: Likelihood, seconds: float) -> None:
    """Keep the results of all rows, unless those of more rows are there."""
    previous, _ = scores.read()
    if previous is None or len(previous) <= len(result):
        keep(scores, result, seconds, "example")


def keep(kept: Kept[R], result: R, seconds: float, unit: str) -> bool:
    """Write results. Returns whether that was possible; where they are required, an error is raised if not."""
    try:
        kept.write(result, seconds)
    except MemgenError as error:
        if kept.required:
            raise
        print(f"results per {unit} are not kept: {error}", file=sys.stderr)
        return False
    return True


@dataclass(frozen=True)
class Long(Generic[R]):
    """A task whose results come batch by batch, and are kept every minute and when it is interrupted."""

    what: str
    unit: str
    done: str
    """The participle for messages, as in "8 of 20 rows scored"."""
    join: Callable[[Sequence[R]], R]
    total: int

    def collect(
        self, pieces: Generator[R, None, None], parts: list[R], kept: Kept[R] | None, seconds: float = 0.0
    ) -> tuple[R, float]:
        """The results of `parts`, which took `seconds`, and of all pieces that come; and the seconds of both."""
        before = done = sum(map(len, parts))
        clock = time.perf_counter() - seconds
        kept_at = time.monotonic()
        with Progress(self.what, self.total, self.unit, before) as progress, closing(pieces) as stream:
            try:
                for piece in stream:
                    parts.append(piece)
                    if len(parts) > MANY_PARTS:
                        parts = [self.join(parts)]
                    done += len(piece)
                    progress.to(done)
                    if kept is not None and time.monotonic() - kept_at > KEEP_EVERY:
                        kept_at = time.monotonic()
                        self._keep(kept, parts, time.perf_counter() - clock)
            except KeyboardInterrupt:
                where = self._keep(kept, parts, time.perf_counter() - clock)
                state = f"{done:,} of {self.total:,} {self.unit}s {self.done} {where}"
                raise KeyboardInterrupt(state) from None
        seconds = time.perf_counter() - clock
        if done > before:
            self._keep(kept, parts, seconds)
        return self.join(parts), seconds

    def _keep(self, kept: Kept[R] | None, parts: list[R], seconds: float) -> str:
        """Write partial results if possible. Returns the end of a message about it."""
        if kept is None:
            return "but not kept: a model file has no place for them"
        if parts and not keep(kept, self.join(parts), seconds, self.unit):
            return "but not kept"
        return "and kept; the same command goes on"


def bits_of(saved: Saved, result: Likelihood, batch: Rows) -> BitsPerDimension | None:
    """Bits per dimension, by which likelihoods of 8-bit pixels are compared; None for other likelihoods."""
    if saved.recipe.model.likelihood != "discretised_logistic":
        return None
    observed = [(~batch.rows(part).values.isnan()).sum(-1) for part in pieces(batch)]
    return bits_per_dimension(result.log_p, torch.cat(observed))


def fill(
    model: GenerativeModel, batch: Batch, method: str | None = None, what: str = "imputing", **options: Any
) -> Imputation:
    """Missing values of all rows; `options` are those of `Settings`."""
    parts: list[Imputation] = []
    with Progress(what, len(batch), "row") as progress:
        for part in imputations(model, batch, method, Settings(**options)):
            parts.append(part)
            progress.to(sum(map(len, parts)))
    return join_rows(parts)


def fill_rows(
    model: GenerativeModel,
    batch: Batch,
    method: str | None,
    what: str,
    kept: Kept[Imputation],
    rows: range,
    **options: Any,
) -> Imputation:
    """Missing values of `rows`, whole batches; goes on after the rows that are kept already."""
    previous, seconds = kept.read()
    parts = [] if previous is None else [previous]
    start = rows.start + sum(map(len, parts))
    pieces = imputations(model, batch, method, Settings(**options), start=start, stop=rows.stop)
    return Long(what, "row", "filled in", join_rows, len(rows)).collect(pieces, parts, kept, seconds)[0]


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
