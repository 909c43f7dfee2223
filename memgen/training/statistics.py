"""Exact statistics of batch norm, over all rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import torch

from memgen.core.batch import Batch, Rows, chunks
from memgen.core.layers import write_statistics
from memgen.core.model import GenerativeModel, Levels, infer_all
from memgen.core.noise import Purpose, generator
from memgen.training.batches import check_rows
from memgen.training.distributed import Ranks

CHUNK = 1000
"""Rows at a time."""


def collect_statistics(model: GenerativeModel, rows: Rows, *, stochastic: bool = False, seed: int = 0) -> None:
    """Write exact batch-norm statistics of the rows into the model: one seeded binarisation (with `stochastic`) and
    one seeded z ~ q(z|x) per row. They are saved with the weights, so evaluation never needs the training data.
    """
    check_rows(model, rows, stochastic, "the data")
    collect_unchecked(model, rows, stochastic, seed)


def collect_unchecked(
    model: GenerativeModel, rows: Rows, stochastic: bool, seed: int, ranks: Ranks | None = None
) -> None:
    """The chunks of rows are divided among the ranks; all draw the random numbers of all chunks."""
    weights = next(model.parameters())

    def parts() -> Iterator[tuple[Batch, Levels]]:
        random = generator(seed, Purpose.STATISTICS)
        for index, part in enumerate(chunks(rows, CHUNK)):
            batch = rows.rows(part).to(weights)
            if stochastic:
                u = torch.rand(batch.x.shape, generator=random).to(weights.device)
                batch = replace(batch, x=(u < batch.x).to(weights))
            noise = tuple(level.to(weights.device) for level in model.noise(1, len(batch), random))
            if ranks is None or index % ranks.size == ranks.index:
                yield batch, noise

    write_statistics(model, parts, partial(infer_all, model), None if ranks is None else ranks.total)
