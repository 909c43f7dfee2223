"""Rows drawn from p(x | some columns are given), by values or by ranges.

    p(x | c) = integral of p(x | z, c) p(z | c) dz
    p(z | c) ~ p(z) p(x_fixed | z) prod_d P(low_d < x_d <= high_d | z)

States z come from a proposal that covers p(z | c), with weights that make the draws exact in the limit of many states:
nothing is drawn and thrown away until it fits. A row is drawn from p(x | z, c) of a state that is chosen by its weight.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import torch
from jaxtyping import Float64
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.layers import require_statistics
from memgen.core.likelihoods import Factorised, Given, RestrictedColumns, factorised
from memgen.core.model import Codes, Encoding, GenerativeModel, Levels
from memgen.core.noise import Purpose, RowNoise, generator
from memgen.errors import MemgenError
from memgen.tasks.common import weights_of
from memgen.tasks.imputation.methods import PRIOR, chain
from memgen.tasks.imputation.states import complete, total

CHAINS = 50
"""Completions of the given columns; the proposal is a mixture of q(z|x) of all of them, and of the prior."""
BURN = 30
"""Steps of the chain that leads to a completion."""
BLOCK = 1000
"""States that are drawn and weighted together."""
MOST_BLOCKS = 200
LEAST_STATES = 1000
"""States are drawn until their effective number is this, or twice the number of rows."""
FEWEST = 20
"""With fewer effective states the draws would be copies of a few, and an error is raised."""
LEAST = 1e-9
"""The smallest probability of a condition on one column."""


class Pool(NamedTuple):
    """Weighted states."""

    z: Codes
    log_weight: Float64[Tensor, " M"]


@dataclass(frozen=True)
class ConditionalSample:
    """Rows with the given columns as they were given."""

    x: Float64[Tensor, "n D"]
    log_p: float
    """log p of the condition: a probability of ranges and levels, a density where numbers are given."""
    effective: float
    """Effective number of the weighted states."""
    states: int


@torch.no_grad()
def conditional_sample(
    model: GenerativeModel,
    given: Given,
    n: int,
    *,
    seed: int = 0,
    name: Callable[[int], str] = str,
    tick: Callable[[int], None] = lambda states: None,
) -> ConditionalSample:
    """n rows from p(x | given). `name` names a column in errors; `tick` gets the number of states so far.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[]", "model.latent=2"]), columns=3)
    >>> conditional_sample(model, Given.of([torch.nan, 1.0, torch.nan], low={2: 0.5}), 3).x[:, 1:]
    tensor([[1., 1.],
            [1., 1.],
            [1., 1.]], dtype=torch.float64)
    """
    if n < 1:
        raise MemgenError(f"the number of samples must be at least 1, not {n}")
    require_statistics(model)
    inner = copy.deepcopy(model).double().train(False)
    device = weights_of(inner).device
    given = Given(given.x.to(device), given.low.to(device), given.high.to(device))
    check_possible(inner, given, seed, name)
    proposal, source = Proposal.of(inner, given, seed), generator(seed, Purpose.CONDITIONS)
    pool = weighted(proposal, source, max(LEAST_STATES, 2 * n), tick)
    states = len(pool.log_weight)
    u = torch.rand(n, 1 + len(given.x), generator=source, dtype=torch.float64).to(device)
    cumulative = torch.softmax(pool.log_weight, 0).cumsum(0)
    index = torch.searchsorted(cumulative, u[:, 0].contiguous()).clamp_max(states - 1)
    p = restricted(inner, given, tuple(level[index] for level in pool.z))
    x = torch.where(given.fixed, given.x.nan_to_num(0), p.sample(u[:, 1:]))
    log_p = float(pool.log_weight.logsumexp(0)) - math.log(states)
    return ConditionalSample(x.cpu(), log_p, effective(pool.log_weight), states)


def rows_given(given: Given, n: int) -> Batch:
    """The condition n times, as rows whose other columns are not observed."""
    fixed = given.fixed
    return Batch(given.x.where(fixed, 0).expand(n, -1), fixed.expand(n, -1))


def restricted(model: GenerativeModel, given: Given, z: Codes) -> RestrictedColumns:
    """p(x|z), restricted to the ranges."""
    p = model.decode(z, rows_given(given, len(z[0])))
    return RestrictedColumns(factorised(p, "a condition on columns"), given)


@dataclass(frozen=True)
class Proposal:
    """a p(z) + (1 - a) mean_r q(z | x_r), a = PRIOR, where x_1 ... x_R complete the given columns.

    The fraction of the prior bounds the weights (defensive importance sampling: Hesterberg, 1995).
    """

    model: GenerativeModel
    given: Given
    encoding: Encoding

    @staticmethod
    def of(model: GenerativeModel, given: Given, seed: int) -> Proposal:
        """The completions are the ends of pseudo-Gibbs chains that draw within the ranges."""
        batch = rows_given(given, CHAINS)
        keys, device = range(CHAINS), batch.x.device
        noise = RowNoise(seed, keys, model.latent, batch.x.shape[1], device).steps()

        def fill(p: Factorised, u: Tensor) -> Tensor:
            return RestrictedColumns(p, given).sample(u)

        first = next(noise)
        start = restricted(model, given, tuple(level[0] for level in model.prior(first.normal, batch)))
        x = complete(batch, start.sample(first.uniform))
        *_, last = islice(chain(model, batch, x, noise, fill), BURN)
        observed = torch.ones_like(last.x, dtype=torch.bool)
        if model.mask:  # then Q also knows rows of which only the given columns are observed
            observed[::2] = given.fixed
        return Proposal(model, given, model.encode(Batch(last.x, observed)))

    def block(self, source: torch.Generator) -> Pool:
        """BLOCK weighted states: as many of each q and of the prior as their fractions say."""
        model, given = self.model, self.given
        each = round((1 - PRIOR) * BLOCK / CHAINS)
        device = given.x.device

        def normal(K: int, B: int) -> Levels:
            return tuple(torch.randn(K, B, d, generator=source, dtype=torch.float64).to(device) for d in model.latent)

        from_q = model.infer(self.encoding, normal(each, CHAINS)).z
        of_prior = BLOCK - each * CHAINS
        from_p = model.prior(normal(1, of_prior), rows_given(given, of_prior))
        z = tuple(torch.cat([a.flatten(0, 1), b[0]]) for a, b in zip(from_q, from_p, strict=True))
        return Pool(z, self.log_weight(z))

    def log_weight(self, z: Codes) -> Float64[Tensor, " M"]:
        """log of p(x_fixed | z) P(ranges | z) p(z) over the density of the proposal; -inf if it is not finite."""
        M = len(z[0])
        batch = rows_given(self.given, M)
        log_p_z = total(self.model.log_p_z(batch, tuple(level.unsqueeze(0) for level in z)))
        every = tuple(level.unsqueeze(1).expand(M, CHAINS, -1) for level in z)
        terms = self.model.log_q(self.encoding, every)
        # A chain may have diverged, if q fits p badly: its q has no density then, and the prior remains.
        log_q = sum(terms[1:], terms[0]).nan_to_num(nan=-torch.inf).logsumexp(-1) - math.log(CHAINS)
        log_proposal = torch.logaddexp(log_p_z + math.log(PRIOR), log_q + math.log1p(-PRIOR))
        log_p_x = restricted(self.model, self.given, z).log_prob(batch.x, batch.observed)
        return (log_p_x + log_p_z - log_proposal).nan_to_num(nan=-torch.inf, posinf=-torch.inf)


def weighted(proposal: Proposal, source: torch.Generator, target: int, tick: Callable[[int], None]) -> Pool:
    """Blocks of states, until their effective number reaches the target."""
    blocks: list[Pool] = []
    log_weight = proposal.given.x.new_zeros(0)
    while len(blocks) < MOST_BLOCKS and effective(log_weight) < target:
        tick(len(log_weight))
        blocks.append(proposal.block(source))
        log_weight = torch.cat([log_weight, blocks[-1].log_weight])
    if effective(log_weight) < FEWEST:
        raise MemgenError(
            f"the model gives this condition too little probability to draw rows from it: of {len(log_weight):,} "
            f"states {effective(log_weight):.1f} carry the weight; ask for less at once"
        )
    return Pool(tuple(torch.cat(level) for level in zip(*(block.z for block in blocks), strict=True)), log_weight)


def effective(log_weight: Float64[Tensor, " M"]) -> float:
    """(sum w)^2 / sum w^2; 0 if there is no weight."""
    return float(torch.exp(2 * log_weight.logsumexp(0) - (2 * log_weight).logsumexp(0)).nan_to_num(0))


def check_possible(model: GenerativeModel, given: Given, seed: int, name: Callable[[int], str]) -> None:
    """Raise an error that names a column whose condition alone has next to no probability under the model."""
    source = generator(seed, Purpose.CONDITIONS)
    noise = tuple(torch.randn(1, BLOCK, d, generator=source, dtype=torch.float64) for d in model.latent)
    rows = rows_given(given, BLOCK)
    z = model.prior(tuple(level.to(given.x.device) for level in noise), rows)
    p = restricted(model, given, tuple(level[0] for level in z)).p
    inside = (p.cdf(given.high) - p.cdf(given.low)).mean(0)
    # A number that is given has no probability of its own: how far out in a tail of its column does it lie?
    x = given.x.nan_to_num(0)
    tail = torch.minimum(p.cdf(x), 1 - p.cdf(x.nextafter(given.low.new_tensor(-torch.inf)))).mean(0)
    probability = torch.where(given.ranged, inside, torch.where(given.fixed, tail, 1.0))
    if bool((probability < LEAST).any()):
        raise MemgenError(
            f"column {name(int(probability.argmin()))!r}: what is given has a probability below {LEAST:g} under the "
            "model; nothing is drawn"
        )
