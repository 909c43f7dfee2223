"""Bounds on log p(x), their gradients, and the local reconstruction: what training maximises.

All bounds are in nats, and higher is better. Only `loss` changes the sign.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from memgen.core.layers import EPSILON, BatchNorm, batch_norms
from memgen.core.model import Batch, GenerativeModel, Inference, Joint, Levels, Posterior, infer_all
from memgen.core.rows import Total, moments, normalise


def elbo(log_w: Float[Tensor, "K B"]) -> Float[Tensor, "B"]:
    """mean_k log w_k"""
    return log_w.mean(0)


def importance(log_w: Float[Tensor, "K B"]) -> Float[Tensor, "B"]:
    """log mean_k w_k, which tends to log p(x) from below as K grows; equals the ELBO at K = 1.

    >>> importance(torch.tensor([[1.0], [3.0]])).exp() == (torch.e + torch.e**3) / 2
    tensor([True])
    """
    if len(log_w) == 1:  # saves 1% of a training step
        return log_w[0]
    return torch.logsumexp(log_w, 0) - math.log(len(log_w))


Bound = Callable[[Tensor], Tensor]

BOUNDS: dict[str, Bound] = {"elbo": elbo, "importance": importance}
"""name -> f(log_w (K, B)) -> (B,)."""


class Estimate(NamedTuple):
    """The result of a gradient estimator."""

    surrogate: Float[Tensor, "B"]
    """The value to differentiate: its gradient estimates that of the bound. It need not equal the bound."""
    bound: Float[Tensor, "B"]
    """The value to report, with beta = 1."""
    inference: Inference


Estimator = Callable[[GenerativeModel, Batch, Levels, Bound, float], Estimate]
"""(model, batch, noise (K, B, d) per level, bound, beta) -> Estimate. The estimator calls the model, because some
estimators call it twice. beta weighs the KL term while it is warmed up. Those in CHOOSING need K + 1 draws of noise."""


def plain(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """The gradient of the bound itself, through z = mu + sigma*eps: unbiased."""
    inference = infer_all(model, batch, noise)
    return _estimate(inference, bound, beta)


def stl(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """Sticking the landing (Roeder, Wu, Duvenaud 2017): the plain gradient without the score of q.

    log q(z|x) is evaluated with the parameters of q held fixed, so that only the path through z has a gradient. The
    omitted term has mean zero for the ELBO and at K = 1, and the gradient's variance vanishes where q is exact. For the
    importance bound with K > 1 its mean is not zero, and the gradient of Q is **biased** (that of `dreg` is not).
    """
    inference = _fixed_q(model, batch, noise)[0]
    return _estimate(inference, bound, beta)


def dreg(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """Doubly reparameterised gradient of the importance bound (Tucker, Lawson, Gu, Maddison 2019): unbiased for any K.

    P gets the plain gradient, sum_k v_k d log w_k with normalised weights v; Q gets
    sum_k v_k^2 (d log w_k / d z_k) (d z_k / d phi), whose signal does not drown in noise as K grows. With several
    levels d/dz_k is the partial derivative at each level, and the path from z_l to z_{l+1} inside Q stays open.
    """
    if bound is not importance:
        raise ValueError("dreg is a gradient of the importance bound; use stl for the ELBO")
    inference, z = _fixed_q(model, batch, noise)
    log_w = inference.tempered(beta)
    v = torch.softmax(log_w.detach(), 0)
    surrogate = (v * log_w).sum(0)
    # So far the gradient with respect to z_k has the weight v_k. Adding beta * (v_k^2 - v_k), where beta is the weight
    # of log q, replaces the score of q. `inference.z` are copies of z that only log w reads, hence partial derivatives.
    # The weights are applied before differentiation: batch norm's statistics couple the rows, and a row with weight
    # zero but a huge gradient must not affect the others with weight 1 (docs/gradients.md).
    slopes = torch.autograd.grad(((v**2 - v) * log_w).sum(), inference.z, retain_graph=True)
    for z_l, slope in zip(z, slopes, strict=True):
        surrogate = surrogate + beta * (slope * z_l).sum((0, -1))
    return Estimate(surrogate, bound(inference.log_w.detach()), inference)


def single(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """The gradient of log w of one of the K samples, chosen with probability v_k, its normalised weight. The expected
    gradient is sum_k v_k d log w_k, the plain gradient: unbiased without batch norm. Only the forward pass has all K.

    `noise` has K + 1 samples; the last one is used for the choice. With batch norm the gradient is biased: the chosen
    rows are normalised with the statistics of the chosen rows alone, as at K = 1, and the weights are computed with
    those of all K*B rows. The local reconstruction uses the chosen sample alone.
    """
    encoding, all_samples, chosen = _choose(model, batch, noise, bound, beta)
    posterior = model.infer(encoding, chosen)
    return _chosen(posterior, model.joint(batch, posterior.z), all_samples, bound, beta)


def single_shared(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """`single`, with the chosen rows normalised with the statistics of all K*B rows.

    The chosen rows then have the same log w as in the choice. The gradient is biased with batch norm, because none
    flows through the statistics, which are held fixed.
    """
    statistics: Statistics = {}
    encoding, all_samples, chosen = _choose(model, batch, noise, bound, beta, statistics)
    with _fixed_statistics(statistics):
        posterior = model.infer(encoding, chosen)
        joint = model.joint(batch, posterior.z)
    return _chosen(posterior, joint, all_samples, bound, beta)


Statistics = dict[BatchNorm, tuple[Tensor, Tensor]]
"""The mean and the variance of the inputs of each batch norm."""


def _choose(
    model: GenerativeModel,
    batch: Batch,
    noise: Levels,
    bound: Bound,
    beta: float,
    statistics: Statistics | None = None,
) -> tuple[Any, Inference, tuple[Float[Tensor, "1 B _"], ...]]:
    """The encoding, the terms of log w of all K samples without gradients, and the noise of the chosen sample of each
    row. `statistics` receives the batch-norm statistics of all samples."""
    if bound is not importance:
        raise ValueError("a single sample is chosen by its weight in the importance bound; use plain for the ELBO")
    encoding, candidates = model.encode(batch), tuple(level[:-1] for level in noise)
    with torch.no_grad(), nullcontext() if statistics is None else _recorded(model, statistics):
        posterior = model.infer(encoding, candidates)
        inference = Inference.of(posterior, model.joint(batch, posterior.z))
        v = torch.softmax(inference.tempered(beta), 0)
    return encoding, inference, choose(v, candidates, noise[0][-1])


def choose(v: Float[Tensor, "K B"], noise: Levels, draws: Float[Tensor, "B d"]) -> tuple[Float[Tensor, "1 B _"], ...]:
    """For each row the noise of one of K samples, the k-th with probability v_k; the choice depends on `draws`."""
    u = torch.special.ndtr(draws[:, 0])
    k = (v.cumsum(0) < u).sum(0).clamp(max=len(v) - 1)
    rows = torch.arange(len(k), device=k.device)
    return tuple(level[k, rows].unsqueeze(0) for level in noise)


def _chosen(posterior: Posterior, joint: Joint, all_samples: Inference, bound: Bound, beta: float) -> Estimate:
    inference = Inference.of(posterior, joint)
    return Estimate(inference.tempered(beta)[0], bound(all_samples.log_w), inference)


@contextmanager
def _recorded(model: GenerativeModel, statistics: Statistics) -> Iterator[None]:
    """A context in which the moments of each batch norm's inputs are written into `statistics`."""

    def record(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        norm = cast(BatchNorm, norm)
        statistics[norm] = moments(inputs[0], norm.total)

    with ExitStack() as hooks:
        for norm in batch_norms(model):
            hooks.callback(norm.register_forward_pre_hook(record).remove)
        yield


@contextmanager
def _fixed_statistics(statistics: Statistics) -> Iterator[None]:
    """A context in which these batch norms use the given statistics; afterwards they are in training mode again."""
    stored = {norm: (norm.mean, norm.variance) for norm in statistics}
    for norm, (mean, variance) in statistics.items():
        norm.mean, norm.variance = mean, variance
        norm.eval()  # the layer itself stays in training mode, in which it omits its bias
    try:
        yield
    finally:
        for norm, (mean, variance) in stored.items():
            norm.mean, norm.variance = mean, variance
            norm.train()


def _estimate(inference: Inference, bound: Bound, beta: float) -> Estimate:
    """The estimate whose surrogate is the bound itself, with log q and log p(z) weighed by beta."""
    surrogate = bound(inference.tempered(beta))
    return Estimate(surrogate, surrogate.detach() if beta == 1 else bound(inference.log_w.detach()), inference)


def _fixed_q(model: GenerativeModel, batch: Batch, noise: Levels) -> tuple[Inference, Levels]:
    """An Inference at copies of z whose log q has the parameters of q held fixed; and z itself."""
    encoding = model.encode(batch)
    posterior = model.infer(encoding, noise)
    z = tuple(z_l.view_as(z_l) for z_l in posterior.z)
    joint = model.joint(batch, z)
    log_q = model.log_q(encoding, z, fixed=True)
    return Inference.of(Posterior(z, log_q, posterior.up), joint), posterior.z


ESTIMATORS: dict[str, Estimator] = {
    "plain": plain,
    "stl": stl,
    "dreg": dreg,
    "single": single,
    "single-shared": single_shared,
}
"""name -> gradient estimator. With batch norm log w_k depends on the other rows of the batch through its statistics, so
an estimator is called unbiased if it is so without batch norm; see docs/gradients.md."""

CHOOSING = ("single", "single-shared")
"""Estimators that need noise for K + 1 samples; the last one is used for the choice."""


def standardised_mean(
    h: Float[Tensor, "*K B units"], epsilon: float = EPSILON, total: Total | None = None
) -> Float[Tensor, "B units"]:
    """mean_k (h_k - mean) / sqrt(variance + epsilon), mean and variance over all rows of all samples."""
    h = normalise(h, None, None, epsilon, total)
    return h if h.ndim == 2 else h.mean(0)


def local_reconstruction(
    inference: Inference, weights: Sequence[Sequence[float]], epsilon: float = EPSILON, total: Total | None = None
) -> Float[Tensor, ""]:
    """sum_i lambda_i * mean (standardised_mean(P_i) - standardised_mean(Q_i))^2 over units and batch.

    P_i is the output of layer i of P, after memory and composition. Q_i is the pre-activation of the same layer of Q,
    before its batch norm. Both are standardised over all rows without parameters, then averaged over the samples (Q has
    no samples at the first level). Gradients flow into both nets. `weights` holds one lambda per layer and level, from
    the data upwards; if all are zero the result is zero. With `total` the mean is over the rows of this process, which
    are standardised over those of all.
    """
    result = torch.zeros((), device=inference.log_p_x.device)
    if not any(map(any, weights)):
        return result
    for up, down, lambdas in zip(inference.up, inference.down, weights, strict=True):
        for q, p, weight in zip(up, down, lambdas, strict=True):
            if weight:
                # P's features are those of the bound's z. The authors draw another z, which has the same expectation.
                # The paper's text has a sum over units and its program the mean, to which lambda = 0.1 belongs.
                features = standardised_mean(p.output, epsilon, total), standardised_mean(q.pre, epsilon, total)
                result = result + weight * F.mse_loss(*features)
    return result


def loss(values: Float[Tensor, "B"], regulariser: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """regulariser - mean of `values` over the batch, to minimise. `values` are a surrogate, or a bound to report."""
    # The plus sign before the bound in the paper's text is a slip.
    return regulariser - values.mean()
