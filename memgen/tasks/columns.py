"""Which columns make a row unusual: log p of each column given all others.

    log p(x_d | x_-d) = log p(x) - log p(x_-d)

Both are estimated from the same z_k, whose weights leave x_d in or out:

    p(x) ~ mean_k w_k,    p(x_-d) ~ mean_k w_k / p(x_d | z_k),    w_k = p(x, z_k) / r(z_k)

r is an even mixture of q(z | x), of q(z | x_-d) for every d, where Q reads the column's mean instead of x_d, and of the
prior. So it covers the posterior of every x_-d, also where x_d is far from what the other columns suggest.

`scoring.column_scores` estimates the same by scoring every row anew without each of its columns. It takes much longer,
and holds for rows far from all others, too.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float64
from torch import Tensor

from memgen.core.batch import Batch, chunks
from memgen.core.layers import evaluating
from memgen.core.likelihoods import check_values, factorised
from memgen.core.model import GenerativeModel, Levels, Terms
from memgen.core.noise import BLOCK, ExampleNoise
from memgen.errors import MemgenError
from memgen.tasks.common import weights_of

MOST_COLUMNS = 200
"""Each column has a part of the proposal."""
ROWS = 16
"""The most rows that are scored together ..."""
VALUES = 1 << 23
"""... as long as their samples, under all parts of the proposal, have at most this many values of z."""


@torch.no_grad()
def quick_column_scores(
    model: GenerativeModel,
    rows: Batch,
    samples: int = 1000,
    *,
    seed: int = 0,
    keys: Sequence[int] | None = None,
    tick: Callable[[int], None] = lambda rows: None,
) -> Float64[Tensor, "N D"]:
    """log p(x_d | x_-d) in nats, from about this many z; NaN where x_d is missing. Missing values count as unknown.

    The noise of a row depends on `seed` and on its key, by default its index. `tick` gets the number of rows so far.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[]", "model.latent=2"]), columns=3)
    >>> quick_column_scores(model, Batch.of(torch.tensor([[0.0, torch.nan, 1.0]])), 100).isnan()
    tensor([[False,  True, False]])
    """
    if model.likelihood.columns > MOST_COLUMNS:
        raise MemgenError(
            f"columns are scored one by one, so up to {MOST_COLUMNS} of them; there are {model.likelihood.columns}"
        )
    keys, parts = range(len(rows)) if keys is None else keys, []
    check_values(model.likelihood, rows.values, missing=True)
    with evaluating(model):
        for part in chunks(rows, rows_at_once(model, samples)):
            tick(part.start)
            batch = Batch.of(rows.rows(part).values, rows.rows(part).label).to(weights_of(model))
            parts.append(_column_scores(model, batch, samples, ExampleNoise(seed, keys[part], model.latent)))
    return torch.cat(parts)


def rows_at_once(model: GenerativeModel, samples: int) -> int:
    """
    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> rows_at_once(build(Recipe().override(["model.hidden=[]", "model.latent=32"]), columns=200), 1000)
    1
    """
    columns = model.likelihood.columns
    return min(ROWS, max(1, VALUES // ((samples + columns + 2) * (columns + 1) * sum(model.latent))))


def _column_scores(model: GenerativeModel, batch: Batch, samples: int, noise: ExampleNoise) -> Float64[Tensor, "B D"]:
    observed = torch.ones_like(batch.x, dtype=torch.bool) if batch.observed is None else batch.observed
    x = batch.x.where(observed, 0)
    z, log_r = _proposed(model, Batch(x, observed, batch.label), samples, noise)
    log_p_d = factorised(model.decode(z, batch), "the score of a column").log_probs(x).double().where(observed, 0)
    log_w = (log_p_d.sum(-1) + _sum(model.log_p_z(batch, z)) - log_r).nan_to_num(nan=-torch.inf)
    scores = log_w.logsumexp(0).unsqueeze(-1) - (log_w.unsqueeze(-1) - log_p_d).logsumexp(0)
    return scores.where(observed, torch.nan).cpu()


def _proposed(
    model: GenerativeModel, batch: Batch, samples: int, noise: ExampleNoise
) -> tuple[Levels, Float64[Tensor, "S B"]]:
    """z of the mixture, (S, B, d) per level, and log r(z)."""
    B, D = batch.x.shape
    each = math.ceil(samples / (D + 2))
    encoding = model.encode(_leaving_one_out(batch))
    blocks = [noise.block() for _ in range(math.ceil(each * (D + 2) / BLOCK))]
    eps = tuple(
        torch.cat(level)[: each * (D + 2)].to(batch.x).unflatten(0, (each, D + 2))
        for level in zip(*blocks, strict=True)
    )
    from_q = model.infer(encoding, tuple(level[:, :-1].flatten(1, 2) for level in eps)).z
    from_p = model.prior(tuple(level[:, -1] for level in eps), batch)
    z = tuple(torch.cat([q.unflatten(1, (D + 1, B)).flatten(0, 1), p]) for q, p in zip(from_q, from_p, strict=True))
    repeated = tuple(level.unsqueeze(1).expand(-1, D + 1, -1, -1).flatten(1, 2) for level in z)
    log_q = _sum(model.log_q(encoding, repeated)).unflatten(1, (D + 1, B))
    log_p = _sum(model.log_p_z(batch, z)).unsqueeze(1)
    return z, torch.cat([log_q, log_p], 1).nan_to_num(nan=-torch.inf).logsumexp(1) - math.log(D + 2)


def _leaving_one_out(batch: Batch) -> Batch:
    """The rows without column 0, ..., the rows without column D - 1, the rows as they are."""
    assert batch.observed is not None
    D = batch.x.shape[1]
    kept = torch.cat([~torch.eye(D, dtype=torch.bool), torch.ones(1, D, dtype=torch.bool)]).to(batch.x.device)
    observed = (batch.observed & kept.unsqueeze(1)).flatten(0, 1)
    label = None if batch.label is None else batch.label.repeat(D + 1)
    return Batch(batch.x.repeat(D + 1, 1), observed, label)


def _sum(terms: Terms) -> Float64[Tensor, "*rows"]:
    return sum(terms[1:], terms[0]).double()
