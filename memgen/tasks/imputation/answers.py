"""The answers that states give: means, completions and log-likelihoods, in one pass over the kept states."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import Likelihood
from memgen.core.noise import Choices
from memgen.tasks.imputation.states import State, complete


@dataclass(frozen=True)
class Imputation:
    """Per row; observed entries are as they were given."""

    mean: Float64[Tensor, "N D"]
    """E[x_mis | x_obs], over the kept states."""
    draws: Float64[Tensor, "M N D"]
    """Completions."""
    log_p: Float64[Tensor, " N"]
    """log mean_m p(x_mis | z_m) of the values that x has where it is said to be missing; NaN where it has none."""
    effective: Float64[Tensor, " N"]
    """Effective number of the kept states, by their weights."""
    accepted: Float64[Tensor, " N"]
    """Part of the kept states that were accepted proposals."""
    log_observed: Float64[Tensor, " N"]
    """log p(x_obs), estimated by the mean weight of the kept states; NaN if they have none."""


def join(parts: Sequence[Imputation]) -> Imputation:
    """The rows of all parts, in order."""
    along = {"draws": 1}
    names = [field.name for field in fields(Imputation)]
    return Imputation(*(torch.cat([getattr(part, n) for part in parts], along.get(n, 0)) for n in names))


def collect(likelihood: Likelihood, batch: Batch, states: Iterator[State], kept: Completions) -> Imputation:
    """Weighted sums over the kept states, in one pass."""
    assert batch.observed is not None
    missing = ~batch.observed
    truth = batch.x.where(missing & ~batch.x.isnan(), 0)
    log_sum = batch.x.new_full((len(batch.x),), -torch.inf)
    log_squares, log_p = log_sum.clone(), log_sum.clone()
    expected, accepted = log_sum.new_zeros(()), torch.zeros_like(log_sum)
    for state in states:
        log_w = state.log_weight
        log_sum = torch.logaddexp(log_sum, log_w)
        log_squares = torch.logaddexp(log_squares, 2 * log_w)
        share = torch.exp(log_w - log_sum)  # of this state among those so far
        counts = share > 0
        moved = expected + share.unsqueeze(-1) * (likelihood.expected(state.p) - expected)
        expected = torch.where(counts.unsqueeze(-1), moved, expected)
        log_p_state = log_w + state.p.log_prob(truth, missing)
        log_p = torch.logaddexp(log_p, log_p_state.where(counts, -torch.inf))
        accepted = accepted + state.accepted / kept.keep
        kept.add(state, share)
    log_p = (log_p - log_sum).where(~(batch.x.isnan() & missing).any(-1), torch.nan)
    # NaN where not one state had weight.
    mean = likelihood.decide(expected).where((log_sum > -torch.inf).unsqueeze(-1), torch.nan)
    log_observed = log_sum - math.log(kept.keep) if kept.choices is not None else torch.full_like(log_sum, torch.nan)
    parts = complete(batch, mean), kept.x, log_p, torch.exp(2 * log_sum - log_squares), accepted, log_observed
    return Imputation(*(part.cpu() for part in parts))


class Completions:
    """Completions from states that pass by once: of a chain, states at equal distances; of weighted states, each takes
    a slot with a probability in proportion to its weight.
    """

    def __init__(self, draws: int, keep: int, batch: Batch, smooth: bool, choices: Choices | None) -> None:
        self.x = batch.x.new_zeros(draws, *batch.x.shape)
        self.batch, self.smooth, self.keep, self.choices = batch, smooth, keep, choices
        self.passed = 0

    def add(self, state: State, share: Float[Tensor, " B"]) -> None:
        draws = len(self.x)
        before, self.passed = self.passed * draws // self.keep, self.passed + 1
        if not draws:
            return
        x = complete(self.batch, state.p.mean) if self.smooth else state.x
        if self.choices is None:
            self.x[before : self.passed * draws // self.keep] = x
            return
        u = self.choices.uniform(draws, 1 if self.smooth else 1 + x.shape[-1])
        if not self.smooth:  # completions that share a state are different draws
            x = torch.stack([complete(self.batch, state.p.sample(numbers[:, 1:])) for numbers in u])
        self.x = torch.where(u[..., :1] < share.unsqueeze(-1), x, self.x)
