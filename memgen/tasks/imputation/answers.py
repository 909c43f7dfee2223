"""Results of an imputation: means, completions and log-likelihoods, in one pass over the last `keep` states."""

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
    """Results per row; observed values are unchanged."""

    mean: Float64[Tensor, "N D"]
    """E[x_mis | x_obs], over the states."""
    draws: Float64[Tensor, "M N D"]
    """Completions."""
    log_p: Float64[Tensor, " N"]
    """log mean_m p(x_mis | z_m) of the values of x in unobserved entries; NaN if x has none."""
    effective: Float64[Tensor, " N"]
    """Effective number of states, by their weights."""
    accepted: Float64[Tensor, " N"]
    """Fraction of the states that were accepted proposals."""
    log_observed: Float64[Tensor, " N"]
    """log p(x_obs), estimated by the mean weight of the states; NaN for states without weights."""

    def __len__(self) -> int:
        return len(self.mean)


def join(parts: Sequence[Imputation]) -> Imputation:
    """The rows of all parts, in order."""
    along = {"draws": 1}
    names = [field.name for field in fields(Imputation)]
    return Imputation(*(torch.cat([getattr(part, n) for part in parts], along.get(n, 0)) for n in names))


def collect(likelihood: Likelihood, batch: Batch, states: Iterator[State], completions: Completions) -> Imputation:
    """Weighted sums over the states, in one pass."""
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
        fraction = torch.exp(log_w - log_sum)  # of the sum of weights so far
        positive = fraction > 0
        updated = expected + fraction.unsqueeze(-1) * (likelihood.expected(state.p) - expected)
        expected = torch.where(positive.unsqueeze(-1), updated, expected)
        log_p_state = log_w + state.p.log_prob(truth, missing)
        log_p = torch.logaddexp(log_p, log_p_state.where(positive, -torch.inf))
        accepted = accepted + state.accepted / completions.keep
        completions.add(state, fraction)
    log_p = (log_p - log_sum).where(~(batch.x.isnan() & missing).any(-1), torch.nan)
    # NaN if no state has a positive weight.
    mean = likelihood.decide(expected).where((log_sum > -torch.inf).unsqueeze(-1), torch.nan)
    weighted = completions.choices is not None
    log_observed = log_sum - math.log(completions.keep) if weighted else torch.full_like(log_sum, torch.nan)
    parts = complete(batch, mean), completions.x, log_p, torch.exp(2 * log_sum - log_squares), accepted, log_observed
    return Imputation(*(part.cpu() for part in parts))


class Completions:
    """Completions from a stream of states: every n-th state of a chain; of weighted states, a random one for each
    completion, with a probability in proportion to its weight.
    """

    def __init__(self, draws: int, keep: int, batch: Batch, smooth: bool, choices: Choices | None) -> None:
        self.x = batch.x.new_zeros(draws, *batch.x.shape)
        self.batch, self.smooth, self.keep, self.choices = batch, smooth, keep, choices
        self.passed = 0

    def add(self, state: State, fraction: Float[Tensor, " B"]) -> None:
        draws = len(self.x)
        first, self.passed = self.passed * draws // self.keep, self.passed + 1
        if not draws:
            return
        x = complete(self.batch, state.p.mean) if self.smooth else state.x
        if self.choices is None:
            self.x[first : self.passed * draws // self.keep] = x
            return
        u = self.choices.uniform(draws, 1 if self.smooth else 1 + x.shape[-1])
        if not self.smooth:  # completions from the same state are different draws
            x = torch.stack([complete(self.batch, state.p.sample(numbers[:, 1:])) for numbers in u])
        self.x = torch.where(u[..., :1] < fraction.unsqueeze(-1), x, self.x)
