"""Missing values: p(x_mis | x_obs), by chains and by importance sampling.

    p(x_mis | x_obs) = integral of p(x_mis | z) p(z | x_obs) dz

Every method walks through states z_1, z_2, ... at one decoder pass each, and the last `keep` of them stand for
p(z | x_obs), equally or by weight. Three answers follow from the states: the mean of the missing values, completions
drawn from them, and, where the truth is known, its log-likelihood log mean_m p(x_mis | z_m).

Chains run in float64, and the noise belongs to the row: in float32 the last bit of a row depends on the rows beside it,
and a chain that accepts, or draws 0 or 1, magnifies a bit into another path.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, fields
from itertools import count, islice
from typing import Any, NamedTuple, TypeVar, cast

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from memgen.core.layers import require_statistics
from memgen.core.likelihoods import Distribution, GaussianColumns, Head, check_values
from memgen.core.model import DGM, Batch, Encoding, Terms
from memgen.core.noise import Choices, RowNoise, StepNoise
from memgen.errors import MemgenError, unknown

AUTHORS_BATCH = 1000
"""Images whose statistics the authors' program normalised with."""
COMPLETIONS = 25
"""Completions whose q proposes, at most: each costs a density at every step."""
PRIOR = 0.1
"""Part of the proposals of importance sampling that comes from the prior."""


class State(NamedTuple):
    """One state of every row."""

    x: Float[Tensor, "B D"]
    """The rows, completed: where states have weights by the means of p, else by draws."""
    p: Distribution
    """p(x|z) of the state's z."""
    log_weight: Float[Tensor, " B"]
    accepted: Bool[Tensor, " B"]


def chain(
    model: DGM, batch: Batch, x: Float[Tensor, "B D"], noise: Iterator[StepNoise], fill: Callable[[Any, Tensor], Tensor]
) -> Iterator[State]:
    """Encode the completed rows, draw z ~ q(z|x), fill in what is missing; from the completion x on, without end."""
    for eps in noise:
        z = model.infer(model.encode(Batch(x)), eps.normal).z
        p = model.decode(z[0][0])
        x = complete(batch, fill(p, eps.uniform))
        yield equally(x, p)


def paper(model: DGM, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """The paper's: missing values start uniform in [0, 1] and become the decoder's mean at every step."""
    x = complete(batch, next(noise).uniform)
    return chain(model, batch, x, noise, fill=lambda p, u: p.mean)


def gibbs(model: DGM, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """Pseudo-Gibbs (Rezende et al., 2014): missing values are drawn from p(x|z). Its law is p(x_mis|x_obs) if q(z|x) is
    exactly p(z|x).
    """
    first = from_prior(model, batch, noise)
    yield first
    yield from chain(model, batch, first.x, noise, fill=lambda p, u: p.icdf(u))


def mwg(model: DGM, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """Metropolis within Gibbs: z' ~ q(z|x) is a proposal, accepted with probability min(1, r),

        r = p(x, z') q(z|x) / (p(x, z) q(z'|x)),

    then the missing values are drawn from p(x|z). The law of the chain tends to p(x_mis|x_obs), whatever q is
    (Mattei and Frellsen, 2018). The first half of the burn-in accepts everything, to leave a bad start.
    """
    eps = next(noise)
    z = model.prior(eps.normal)
    p, log_p_z = model.decode(z[0][0]), _sum(model.log_p_z(z))
    accepted = torch.ones_like(eps.accept, dtype=torch.bool)
    for step in count(1):
        x = complete(batch, p.icdf(eps.uniform))
        yield State(x, p, torch.zeros_like(eps.accept), accepted)
        eps = next(noise)
        encoding = model.encode(Batch(x))
        z_new, log_q_new, _ = model.infer(encoding, eps.normal)
        p_new, log_p_z_new = model.decode(z_new[0][0]), _sum(model.log_p_z(z_new))
        log_r = log_p_z_new - _sum(log_q_new) + p_new.log_prob(x).sum(-1)
        log_r = log_r - (log_p_z - _sum(model.log_q(encoding, z)) + p.log_prob(x).sum(-1))
        accepted = (torch.log(eps.accept) < log_r) | (step <= burn // 2)
        z = tuple(select(accepted, new, old, rows=1) for new, old in zip(z_new, z, strict=True))
        p, log_p_z = select_fields(accepted, p_new, p), torch.where(accepted, log_p_z_new, log_p_z)


def importance(model: DGM, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """Self-normalised importance sampling. A short Gibbs chain completes the rows; the completions x_1 ... x_R of its
    second half propose z, in turn, or now and then the prior. The weights know only what was observed:

        w = p(x_obs, z) / (a p(z) + (1 - a) mean_r q(z | x_r)),    a = PRIOR

    One completion alone would be too narrow a proposal wherever much is missing; with a part of the prior no weight can
    exceed p(x_obs | z) / a, whatever q is (defensive importance sampling: Hesterberg, 1995).
    """
    completions = []
    for step, state in enumerate(islice(gibbs(model, batch, burn, noise), burn)):
        yield state
        if step >= burn // 2 and (step - burn // 2) % math.ceil((burn - burn // 2) / COMPLETIONS) == 0:
            completions.append(model.encode(Batch(state.x)).q)
    q = GaussianColumns(*(torch.stack(parameters) for parameters in zip(*map(_parameters, completions), strict=True)))
    for m, eps in enumerate(noise):
        own = completions[m % len(completions)]
        by_prior = eps.accept < PRIOR  # row by row, so that every number of states has its part of the prior
        by_q, prior = model.infer(Encoding(own, ()), eps.normal).z, model.prior(eps.normal)
        z = tuple(select(by_prior, a, b, rows=1) for a, b in zip(prior, by_q, strict=True))
        # log q(z_{l+1}|z_l) of the levels above the first is the same for all completions.
        above = sum((level[0] for level in model.log_q(Encoding(own, ()), z)[1:]), torch.zeros_like(eps.accept))
        log_q = q.log_prob(z[0]).sum(-1).logsumexp(0) - math.log(len(completions)) + above
        log_p_z = _sum(model.log_p_z(z))
        log_proposal = torch.logaddexp(log_p_z + math.log(PRIOR), log_q + math.log1p(-PRIOR))
        p = model.decode(z[0][0])
        # A proposal may be so far out that nothing of it is finite: it weighs nothing.
        log_w = (_log_p_observed(p, batch) + log_p_z - log_proposal).nan_to_num(nan=-torch.inf)
        yield State(complete(batch, p.mean), p, log_w, torch.ones_like(log_w, dtype=torch.bool))


def observed(model: DGM, batch: Batch, burn: int, noise: Iterator[StepNoise]) -> Iterator[State]:
    """Self-normalised importance sampling by a Q that was trained on incomplete rows (Mattei and Frellsen, 2019):

        z ~ q(z | x_obs),    w = p(x_obs, z) / q(z | x_obs)

    The rows are encoded once, and every state counts.
    """
    encoding = model.encode(batch)
    for eps in noise:
        z, log_q, _ = model.infer(encoding, eps.normal)
        p = model.decode(z[0][0])
        log_w = (_log_p_observed(p, batch) + _sum(model.log_p_z(z)) - _sum(log_q)).nan_to_num(nan=-torch.inf)
        yield State(complete(batch, p.mean), p, log_w, torch.ones_like(log_w, dtype=torch.bool))


def _parameters(q: GaussianColumns) -> tuple[Tensor, Tensor]:
    return q.mean, q.log_variance


def _log_p_observed(p: Distribution, batch: Batch) -> Float[Tensor, " B"]:
    assert batch.observed is not None
    return p.log_prob(batch.x.where(batch.observed, 0)).where(batch.observed, 0).sum(-1)


def from_prior(model: DGM, batch: Batch, noise: Iterator[StepNoise]) -> State:
    """A start that is possible under any likelihood: z ~ p(z), and what is missing from p(x|z)."""
    eps = next(noise)
    p = model.decode(model.prior(eps.normal)[0][0])
    return equally(complete(batch, p.icdf(eps.uniform)), p)


def complete(batch: Batch, values: Float[Tensor, "B D"]) -> Float[Tensor, "B D"]:
    """x where it is observed, else the values."""
    assert batch.observed is not None
    return batch.x.where(batch.observed, values)


def equally(x: Float[Tensor, "B D"], p: Distribution) -> State:
    """A state that counts as much as any other, and was accepted."""
    return State(x, p, x.new_zeros(len(x)), torch.ones(len(x), dtype=torch.bool, device=x.device))


def _sum(terms: Terms) -> Float[Tensor, " B"]:
    """Over the levels, of K = 1 sample."""
    return sum(terms[1:], terms[0])[0]


def select(chosen: Bool[Tensor, " B"], new: Tensor, old: Tensor, rows: int = 0) -> Tensor:
    """Row by row the new or the old; `rows` is the axis of the rows."""
    shape = [1] * new.ndim
    shape[rows] = len(chosen)
    return torch.where(chosen.view(shape), new, old)


D = TypeVar("D")


def select_fields(chosen: Bool[Tensor, " B"], new: D, old: D) -> D:
    """The same for every field of a distribution; what both share, such as the bias of a head, stays as it is."""
    pairs = [(getattr(new, field.name), getattr(old, field.name)) for field in fields(cast(Any, new))]
    return type(new)(*(_selected(chosen, a, b) for a, b in pairs))


def _selected(chosen: Bool[Tensor, " B"], new: Any, old: Any) -> Any:
    """A field may be a distribution itself, or several of them."""
    if new is old:
        return new
    if isinstance(new, tuple):
        return tuple(_selected(chosen, a, b) for a, b in zip(new, old, strict=True))
    return select(chosen, new, old) if isinstance(new, Tensor) else select_fields(chosen, new, old)


@dataclass(frozen=True)
class Method:
    """An imputation method: a function (model, batch, burn, noise) -> states without end, of which the first `burn` are
    not kept.
    """

    states: Callable[[DGM, Batch, int, Iterator[StepNoise]], Iterator[State]]
    grey: bool = False
    """Whether grey levels in [0, 1] will do under a Bernoulli; else x must be what the likelihood models, 0 or 1."""
    fills_means: bool = False
    """Whether missing values become means, which is what grey data ask for and a categorical encoder cannot read."""
    keep: float = 0.5
    """The last part of the steps that counts; 0: the very last state alone."""
    weighted: bool = False
    """Whether the states have weights; else they are a chain."""
    masked: bool = False
    """Whether it is for models that were built with `mask`, whose Q reads incomplete rows."""

    def kept(self, steps: int) -> int:
        return max(1, round(self.keep * steps))


METHODS: dict[str, Method] = {
    "paper": Method(paper, grey=True, fills_means=True, keep=0.0),
    "gibbs": Method(gibbs, grey=True),
    "mwg": Method(mwg),
    "importance": Method(importance, weighted=True),
    "observed": Method(observed, weighted=True, keep=1.0, masked=True),
}
"""name -> how the missing values are found."""

DEFAULT = "importance"
"""The best mean on validation images at equal decoder passes (docs/imputation.md)."""
DEFAULT_MASKED = "observed"
"""Where Q was trained on incomplete rows."""
DEFAULT_DRAWS = "gibbs"
"""For completions: its likelihood is level with the best, and all its states are different, not the few with weight."""


def method_for(name: str | None, draws: int, masked: bool = False) -> str:
    """The named method, or the default for what is asked of a model that was built with `mask`, or not."""
    chosen = name or (DEFAULT_MASKED if masked else DEFAULT_DRAWS if draws else DEFAULT)
    if chosen not in METHODS:
        raise unknown("imputation method", chosen, METHODS)
    return chosen


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


def impute(
    model: DGM,
    x: Float[Tensor, "N D"],
    observed: Bool[Tensor, "N D"],
    method: str | None = None,
    *,
    steps: int = 100,
    keep: int | None = None,
    draws: int = 0,
    smooth: bool = False,
    seed: int = 0,
    batch_size: int = 250,
    keys: Sequence[int] | None = None,
) -> Imputation:
    """Fill in the entries of x that are not observed, which may hold anything, NaN too.

    `steps` decoder passes a row, of which the last `keep` count (default: the method's own part); `draws` completions,
    each a draw from p(x|z) of a state or, with `smooth`, its mean, for binary data that stand for grey levels. Row i
    depends neither on the batches nor on the rows beside it. Without a method: `importance`, or `gibbs` for draws.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> model = build(Recipe().override(["model.hidden=[]", "model.latent=2"]), columns=3)
    >>> x = torch.tensor([[0.0, 1.0, torch.nan]])
    >>> impute(model, x, ~x.isnan(), steps=20, draws=5).draws[:, 0].unique(dim=0)[:, :2]
    tensor([[0., 1.],
            [0., 1.]], dtype=torch.float64)
    """
    return join(list(imputations(model, x, observed, method, steps, keep, draws, smooth, seed, batch_size, keys=keys)))


def imputations(
    model: DGM,
    x: Float[Tensor, "N D"],
    observed: Bool[Tensor, "N D"],
    method: str | None = None,
    steps: int = 100,
    keep: int | None = None,
    draws: int = 0,
    smooth: bool = False,
    seed: int = 0,
    batch_size: int = 250,
    batch_statistics: bool = False,
    keys: Sequence[int] | None = None,
) -> Generator[Imputation, None, None]:
    """The same, a batch of rows at a time, for progress bars. With `batch_statistics` batch norm uses the statistics of
    the batch at hand, as the paper's authors did; rows then depend on the rows beside them.
    """
    method = method_for(method, draws, model.mask)
    own = METHODS[method]
    keep = own.kept(steps) if keep is None else keep
    _check_counts(steps, keep, draws, own)
    check_incomplete(model, x, observed, method)
    if not batch_statistics:
        require_statistics(model)
    elif len(x) < 2:
        raise MemgenError("one row alone has no batch statistics")
    inner = copy.deepcopy(model).double().train(batch_statistics)
    device = next(inner.parameters()).device
    # Near-equal batches: where batch norm uses a batch's statistics, a short last one would have others.
    for some in torch.arange(len(x)).tensor_split(math.ceil(len(x) / batch_size)):
        indices = range(int(some[0]), int(some[-1]) + 1)
        rows = slice(indices.start, indices.stop)
        batch = Batch(x[rows].double().to(device), observed[rows].to(device))
        own_keys = indices if keys is None else keys[rows]
        noise = RowNoise(seed, own_keys, model.latent, x.shape[1], device)
        with torch.no_grad():
            states = islice(own.states(inner, batch, steps - keep, noise.steps()), steps - keep, steps)
            kept = Completions(draws, keep, batch, smooth, Choices(seed, own_keys, device) if own.weighted else None)
            result = _collect(inner.likelihood, batch, states, kept)
        _check_finite(result, indices.start)
        yield result


def _check_finite(result: Imputation, before: int) -> None:
    """Under an unbounded likelihood, a poor encoder, or values that are like nothing it has seen, can drive a chain
    further and further away."""
    lost = (~result.mean.isfinite()).any(-1)
    if bool(lost.any()):
        raise MemgenError(
            f"the values that were filled in grew beyond all bounds in {int(lost.sum())} of {len(lost)} rows, first in "
            f"row {before + int(lost.nonzero()[0, 0]) + 1}: what is observed there lies far from all training rows, or "
            "this model's encoder does not fit its decoder; leave such rows out, or train it longer"
        )


def _check_counts(steps: int, keep: int, draws: int, method: Method) -> None:
    if steps < 2:
        raise MemgenError(f"steps must be at least 2, not {steps}")
    most = (
        steps - 1 if method.weighted and not method.masked else steps
    )  # other weighted states need a completion to start from
    if not 1 <= keep <= most:
        raise MemgenError(f"with {steps} steps the number of states to keep must lie between 1 and {most}, not {keep}")
    if not 0 <= draws <= keep:
        raise MemgenError(f"{draws} draws need at least as many kept states, and these are {keep}; use more steps")


def check_incomplete(model: DGM, x: Float[Tensor, "N D"], observed: Bool[Tensor, "N D"], method: str) -> None:
    """Refuse, in one line, observed values that the method cannot use."""
    head, own = model.likelihood, METHODS[method]
    if own.masked and not model.mask:
        raise MemgenError(f"the method {method} is for models that were trained with model.mask=true; this one was not")
    if own.fills_means and head.encoded != head.columns:
        raise MemgenError(
            f"the method {method} fills in means, which this likelihood has no code for; use gibbs or mwg"
        )
    values = x.where(observed, torch.nan)
    absent = values.isnan() & observed
    if bool(absent.any()):
        row, column = absent.nonzero()[0].tolist()
        raise MemgenError(f"the data has a NaN among its observed values, first at row {row}, column {column}")
    grey = head.binary and own.grey and not bool(((values < 0) | (values > 1)).any())
    check_values(head, values.round() if grey else values, "the data", missing=True)


def _collect(head: Head, batch: Batch, states: Iterator[State], kept: Completions) -> Imputation:
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
        moved = expected + share.unsqueeze(-1) * (head.expected(state.p) - expected)
        expected = torch.where(counts.unsqueeze(-1), moved, expected)
        log_p_state = log_w + state.p.log_prob(truth).where(missing, 0).sum(-1)
        log_p = torch.logaddexp(log_p, log_p_state.where(counts, -torch.inf))
        accepted = accepted + state.accepted / kept.keep
        kept.add(state, share)
    log_p = (log_p - log_sum).where(~(batch.x.isnan() & missing).any(-1), torch.nan)
    # NaN where not one state had weight.
    mean = head.decide(expected).where((log_sum > -torch.inf).unsqueeze(-1), torch.nan)
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
        if not self.smooth:  # completions that share a state are draws of their own
            x = torch.stack([complete(self.batch, state.p.icdf(own[:, 1:])) for own in u])
        self.x = torch.where(u[..., :1] < share.unsqueeze(-1), x, self.x)
