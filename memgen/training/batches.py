"""The rows of a step: their number, the binarisation of grey levels, and checks that a model can score them."""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor

from memgen.core.batch import Batch, Rows, pieces
from memgen.core.likelihoods import check_values
from memgen.core.model import GenerativeModel
from memgen.errors import MemgenError
from memgen.recipes.settings import Training


def batch_sizes(rows: int, settings: Training) -> list[int]:
    """How many rows each step of an epoch gets.

    >>> batch_sizes(250, Training(batch_size=100, drop_incomplete=True))
    [100, 100]
    >>> batch_sizes(201, Training(batch_size=100))   # near-equal: a last batch of one row would have no variance
    [67, 67, 67]
    """
    if settings.drop_incomplete:
        if rows < settings.batch_size:
            raise MemgenError(
                f"{rows} rows do not fill a batch of {settings.batch_size} and training.drop_incomplete drops "
                "incomplete batches; use a smaller training.batch_size"
            )
        return [settings.batch_size] * (rows // settings.batch_size)
    steps = math.ceil(rows / settings.batch_size)
    size, remainder = divmod(rows, steps)
    return [size + 1] * remainder + [size] * (steps - remainder)


def byte_levels(rows: Float[Tensor, "N D"]) -> UInt8[Tensor, "N D"] | None:
    """v of values v/256 with v = 0 ... 255, such as MNIST's; None if any value has another form."""
    levels = (256 * rows).to(torch.uint8)
    return levels if bool((levels.to(rows) == 256 * rows).all()) else None


def drawn(
    rows: Float[Tensor, "N D"],
    levels: UInt8[Tensor, "N D"] | None,
    chosen: Int[Tensor, " B"],
    random: torch.Generator,
) -> Float[Tensor, "B D"]:
    """Binarise the chosen rows: each value is 1 with the probability that it gives.

    For values v/256 a random byte is below v with exactly that probability, and one draw yields eight bytes.
    """
    if levels is None:
        x = rows[chosen]
        return (torch.rand(x.shape, generator=random, device=x.device) < x).to(x)
    v = levels.index_select(0, chosen)  # faster than levels[chosen]; bytes are faster than bools
    words = torch.empty(-(-v.numel() // 8), dtype=torch.int64, device=v.device).random_(
        -(2**63), None, generator=random
    )
    return (words.view(torch.uint8)[: v.numel()].view_as(v) < v).view(torch.uint8).to(rows)


def read(
    rows: Rows,
    levels: UInt8[Tensor, "N D"] | None,
    chosen: Int[Tensor, " B"],
    stochastic: bool,
    random: torch.Generator,
) -> Batch:
    """The chosen rows; with `stochastic` they are binarised anew."""
    if not stochastic:
        return rows.rows(chosen)
    if not isinstance(rows, Batch):
        batch = rows.rows(chosen)
        everything = torch.arange(len(batch), device=random.device)
        return replace(batch, x=drawn(batch.x.to(random.device), None, everything, random))
    label, observed = rows.label, rows.observed
    x = drawn(rows.x, levels, chosen, random)
    return Batch(x, None if observed is None else observed[chosen], None if label is None else label[chosen])


def check_rows(model: GenerativeModel, rows: Rows, stochastic: bool, what: str) -> None:
    """Refuse rows that the model cannot score as they are, or with `stochastic` once they are binarised."""
    for part in pieces(rows) or [slice(0)]:
        x = rows.rows(part).values
        if stochastic and bool(((x < 0) | (x > 1)).any()):
            low, high = float(x.min()), float(x.max())
            raise MemgenError(f"{what} is to be binarised, so it must lie in [0, 1]; it goes from {low:g} to {high:g}")
        # Rounding is one possible binarisation. It keeps NaN, which is then reported with its position.
        check_values(model.likelihood, x.round() if stochastic else x, what, model.mask, part.start or 0)
