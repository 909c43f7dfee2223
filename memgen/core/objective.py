"""Bounds on log p(x), their gradients, and the local reconstruction: what training maximises.

All bounds are in nats and higher is better; the one minus sign of the library is in `loss`.
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
from memgen.core.rows import moments, normalise


def elbo(log_w: Float[Tensor, "K B"]) -> Float[Tensor, "B"]:
    """mean_k log w_k"""
    return log_w.mean(0)


def importance(log_w: Float[Tensor, "K B"]) -> Float[Tensor, "B"]:
    """log mean_k w_k, which tends to log p(x) from below as K grows; equals the ELBO at K = 1.

    >>> importance(torch.tensor([[1.0], [3.0]])).exp() == (torch.e + torch.e**3) / 2
    tensor([True])
    """
    if len(log_w) == 1:  # saves one hundredth of a step at K = 1
        return log_w[0]
    return torch.logsumexp(log_w, 0) - math.log(len(log_w))


Bound = Callable[[Tensor], Tensor]

BOUNDS: dict[str, Bound] = {"elbo": elbo, "importance": importance}
"""name -> f(log_w (K, B)) -> (B,)."""


class Estimate(NamedTuple):
    """What a gradient estimator returns."""

    surrogate: Float[Tensor, "B"]
    """To be differentiated: its gradient estimates that of the bound. Its value need not be the bound's."""
    bound: Float[Tensor, "B"]
    """To be reported, with beta = 1."""
    inference: Inference


Estimator = Callable[[GenerativeModel, Batch, Levels, Bound, float], Estimate]
"""(model, batch, noise (K, B, d) per level, bound, beta) -> Estimate. It owns the calls to the model, because some
estimators need two; beta weighs the KL term while it is warmed up. Those of CHOOSING need K + 1 draws."""


def plain(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """The gradient of the bound itself, through z = mu + sigma*eps: unbiased."""
    inference = infer_all(model, batch, noise)
    return _estimate(inference, bound, beta)


def stl(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """Sticking the landing (Roeder, Wu, Duvenaud 2017): the plain gradient without the score of q.

    log q(z|x) is evaluated with the parameters of q held fixed, so that only the path through z counts. The term left
    out has mean zero for the ELBO and at K = 1, and the gradient's variance vanishes where q is exact; for the
    importance bound with K > 1 its mean is not zero and the gradient for Q is **biased** (`dreg` is not).
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
    # So far each z_k has received v_k; what it lacks, in place of the score of q, is v_k^2 - v_k, with the weight beta
    # that log q has. `inference.z` are copies of z that only log w reads, hence partial derivatives. They are weighed
    # before they are taken: batch norm's statistics carry a little of every row to all others, and a row whose weight
    # is nothing, but whose gradient is huge, must not reach them with weight 1 (docs/gradients.md).
    slopes = torch.autograd.grad(((v**2 - v) * log_w).sum(), inference.z, retain_graph=True)
    for z_l, slope in zip(z, slopes, strict=True):
        surrogate = surrogate + beta * (slope * z_l).sum((0, -1))
    return Estimate(surrogate, bound(inference.log_w.detach()), inference)


def single(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """The gradient of log w of one of the K samples, chosen with its normalised weight v_k: sum_k v_k d log w_k in the
    mean, which is the plain gradient, and unbiased without batch norm. Only the forward pass grows with K.

    `noise` has K + 1 samples: the last one makes the choice. With batch norm the chosen rows are normalised with their
    own statistics, as at K = 1, while the weights came from the statistics of all K*B rows; that is a bias. The local
    reconstruction sees the chosen sample alone.
    """
    encoding, every, chosen = _choose(model, batch, noise, bound, beta)
    posterior = model.infer(encoding, chosen)
    return _chosen(posterior, model.joint(batch, posterior.z), every, bound, beta)


def single_shared(model: GenerativeModel, batch: Batch, noise: Levels, bound: Bound, beta: float = 1.0) -> Estimate:
    """The same, but batch norm treats the chosen rows with the statistics of all K*B rows, held fixed: the chosen rows
    have the very log w by which they were chosen, and no gradient flows through the statistics; that is another bias.
    """
    statistics: Statistics = {}
    encoding, every, chosen = _choose(model, batch, noise, bound, beta, statistics)
    with _fixed_statistics(statistics):
        posterior = model.infer(encoding, chosen)
        joint = model.joint(batch, posterior.z)
    return _chosen(posterior, joint, every, bound, beta)


Statistics = dict[BatchNorm, tuple[Tensor, Tensor]]
"""The mean and the variance of what each batch norm was given."""


def _choose(
    model: GenerativeModel,
    batch: Batch,
    noise: Levels,
    bound: Bound,
    beta: float,
    statistics: Statistics | None = None,
) -> tuple[Any, Inference, tuple[Float[Tensor, "1 B _"], ...]]:
    """The encoding, everything about all K samples without gradients, and the noise of one sample for each row;
    `statistics` is filled with those of all samples."""
    if bound is not importance:
        raise ValueError("a single sample is chosen by its weight in the importance bound; use plain for the ELBO")
    encoding, every = model.encode(batch), tuple(level[:-1] for level in noise)
    with torch.no_grad(), nullcontext() if statistics is None else _recorded(model, statistics):
        posterior = model.infer(encoding, every)
        inference = Inference.of(posterior, model.joint(batch, posterior.z))
        v = torch.softmax(inference.tempered(beta), 0)
    return encoding, inference, choose(v, every, noise[0][-1])


def choose(v: Float[Tensor, "K B"], noise: Levels, last: Float[Tensor, "B d"]) -> tuple[Float[Tensor, "1 B _"], ...]:
    """For each row the noise of one of K samples, the k-th with probability v_k; `last` are draws to choose by."""
    u = torch.special.ndtr(last[:, 0])
    k = (v.cumsum(0) < u).sum(0).clamp(max=len(v) - 1)
    rows = torch.arange(len(k), device=k.device)
    return tuple(level[k, rows].unsqueeze(0) for level in noise)


def _chosen(posterior: Posterior, joint: Joint, every: Inference, bound: Bound, beta: float) -> Estimate:
    inference = Inference.of(posterior, joint)
    return Estimate(inference.tempered(beta)[0], bound(every.log_w), inference)


@contextmanager
def _recorded(model: GenerativeModel, statistics: Statistics) -> Iterator[None]:
    """Inside, the moments of what each batch norm is given are written into `statistics`."""

    def record(norm: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        statistics[cast(BatchNorm, norm)] = moments(inputs[0])

    with ExitStack() as hooks:
        for norm in batch_norms(model):
            hooks.callback(norm.register_forward_pre_hook(record).remove)
        yield


@contextmanager
def _fixed_statistics(statistics: Statistics) -> Iterator[None]:
    """Inside, these batch norms use the given statistics; then they train again."""
    stored = {norm: (norm.mean, norm.variance) for norm in statistics}
    for norm, (mean, variance) in statistics.items():
        norm.mean, norm.variance = mean, variance
        norm.eval()  # and not its layer, which in training leaves its bias out
    try:
        yield
    finally:
        for norm, (mean, variance) in stored.items():
            norm.mean, norm.variance = mean, variance
            norm.train()


def _estimate(inference: Inference, bound: Bound, beta: float) -> Estimate:
    """The bound is its own surrogate; it is computed again only where beta has changed it."""
    surrogate = bound(inference.tempered(beta))
    return Estimate(surrogate, surrogate.detach() if beta == 1 else bound(inference.log_w.detach()), inference)


def _fixed_q(model: GenerativeModel, batch: Batch, noise: Levels) -> tuple[Inference, Levels]:
    """An Inference whose log q has the parameters of q held fixed, at copies of z; and z itself."""
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
what is said of bias holds without batch norm; see docs/gradients.md."""

CHOOSING = ("single", "single-shared")
"""Estimators that need noise for one sample more than K, to choose by."""


def standardised_mean(h: Float[Tensor, "*K B units"], epsilon: float = EPSILON) -> Float[Tensor, "B units"]:
    """mean_k (h_k - mean) / sqrt(variance + epsilon), mean and variance over all rows of all samples."""
    h = normalise(h, None, None, epsilon)
    return h if h.ndim == 2 else h.mean(0)


def local_reconstruction(
    inference: Inference, weights: Sequence[Sequence[float]], epsilon: float = EPSILON
) -> Float[Tensor, ""]:
    """sum_i lambda_i * mean (standardised_mean(P_i) - standardised_mean(Q_i))^2 over units and batch.

    P_i is the output of layer i of P, after memory and composition; Q_i the pre-activation of the layer of Q that
    faces it, which is what Q's batch norm has before gamma and beta. Both are standardised over all rows without
    parameters, then averaged over the samples (at the first level Q has none). Gradients flow into both nets.
    `weights` holds one lambda per layer and level, from the data upwards; with none the result is zero.
    """
    total = torch.zeros((), device=inference.log_p_x.device)
    if not any(map(any, weights)):
        return total
    for up, down, lambdas in zip(inference.up, inference.down, weights, strict=True):
        for q, p, weight in zip(up, down, lambdas, strict=True):
            if weight:
                # P's features come from the bound's own z; the authors drew another, of the same expectation. The
                # paper's text has a sum over units, its program the mean; lambda = 0.1 goes with the mean.
                sides = standardised_mean(p.output, epsilon), standardised_mean(q.pre, epsilon)
                total = total + weight * F.mse_loss(*sides)
    return total


def loss(values: Float[Tensor, "B"], regulariser: Float[Tensor, ""]) -> Float[Tensor, ""]:
    """-mean over the batch + regulariser: minimised. `values` is a surrogate to differentiate, or a bound to report."""
    # The paper's text has a plus sign before the bound, a slip.
    return regulariser - values.mean()
