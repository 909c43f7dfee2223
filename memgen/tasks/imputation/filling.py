"""`impute`: fill in the missing values of rows."""

from __future__ import annotations

import copy
import math
from collections.abc import Generator, Sequence
from dataclasses import dataclass
from itertools import accumulate, islice, pairwise

import torch
from jaxtyping import Int
from torch import Tensor

from memgen.core.batch import Batch, Rows
from memgen.core.layers import require_statistics
from memgen.core.likelihoods import check_values
from memgen.core.model import GenerativeModel
from memgen.core.noise import Choices, RowNoise
from memgen.errors import MemgenError
from memgen.tasks.common import weights_of
from memgen.tasks.imputation.answers import Completions, Imputation, collect, join
from memgen.tasks.imputation.methods import METHODS, Method, method_for

BATCH_SIZE = 250
"""Number of rows that are filled in together, at most."""


def impute(
    model: GenerativeModel,
    rows: Rows,
    method: str | None = None,
    *,
    steps: int = 100,
    keep: int | None = None,
    draws: int = 0,
    smooth: bool = False,
    seed: int = 0,
    batch_size: int = BATCH_SIZE,
    keys: Sequence[int] | None = None,
) -> Imputation:
    """Fill in the missing values of rows. In x a missing value may be any number, or NaN.

    A row takes `steps` decoder passes, one per state. The last `keep` states are used (default: that of the method).
    `draws` completions are made, each a sample from p(x|z) of a state or, with `smooth`, its mean, for binary data that
    represent grey levels. Row i depends neither on the batches nor on the other rows. The default method is
    `importance`, with `draws` it is `gibbs`, and for a model that was built with `mask` it is `observed`.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[]", "model.latent=2"]), columns=3)
    >>> rows = Batch.of(torch.tensor([[0.0, 1.0, torch.nan]]))
    >>> impute(model, rows, steps=20, draws=5).draws[:, 0].unique(dim=0)[:, :2]
    tensor([[0., 1.],
            [0., 1.]], dtype=torch.float64)
    """
    settings = Settings(steps, keep, draws, smooth, seed, batch_size)
    return join(list(imputations(model, rows, method, settings, keys=keys)))


@dataclass(frozen=True)
class Settings:
    """How `impute` fills in missing values."""

    steps: int = 100
    keep: int | None = None
    draws: int = 0
    smooth: bool = False
    seed: int = 0
    batch_size: int = BATCH_SIZE
    batch_statistics: bool = False
    """Whether batch norm uses the statistics of the batch, as the paper's authors did. A row then depends on the other
    rows of its batch."""


DEFAULTS = Settings()


def imputations(
    model: GenerativeModel,
    rows: Rows,
    method: str | None = None,
    settings: Settings = DEFAULTS,
    *,
    keys: Sequence[int] | None = None,
    start: int = 0,
    stop: int | None = None,
) -> Generator[Imputation, None, None]:
    """`impute` of one batch of rows after the other, to show progress. Only batches that begin in the rows from `start`
    to `stop` are filled in."""
    name = method_for(method, settings.draws, model.mask)
    keep = _kept(settings, METHODS[name])
    where = range(start, len(rows) if stop is None else stop)
    ends = pairwise(borders(len(rows), settings.batch_size))
    parts = [torch.arange(a, b) for a, b in ends if a in where or not len(rows)]
    for part in parts:
        check_incomplete(model, rows.rows(part), name, int(part[0]) if len(part) else 0)
    _check_statistics(model, len(rows), settings.batch_statistics)
    inner = copy.deepcopy(model).double().train(settings.batch_statistics)
    for part in parts:
        batch = _with_mask(rows.rows(part).to(weights_of(inner)))
        result = _filled(inner, batch, METHODS[name], keep, settings, _keys(part, keys))
        _check_finite(result, int(part[0]))
        yield result


def _filled(
    model: GenerativeModel, batch: Batch, method: Method, keep: int, settings: Settings, keys: Sequence[int]
) -> Imputation:
    """The results of the last `keep` states of every row of a batch."""
    device, burn = batch.x.device, settings.steps - keep
    noise = RowNoise(settings.seed, keys, model.latent, batch.x.shape[1], device)
    choices = Choices(settings.seed, keys, device) if method.weighted else None
    with torch.no_grad():
        states = islice(method.states(model, batch, burn, noise.steps()), burn, settings.steps)
        completions = Completions(settings.draws, keep, batch, settings.smooth, choices)
        return collect(model.likelihood, batch, states, completions)


def borders(rows: int, batch_size: int = BATCH_SIZE) -> list[int]:
    """The first row of every batch, and the number of rows. The batches have nearly equal sizes: with
    `batch_statistics` a short last batch would have different statistics.

    >>> borders(501)
    [0, 167, 334, 501]
    """
    parts = torch.arange(rows).tensor_split(math.ceil(rows / batch_size) or 1)
    return [0, *accumulate(map(len, parts))]


def _with_mask(batch: Batch) -> Batch:
    """The batch with a mask of observed entries, also if all are observed."""
    observed = torch.ones_like(batch.x, dtype=torch.bool) if batch.observed is None else batch.observed
    return Batch(batch.x, observed, batch.label)


def _keys(part: Int[Tensor, " B"], keys: Sequence[int] | None) -> Sequence[int]:
    return part.tolist() if keys is None else [keys[i] for i in part.tolist()]


def _check_finite(result: Imputation, first: int) -> None:
    """Raise an error if a chain has diverged. That happens with an unbounded likelihood, for a poor encoder or for
    values far from all training rows."""
    lost = (~result.mean.isfinite()).any(-1)
    if bool(lost.any()):
        raise MemgenError(
            f"the values that were filled in grew beyond all bounds in {int(lost.sum())} of {len(lost)} rows, first in "
            f"row {first + int(lost.nonzero()[0, 0]) + 1}: what is observed there lies far from all training rows, or "
            "this model's encoder does not fit its decoder; leave such rows out, or train it longer"
        )


def _kept(settings: Settings, method: Method) -> int:
    """The number of states to keep, after a check of all counts."""
    steps, draws = settings.steps, settings.draws
    keep = method.kept(steps) if settings.keep is None else settings.keep
    if steps < 2:
        raise MemgenError(f"steps must be at least 2, not {steps}")
    # `importance` needs a completion to start from.
    most = steps - 1 if method.weighted and not method.masked else steps
    if not 1 <= keep <= most:
        raise MemgenError(f"with {steps} steps the number of states to keep must lie between 1 and {most}, not {keep}")
    if not 0 <= draws <= keep:
        raise MemgenError(f"{draws} draws need at least as many kept states, and these are {keep}; use more steps")
    return keep


def _check_statistics(model: GenerativeModel, rows: int, of_batch: bool) -> None:
    if not of_batch:
        require_statistics(model)
    elif rows < 2:
        raise MemgenError("one row alone has no batch statistics")


def check_incomplete(model: GenerativeModel, batch: Batch, method: str, first: int = 0) -> None:
    """Raise an error of one line for observed values that the method cannot use; `first` is the first row's number."""
    likelihood, chosen = model.likelihood, METHODS[method]
    if chosen.masked and not model.mask:
        raise MemgenError(f"the method {method} is for models that were trained with model.mask=true; this one was not")
    if chosen.fills_means and likelihood.encoded != likelihood.columns:
        raise MemgenError(
            f"the method {method} fills in means, which this likelihood has no code for; use gibbs or mwg"
        )
    values = batch.values
    absent = values.isnan() if batch.observed is None else values.isnan() & batch.observed
    if bool(absent.any()):
        row, column = absent.nonzero()[0].tolist()
        raise MemgenError(f"the data has a NaN among its observed values, first at row {first + row}, column {column}")
    grey = likelihood.binary and chosen.grey and not bool(((values < 0) | (values > 1)).any())
    check_values(likelihood, values.round() if grey else values, missing=True, first=first)
