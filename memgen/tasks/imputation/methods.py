"""The imputation methods: functions (model, batch, burn, noise) -> an endless iterator over states."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count, islice

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import Factorised
from memgen.core.model import GenerativeModel
from memgen.core.noise import StepNoise
from memgen.errors import unknown
from memgen.tasks.imputation.states import (
    State,
    complete,
    completed,
    decoded,
    equally,
    select,
    select_fields,
    total,
)

AUTHORS_BATCH = 1000
"""Batch size of the authors' program, whose batch norm uses the statistics of the batch."""
COMPLETIONS = 25
"""Maximum number of completions whose q is in the proposal; each adds a density to every step."""
PRIOR = 0.1
"""Fraction of the proposals of importance sampling that comes from the prior."""


def chain(
    model: GenerativeModel,
    batch: Batch,
    x: Float[Tensor, "B D"],
    noise: Iterator[StepNoise],
    fill: Callable[[Factorised, Tensor], Tensor],
) -> Iterator[State]:
    """An endless chain from the completion x on: encode the rows, draw z ~ q(z|x), fill in the missing values."""
    for eps in noise:
        p = decoded(model, batch, model.infer(model.encode(completed(batch, x)), eps.normal).z)
        x = complete(batch, fill(p, eps.uniform))
        yield equally(x, p)


def paper(model: GenerativeModel, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """The paper's method: missing values start uniform in [0, 1] and become the decoder's mean at every step."""
    x = complete(batch, next(noise).uniform)
    return chain(model, batch, x, noise, fill=lambda p, u: p.mean)


def gibbs(model: GenerativeModel, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """Pseudo-Gibbs (Rezende et al., 2014): missing values are drawn from p(x|z). The stationary distribution is
    p(x_mis|x_obs) if q(z|x) is exactly p(z|x).
    """
    first = from_prior(model, batch, noise)
    yield first
    yield from chain(model, batch, first.x, noise, fill=lambda p, u: p.sample(u))


def mwg(model: GenerativeModel, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """Metropolis within Gibbs: z' ~ q(z|x) is a proposal, accepted with probability min(1, r),

        r = p(x, z') q(z|x) / (p(x, z) q(z'|x)),

    then the missing values are drawn from p(x|z). The stationary distribution is p(x_mis|x_obs) for any q
    (Mattei and Frellsen, 2018). The first half of the burn-in accepts every proposal, to leave a poor start.
    """
    eps = next(noise)
    z = model.prior(eps.normal, batch)
    p, log_p_z = decoded(model, batch, z), total(model.log_p_z(batch, z))
    accepted = torch.ones_like(eps.accept, dtype=torch.bool)
    for step in count(1):
        x = complete(batch, p.sample(eps.uniform))
        yield State(x, p, torch.zeros_like(eps.accept), accepted)
        eps = next(noise)
        encoding = model.encode(completed(batch, x))
        z_new, log_q_new, _ = model.infer(encoding, eps.normal)
        p_new, log_p_z_new = decoded(model, batch, z_new), total(model.log_p_z(batch, z_new))
        log_r = log_p_z_new - total(log_q_new) + p_new.log_prob(x)
        log_r = log_r - (log_p_z - total(model.log_q(encoding, z)) + p.log_prob(x))
        accepted = (torch.log(eps.accept) < log_r) | (step <= burn // 2)
        z = tuple(select(accepted, new, old, rows=1) for new, old in zip(z_new, z, strict=True))
        p, log_p_z = select_fields(accepted, p_new, p), torch.where(accepted, log_p_z_new, log_p_z)


def importance(model: GenerativeModel, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """Self-normalised importance sampling. A short Gibbs chain completes the rows. The proposals of z come in turn
    from q(z|x_r) of the completions x_1 ... x_R of its second half, and sometimes from the prior. The weights depend
    only on observed values:

        w = p(x_obs, z) / (a p(z) + (1 - a) mean_r q(z | x_r)),    a = PRIOR

    A single completion would be too narrow a proposal if many values are missing. Because of the prior, no weight
    exceeds p(x_obs | z) / a for any q (defensive importance sampling: Hesterberg, 1995).
    """
    encodings = []
    for step, state in enumerate(islice(gibbs(model, batch, burn, noise), burn)):
        yield state
        if step >= burn // 2 and (step - burn // 2) % math.ceil((burn - burn // 2) / COMPLETIONS) == 0:
            encodings.append(model.encode(completed(batch, state.x)))
    for m, eps in enumerate(noise):
        by_prior = eps.accept < PRIOR  # per row, so that the fraction holds for any number of states
        from_q = model.infer(encodings[m % len(encodings)], eps.normal).z
        from_p = model.prior(eps.normal, batch)
        z = tuple(select(by_prior, a, b, rows=1) for a, b in zip(from_p, from_q, strict=True))
        log_qs = torch.stack([total(model.log_q(encoding, z)) for encoding in encodings])
        log_q = log_qs.logsumexp(0) - math.log(len(encodings))
        log_p_z = total(model.log_p_z(batch, z))
        log_proposal = torch.logaddexp(log_p_z + math.log(PRIOR), log_q + math.log1p(-PRIOR))
        yield _weighted(batch, decoded(model, batch, z), log_p_z, log_proposal)


def observed(model: GenerativeModel, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """Self-normalised importance sampling by a Q that was trained on incomplete rows (Mattei and Frellsen, 2019):

        z ~ q(z | x_obs),    w = p(x_obs, z) / q(z | x_obs)

    The rows are encoded once, and all states are used.
    """
    encoding = model.encode(batch)
    for eps in noise:
        z, log_q, _ = model.infer(encoding, eps.normal)
        yield _weighted(batch, decoded(model, batch, z), total(model.log_p_z(batch, z)), total(log_q))


def _weighted(batch: Batch, p: Factorised, log_p_z: Float[Tensor, " B"], log_q: Float[Tensor, " B"]) -> State:
    """A state with weight p(x_obs|z) p(z) / q(z)."""
    # A proposal so extreme that its weight is not finite gets weight zero.
    log_w = (p.log_prob(batch.x, batch.observed) + log_p_z - log_q).nan_to_num(nan=-torch.inf)
    return State(complete(batch, p.mean), p, log_w, torch.ones_like(log_w, dtype=torch.bool))


def from_prior(model: GenerativeModel, batch: Batch, noise: Iterator[StepNoise]) -> State:
    """An initial state that is valid for any likelihood: z ~ p(z), and missing values from p(x|z)."""
    eps = next(noise)
    p = decoded(model, batch, model.prior(eps.normal, batch))
    return equally(complete(batch, p.sample(eps.uniform)), p)


@dataclass(frozen=True)
class Method:
    """An imputation method: a function (model, batch, burn, noise) -> an endless iterator over states, of
    which the first `burn` are not used.
    """

    states: Callable[[GenerativeModel, Batch, int, Iterator[StepNoise]], Iterator[State]]
    grey: bool = False
    """Whether a Bernoulli likelihood accepts grey levels in [0, 1]; otherwise x must be 0 or 1."""
    fills_means: bool = False
    """Whether missing values are replaced by means, which suits grey data and is impossible for categories."""
    keep: float = 0.5
    """Fraction of the steps, at the end, whose states are used; 0: only the last state."""
    weighted: bool = False
    """Whether the states have weights; else they are a chain."""
    masked: bool = False
    """Whether the method needs a model that was built with `mask`, whose Q reads incomplete rows."""

    def kept(self, steps: int) -> int:
        return max(1, round(self.keep * steps))


METHODS: dict[str, Method] = {
    "paper": Method(paper, grey=True, fills_means=True, keep=0.0),
    "gibbs": Method(gibbs, grey=True),
    "mwg": Method(mwg),
    "importance": Method(importance, weighted=True),
    "observed": Method(observed, weighted=True, keep=1.0, masked=True),
}
"""name -> an imputation method."""

DEFAULT = "importance"
"""The default method, with the best means on validation images at equal cost (docs/imputation.md)."""
DEFAULT_MASKED = "observed"
"""The default method for models that were trained on incomplete rows."""
DEFAULT_DRAWS = "gibbs"
"""The default method for completions: its likelihood equals the best one, and all its states are different."""


def method_for(name: str | None, draws: int, masked: bool = False) -> str:
    """The named method, or the default for `draws` and for `masked`, whether the model was built with `mask`."""
    chosen = name or (DEFAULT_MASKED if masked else DEFAULT_DRAWS if draws else DEFAULT)
    if chosen not in METHODS:
        raise unknown("imputation method", chosen, METHODS)
    return chosen
