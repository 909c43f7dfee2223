"""Models whose p(x) and p(z|x) are known in closed form, made of memgen's own layers: ReLU, batch norm, memory and all.

A layer with units [v, -v] followed by a map [U, -U] is linear, because relu(v) - relu(-v) = v. So a net with batch norm
at stored statistics and with memory (whose mlp starts as the identity) can be a linear map, and a Gaussian model of
such nets has a Gaussian p(x).
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from memgen.core.batch import Batch
from memgen.core.layers import EPSILON, NORMS, BatchNorm, Dense, MemoryLayer
from memgen.core.likelihoods import Gaussian
from memgen.core.memory import ATTENTIONS, Memory, Mlp
from memgen.core.model import DGM, Conditional, GenerativeModel
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood
from memgen.tasks.sampling import sample
from memgen.training.fit import fit


def _generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def linear_net(A: Tensor, b: Tensor, log_variance: Tensor, norm: str, memory: bool, seed: int) -> Conditional:
    """A net with one hidden layer whose head is N(A h + b, diag(exp(log_variance))), exactly."""
    outputs, inputs = A.shape
    g = _generator(seed)
    dense = Dense(inputs, 2 * inputs, NORMS[norm])
    # v = scale * (h + shift) with scale and shift spread over weights, bias and the batch norm's four vectors.
    weight = torch.eye(inputs) * (0.5 + torch.rand(inputs, generator=g))
    bias = torch.randn(inputs, generator=g)
    scale, shift = weight.diagonal(), bias
    if norm == "batch":
        assert isinstance(dense.norm, BatchNorm)
        mean, variance = torch.randn(inputs, generator=g), 0.5 + torch.rand(inputs, generator=g)
        gamma, beta = 0.5 + torch.rand(inputs, generator=g), torch.randn(inputs, generator=g)
        factor = gamma / torch.sqrt(variance + EPSILON)
        scale, shift = scale * factor, (bias - mean) * factor + beta
        with torch.no_grad():
            dense.norm.gamma.copy_(torch.cat([gamma, gamma]))
            dense.norm.beta.copy_(torch.cat([beta, -beta]))
            dense.norm.mean.copy_(torch.cat([mean, -mean]))
            dense.norm.variance.copy_(torch.cat([variance, variance]))
    head = Gaussian(2 * inputs, outputs)
    U = A / scale
    with torch.no_grad():
        dense.linear.weight.copy_(torch.cat([weight, -weight]))
        dense.linear.bias.copy_(torch.cat([bias, -bias]))
        head.mean.weight.copy_(torch.cat([U, -U], 1))
        head.mean.bias.copy_(b - U @ shift)
        head.log_variance.weight.zero_()
        head.log_variance.bias.copy_(log_variance)
    units = 2 * inputs
    layer: nn.Module = dense
    if memory:
        layer = MemoryLayer(dense, ATTENTIONS["sigmoid"](units, 3), Memory(units, 3), Mlp(units))
    return Conditional([layer], head)


@dataclass(frozen=True)
class LinearGaussian:
    """A model and the mean and covariance of its p(x), in float64."""

    model: DGM
    mean: Tensor
    covariance: Tensor

    def log_p(self, x: Tensor) -> Tensor:
        law = torch.distributions.MultivariateNormal(self.mean.double(), self.covariance.double())
        return law.log_prob(x.double())

    def sample(self, n: int, seed: int = 7) -> Tensor:
        root = torch.linalg.cholesky(self.covariance)
        return self.mean + torch.randn(n, len(self.mean), generator=_generator(seed)) @ root.T


def _orthogonal(rows: int, columns: int, seed: int) -> Tensor:
    """A matrix whose columns are orthogonal, of different lengths."""
    square = torch.linalg.qr(torch.randn(rows, rows, generator=_generator(seed))).Q
    return square[:, :columns] * (0.7 + torch.arange(columns) / columns)


def linear_gaussian(levels: int = 1, norm: str = "batch", off: float = 0.0) -> LinearGaussian:
    """x | z_1 ~ N(A z_1 + b, s^2 I); with two levels z_1 | z_2 ~ N(C z_2 + c, t^2 I).

    A and C have orthogonal columns, so the posteriors have diagonal covariances and Q can be exact; `off` > 0 spoils
    it: means shifted and variances widened.
    """
    D, d, s2, t2 = 5, 3, 0.3, 0.5
    A, b = _orthogonal(D, d, 1), torch.linspace(-1, 1, D)
    C, c = torch.diag(torch.tensor([0.9, -0.6, 1.2])), torch.tensor([0.3, -0.2, 0.1])
    prior_mean, prior_variance = (c, t2 + C.diagonal() ** 2) if levels == 2 else (torch.zeros(d), torch.ones(d))

    posterior = 1 / (1 / prior_variance + (A**2).sum(0) / s2)
    gain = posterior[:, None] * A.T / s2
    start = posterior * prior_mean / prior_variance - gain @ b
    widen = 2 * torch.log1p(torch.tensor(off))
    q = [linear_net(gain, start + off, posterior.log() + widen, norm, False, 2)]
    p = [linear_net(A, b, torch.full((D,), s2).log(), norm, True, 3)]
    if levels == 2:
        second = 1 / (1 + C.diagonal() ** 2 / t2)
        gain = torch.diag(second * C.diagonal() / t2)
        q.append(linear_net(gain, -gain @ c - off, second.log() + widen, norm, False, 4))
        p.append(linear_net(C, c, torch.full((d,), t2).log(), norm, True, 5))
    covariance = s2 * torch.eye(D) + A @ torch.diag(prior_variance) @ A.T
    return LinearGaussian(DGM(q, p).eval(), A @ prior_mean + b, covariance)


def all_rows(D: int, label: int | None = None) -> Batch:
    """Every row of D binary columns, all of one class."""
    x = torch.tensor(list(itertools.product([0.0, 1.0], repeat=D)))
    return Batch(x, label=None if label is None else torch.full((len(x),), label))


def quadrature(model: GenerativeModel, rows: Batch, points: int = 81) -> Tensor:
    """log p(x) = log of the integral of p(x, z), by the rectangle rule, for levels of one variable each."""
    axis = torch.linspace(-8, 8, points)
    grid = torch.cartesian_prod(*[axis] * len(model.latent)).view(-1, len(model.latent))
    z = tuple(level.view(-1, 1, 1).expand(-1, len(rows), 1) for level in grid.T)
    with torch.no_grad():
        joint = model.joint(rows, z)
    log_p = sum(joint.log_p_z, joint.log_p_x).double()
    return log_p.logsumexp(0) + len(z) * math.log(float(axis[1] - axis[0]))


def check_density(model: GenerativeModel, rows: Batch, samples: int = 2000) -> Tensor:
    """Of a trained model and all x there are: p(x) sums to one, the estimate of log p(x) is within its error of the
    integral, and draws have the mean of p(x). Returns log p(x)."""
    exact = quadrature(model, rows)
    assert float(exact.exp().sum()) == pytest.approx(1, abs=1e-5)
    result = log_likelihood(model, rows, samples)
    error = (1 / result.effective - 1 / samples).sqrt()
    assert ((result.log_p - exact).abs() < 5 * error + 1e-4).all()
    label = None if rows.label is None else rows.label[:1].expand(10_000)
    draws = sample(model, 10_000, draw=True, label=label).double()
    mean = exact.exp() @ rows.x.double()
    assert ((draws.mean(0) - mean).abs() < 5 * (mean * (1 - mean) / 10_000).sqrt() + 1e-5).all()
    return exact


def prototypes(n: int, D: int, flip: float = 0.1, seed: int = 0) -> Batch:
    """Rows of two classes, the first half of whose columns is 1 in class 0 and the second in class 1, but for noise."""
    g = _generator(seed)
    label = torch.randint(2, (n,), generator=g)
    first = torch.arange(D) < D // 2
    x = torch.where(label.unsqueeze(1) == 0, first, ~first)
    return Batch((x ^ (torch.rand(n, D, generator=g) < flip)).float(), label=label)


def check_training(model: GenerativeModel, rows: Batch, *more: str, gain: float = 0.3) -> None:
    """The bound rises by as many nats or more."""
    shared = ["training.epochs=30", "training.batch_size=50", "training.rate=0.01", "training.evaluate_every=0"]
    bounds = [epoch.bound for epoch in fit(model, rows, Recipe().override([*shared, *more]))]
    assert bounds[-1] > bounds[0] + gain, (bounds[0], bounds[-1])
