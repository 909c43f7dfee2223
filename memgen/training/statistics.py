"""Exact statistics of batch norm, over all rows."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import write_statistics
from memgen.core.model import DGM, Batch
from memgen.core.noise import Purpose, generator
from memgen.training.batches import check_rows

CHUNK = 1000
"""Rows at a time."""


def collect_statistics(model: DGM, x: Float[Tensor, "N D"], *, stochastic: bool = False, seed: int = 0) -> None:
    """Write exact batch-norm statistics of the rows x into the model: one seeded binarisation (with `stochastic`) and
    one seeded z ~ q(z|x) per row. They are saved with the weights, so evaluation never needs the training data.
    """
    check_rows(model, x, stochastic, "the data")
    collect_unchecked(model, x, stochastic, seed)


def collect_unchecked(model: DGM, x: Float[Tensor, "N D"], stochastic: bool, seed: int) -> None:
    device = next(model.parameters()).device

    def chunks() -> Iterator[tuple[object, ...]]:
        noise = generator(seed, Purpose.STATISTICS)
        for rows in x.split(CHUNK):
            rows = rows.to(device)
            batch = Batch.of(rows)
            if stochastic:
                batch = replace(batch, x=(torch.rand(rows.shape, generator=noise).to(device) < rows).to(rows))
            yield batch, tuple(level.to(device) for level in model.noise(1, len(rows), noise))

    write_statistics(model, chunks)
