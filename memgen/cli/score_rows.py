"""How `memgen score` scores rows: all of them, or those of a shard."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from memgen.cli.sharding import Sharding, name_of, short_hash
from memgen.core.batch import Batch, chunks
from memgen.runs.modelfile import Saved
from memgen.runs.progress import Progress
from memgen.runs.shards import Layout, ShardFile, Tensors
from memgen.tasks.columns import quick_column_scores
from memgen.tasks.scoring import ROWS, RowScores, column_scores, join, scores_of_rows


class Scoring(NamedTuple):
    """How rows are scored."""

    samples: int
    until: int | None
    most: int
    seed: int
    reference: int
    """The number of training rows that a row is compared to."""
    columns: bool = False
    """Whether each column is scored given the others."""
    quick: bool = False
    """Whether all columns are scored with the same samples."""


class Scored(NamedTuple):
    """Rows with their scores."""

    rows: Batch
    keys: list[int]
    scores: RowScores
    columns: Float64[Tensor, "N D"] | None = None
    """log p of each column given the others."""


class Scorer(NamedTuple):
    """The rows are scored by one process, or by several of which each has a shard."""

    saved: Saved
    how: Scoring
    sharding: Sharding
    run: Path

    def __call__(self, rows: Batch, source: Path) -> Scored | None:
        """The scores of all rows; None where this process does not merge."""
        keys = list(range(len(rows)))
        if not self.sharding.asked:
            return scored(self.saved, rows, self.how, "scoring", keys, self.how.columns)
        settings = {"command": "score", "source": source.name, **self.how._replace(reference=0)._asdict()}
        merged = self.sharding.results(
            self.sharding.place(self.run, name_of("score", source.stem, short_hash(settings))),
            {**settings, **self.sharding.made_with(self.saved, rows)},
            [*range(0, len(rows), ROWS), len(rows)],
            layout(rows, self.how),
            lambda file: self._work(rows, file),
        )
        if merged is None:
            return None
        parts = {name: torch.cat([part[name] for part in merged.parts]) for name in layout(rows, self.how)}
        return Scored(rows, keys, scores_from(parts), parts.get("columns"))

    def _work(self, rows: Batch, file: ShardFile) -> None:
        clock, part = perf_counter(), file.rows
        own = rows.rows(slice(part.start, part.stop))
        done = scored(self.saved, own, self.how, "scoring", list(part), self.how.columns)
        file.write(tensors_of(done), perf_counter() - clock)


def layout(rows: Batch, how: Scoring) -> Layout:
    """The tensors of a shard."""
    shapes: dict[str, tuple[int | None, ...]] = {field.name: (None,) for field in fields(RowScores)}
    return shapes | ({"columns": (None, rows.x.shape[1])} if how.columns else {})


def tensors_of(done: Scored) -> Tensors:
    tensors = {name: value.double() for name, value in vars(done.scores).items()}
    return tensors if done.columns is None else tensors | {"columns": done.columns}


def scores_from(tensors: Tensors) -> RowScores:
    """
    >>> one = RowScores.of(torch.tensor([-1.0]).double(), torch.tensor([5.0]).double(), 10)
    >>> scores_from(tensors_of(Scored(Batch(torch.zeros(1, 2)), [0], one))).samples
    tensor([10])
    """
    scores: dict[str, Any] = {name: value for name, value in tensors.items() if name != "columns"}
    return RowScores(**scores | {"samples": tensors["samples"].long()})


def scored(saved: Saved, rows: Batch, how: Scoring, what: str, keys: list[int], columns: bool = False) -> Scored:
    """The scores of all rows, with progress."""
    parts: list[RowScores] = []
    stream = scores_of_rows(saved.model, rows, how.samples, how.until, how.most, how.seed, keys=keys)
    done = 0
    with Progress(what, len(rows), "row") as progress:
        try:
            for part in stream:
                parts.append(part)
                done += len(part.log_p)
                progress.to(done)
        except KeyboardInterrupt:
            raise KeyboardInterrupt(f"{done:,} of {len(rows):,} rows scored; nothing was written") from None
    whole = Scored(rows, keys, join(parts))
    return whole._replace(columns=conditional(saved, whole, how, f"{what}: columns")) if columns else whole


def conditional(saved: Saved, scored: Scored, how: Scoring, what: str) -> Float64[Tensor, "N D"]:
    """log p of each column given the others, with progress. Rows are scored in the same groups whatever the shards."""
    rows, keys, log_p = scored.rows, scored.keys, scored.scores.log_p
    parts = []
    with Progress(what, len(rows), "row") as progress:
        for part in chunks(rows, ROWS):
            own, seed, of_rows = rows.rows(part), how.seed, keys[part]
            parts.append(
                quick_column_scores(saved.model, own, how.samples, seed=seed, keys=of_rows)
                if how.quick
                else column_scores(saved.model, own, log_p[part], how.samples, seed=seed, keys=of_rows)
            )
            progress.to(part.stop)
    return torch.cat(parts)
