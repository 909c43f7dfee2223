"""A score for every row: log p(x), the standard error of that estimate, and its place among other rows.

    log p(x) ~ log 1/K sum_k w_k,    standard error ~ sqrt(1/ESS - 1/K),    ESS = (sum_k w_k)^2 / sum_k w_k^2

The standard error is that of the logarithm of a mean, by the delta method: sd(w) / (mean(w) sqrt(K)). It holds where
the effective sample size ESS is large; where it is a handful, log p(x) is probably too low by more.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from memgen.core.batch import Batch, Rows, chunks
from memgen.core.likelihoods import check_values
from memgen.core.model import GenerativeModel
from memgen.errors import MemgenError
from memgen.tasks.common import weights_of
from memgen.tasks.defensive import Defence, defended
from memgen.tasks.density import by_mixture, log_likelihood
from memgen.tasks.imputation import impute

MOST = 100_000
"""The cap on the samples of a row whose effective sample size is to reach a target."""
BURN = 50
"""Steps of the chain whose completions propose z for an incomplete row, where Q reads complete rows only."""
ROWS = 64
"""Rows that are scored at a time."""


@dataclass(frozen=True)
class RowScores:
    """Per row, in nats."""

    log_p: Float64[Tensor, " N"]
    standard_error: Float64[Tensor, " N"]
    effective: Float64[Tensor, " N"]
    """Effective sample size."""
    samples: Int[Tensor, " N"]
    """Importance samples of the row."""

    @staticmethod
    def of(log_p: Float64[Tensor, " N"], effective: Float64[Tensor, " N"], samples: int) -> RowScores:
        error = (1 / effective - 1 / samples).clamp_min(0).sqrt()
        return RowScores(log_p, error, effective, torch.full((len(log_p),), samples))

    def rows(self, index: Int[Tensor, " n"]) -> RowScores:
        return RowScores(*(getattr(self, field.name)[index] for field in fields(self)))

    def replaced(self, index: Int[Tensor, " n"], rows: RowScores) -> RowScores:
        """These scores with others at `index`."""
        pairs = [(getattr(self, field.name), getattr(rows, field.name)) for field in fields(self)]
        return RowScores(*(old.index_copy(0, index, new) for old, new in pairs))


def join(parts: Sequence[RowScores]) -> RowScores:
    """The rows of all parts, in order."""
    return RowScores(*(torch.cat([getattr(part, field.name) for part in parts]) for field in fields(RowScores)))


def score_rows(
    model: GenerativeModel,
    rows: Rows,
    samples: int = 1000,
    *,
    until: int | float | None = None,
    most: int = MOST,
    seed: int = 0,
    batch_size: int = ROWS,
    keys: Sequence[int] | None = None,
) -> RowScores:
    """Score every row; of a row with missing values its observed ones. The noise of a row depends on `seed` and on the
    row's key, by default its index.

    With `until`, a row whose effective sample size is smaller is scored again with twice as many samples, until it
    holds or the row has `most`.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[]", "model.latent=2"]), columns=3)
    >>> rows = Batch(torch.tensor([[0.0, 1.0, 1.0], [1.0, 0.0, 1.0]]))
    >>> bool((score_rows(model, rows, 50, until=400).effective >= 400).all())
    True
    """
    return join(list(scores_of_rows(model, rows, samples, until, most, seed, batch_size, keys)))


def scores_of_rows(
    model: GenerativeModel,
    rows: Rows,
    samples: int = 1000,
    until: int | float | None = None,
    most: int = MOST,
    seed: int = 0,
    batch_size: int = ROWS,
    keys: Sequence[int] | None = None,
) -> Generator[RowScores, None, None]:
    """`score_rows` of one batch after the other, to show progress."""
    if samples < 1:
        raise MemgenError(f"samples must be at least 1, not {samples}")
    parts, keys = chunks(rows, batch_size), range(len(rows)) if keys is None else keys
    for part in parts:
        check_values(model.likelihood, rows.rows(part).values, missing=True, first=part.start)
    for part in parts:
        batch = Batch.of(rows.rows(part).values, rows.rows(part).label)
        own_keys, K = keys[part], samples
        scores = _scores(model, batch, own_keys, K, seed)
        while until is not None and most > K:
            short = lacking(scores, until).nonzero()[:, 0]
            if not len(short):
                break
            K = min(2 * K, most)
            again = _scores(model, batch.rows(short), [own_keys[i] for i in short.tolist()], K, seed)
            scores = scores.replaced(short, again)
        yield scores


def _scores(model: GenerativeModel, batch: Batch, keys: Sequence[int], samples: int, seed: int) -> RowScores:
    """Scores of a few rows with this number of samples."""
    incomplete = batch.values.isnan().any(1)
    if model.mask or not bool(incomplete.any()):
        return _by_encoder(model, batch, keys, samples, seed)
    log_p, effective = torch.zeros(2, len(batch), dtype=torch.float64)
    for chosen, score in ((~incomplete, _by_encoder), (incomplete, _incomplete)):
        index = chosen.nonzero()[:, 0]
        if len(index):
            part = score(model, batch.rows(index), [keys[i] for i in index.tolist()], samples, seed)
            log_p[index], effective[index] = part.log_p, part.effective
    return RowScores.of(log_p, effective, samples)


def _by_encoder(model: GenerativeModel, batch: Batch, keys: Sequence[int], samples: int, seed: int) -> RowScores:
    """z ~ q(z|x)"""
    batch = Batch.of(batch.values, batch.label)
    result = log_likelihood(model, batch, samples, seed=seed, batch_size=len(batch), keys=keys)
    return RowScores.of(result.log_p, result.effective, samples)


def _incomplete(model: GenerativeModel, batch: Batch, keys: Sequence[int], samples: int, seed: int) -> RowScores:
    """For incomplete rows of a model whose Q reads complete rows only: of a table z is proposed by a mixture
    (defensive.py), else by completed rows."""
    if defended(model):
        defence = Defence.of(model, seed)
        batch = batch.to(weights_of(defence.model))
        table = by_mixture(defence, batch, keys, defence.pilot(batch, keys), samples)
        return RowScores.of(table.log_p, table.effective, samples)
    result = impute(model, batch, "importance", steps=samples + BURN, keep=samples, seed=seed, keys=keys)
    return RowScores.of(result.log_observed, result.effective, samples)


def column_scores(
    model: GenerativeModel,
    rows: Batch,
    log_p: Float64[Tensor, " N"],
    samples: int = 1000,
    *,
    seed: int = 0,
    keys: Sequence[int] | None = None,
    tick: Callable[[int], None] = lambda done: None,
) -> Float64[Tensor, "N D"]:
    """log p(x_d | the other observed columns) = log p(x) - log p(x without column d) of every row; NaN where x_d is
    missing. `log_p` is that of the whole rows; `tick` gets the number of columns that are done.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> table = ["model.hidden=[]", "model.latent=1", "model.likelihood=mixed", "model.mask=true"]
    >>> model = build(Recipe().override(table), 2, [("real", 0)] * 2)
    >>> rows = Batch(torch.zeros(1, 2))
    >>> column_scores(model, rows, score_rows(model, rows, 50).log_p, 50).shape
    torch.Size([1, 2])
    """
    values, keys = rows.values, range(len(rows)) if keys is None else keys
    scores = torch.full(values.shape, torch.nan, dtype=torch.float64)
    for column in range(values.shape[1]):
        index = (~values[:, column].isnan()).nonzero()[:, 0]
        if len(index):
            others = values[index].index_fill(1, torch.tensor([column]), torch.nan)
            label = None if rows.label is None else rows.label[index]
            own_keys = [keys[i] for i in index.tolist()]
            rest = score_rows(model, Batch.of(others, label), samples, seed=seed, keys=own_keys).log_p
            scores[index, column] = log_p[index] - rest
        tick(column + 1)
    return scores


def percentiles(log_p: Float64[Tensor, " N"], reference: Float64[Tensor, " M"]) -> Float64[Tensor, " N"]:
    """The percentage of reference rows whose log p is at most that of each row.

    >>> percentiles(torch.tensor([-9.0, -1.5]).double(), torch.tensor([-2.0, -1.0]).double())
    tensor([ 0., 50.], dtype=torch.float64)
    """
    return 100 * torch.searchsorted(reference.sort().values, log_p, right=True).double() / len(reference)


def lacking(scores: RowScores, until: int | float) -> Bool[Tensor, " N"]:
    """The rows whose effective sample size is below the target."""
    return scores.effective < until
