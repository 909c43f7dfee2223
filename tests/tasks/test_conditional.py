"""Rows given some columns: exact on models whose conditional distributions are known."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import (
    Bernoulli,
    Categorical,
    Count,
    DiscretisedLogistic,
    Gaussian,
    Given,
    Head,
    IndependentColumns,
    Mixed,
    Positive,
    Real,
    factorised,
)
from memgen.core.likelihoods.mixed import Kind
from memgen.core.model import DGM
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.conditional import conditional_sample
from tests.exact import linear_gaussian, quadrature

NAN = math.nan
HEADS: dict[str, Callable[[], Head]] = {
    "bernoulli": lambda: Bernoulli(3, 2),
    "categorical": lambda: Categorical(3, 2, 4),
    "count": lambda: Count(3, 2),
    "gaussian": lambda: Gaussian(3, 2),
    "pixels": lambda: DiscretisedLogistic(3, 2),
    "positive": lambda: Positive(3, 2),
    "real": lambda: Real(3, 2),
    "mixed": lambda: Mixed(3, 3, [("real", 0), ("categorical", 3), ("count", 0)]),
}


@pytest.mark.parametrize("name", HEADS)
def test_cdf_is_the_inverse_of_the_quantile(name: str) -> None:
    """cdf(icdf(u)) is the first probability from u on that the column reaches; the general method has the same."""
    torch.manual_seed(0)
    p = factorised(HEADS[name]().double()(3 * torch.randn(6, 3).double()), "this")
    u = torch.rand(6, len(p.mean[0])).double()
    x = p.icdf(u)
    assert (p.cdf(x) >= u - 1e-12).all()
    assert (p.cdf(x - 1e-9 * (1 + x.abs())) <= u + 1e-12).all()
    assert isinstance(p, IndependentColumns)
    torch.testing.assert_close(p.cdf(x + 1e-9), IndependentColumns.cdf(p, x + 1e-9), atol=1e-9, rtol=0)
    for end, expected in ((-math.inf, 0.0), (math.inf, 1.0)):
        assert (p.cdf(torch.full_like(x[0], end)) == expected).all()


def truncated(mean: float, variance: float, low: float) -> tuple[float, float, float]:
    """log P, mean and variance of a Gaussian above `low`."""
    s = math.sqrt(variance)
    a = (low - mean) / s
    tail = 0.5 * math.erfc(a / math.sqrt(2))
    mills = math.exp(-a * a / 2) / math.sqrt(2 * math.pi) / tail
    return math.log(tail), mean + s * mills, variance * (1 + a * mills - mills**2)


@pytest.mark.parametrize("levels", [1, 2])
def test_of_a_gaussian_model_the_rows_have_the_moments_of_the_closed_form(levels: int) -> None:
    """x_0 is given, x_1 lies above a bound; q is wrong on purpose, so the weights have to be right."""
    gaussian = linear_gaussian(levels, off=0.3)
    n, x_0, low = 1500, 0.8, 1.0
    result = conditional_sample(gaussian.model, Given.of([x_0] + 4 * [NAN], low={1: low}), n, seed=1)
    S, m = gaussian.covariance.double(), gaussian.mean.double()
    gain = S[1:, 0] / S[0, 0]
    mean, covariance = m[1:] + gain * (x_0 - m[0]), S[1:, 1:] - torch.outer(gain, S[0, 1:])
    log_tail, mean_1, variance_1 = truncated(float(mean[0]), float(covariance[0, 0]), low)
    slope = covariance[:, 0] / covariance[0, 0]
    expected = mean + slope * (mean_1 - mean[0])
    spread = covariance + torch.outer(slope, slope) * (variance_1 - covariance[0, 0])
    log_p = torch.distributions.Normal(m[0], S[0, 0].sqrt()).log_prob(torch.tensor(x_0).double()) + log_tail
    error = math.sqrt(1 / n + 1 / result.effective)
    assert abs(result.log_p - float(log_p)) < 5 / math.sqrt(result.effective)
    assert (result.x[:, 0] == x_0).all()
    assert float(result.x[:, 1].min()) > low
    assert ((result.x[:, 1:].mean(0) - expected).abs() < 5 * error * spread.diagonal().sqrt()).all()
    assert ((result.x[:, 1:].T.cov() - spread).abs() < 8 * error * float(spread.diagonal().max())).all()


KINDS: list[Kind] = [("binary", 2), ("categorical", 3), ("count", 0), ("real", 0)]
MOST = 30
"""Counts beyond which the model has next to no probability."""


def small_model(mask: bool) -> DGM:
    """A model of mixed columns with one latent variable, whose columns depend on each other through it."""
    torch.manual_seed(3)
    settings = ["model.hidden=[6]", "model.latent=1", "model.norm=none", "model.slots=[3]", "model.likelihood=mixed"]
    model = build(Recipe().override([*settings, f"model.mask={str(mask).lower()}"]), len(KINDS), tuple(KINDS))
    with torch.no_grad():
        for parameter in model.p.parameters():
            parameter.mul_(2)
    return model.eval()


def enumerated(model: DGM, real: float) -> tuple[Tensor, Tensor]:
    """Every row with this real value, and log p(x) of each by quadrature."""
    values = [(b, c, k, real) for b, c, k in itertools.product(range(2), range(3), range(MOST + 1))]
    x = torch.tensor(values, dtype=torch.float32)
    return x, quadrature(model, Batch(x), points=401)


@pytest.mark.parametrize("mask", [False, True])
def test_of_a_small_model_the_rows_have_the_enumerated_probabilities(mask: bool) -> None:
    """A level above the first, a count from 1 to 3, and a number are given."""
    model, real, n = small_model(mask), 0.7, 1500
    x, log_p = enumerated(model, real)
    fits = (x[:, 1] > 0.5) & (x[:, 2] > 0.5) & (x[:, 2] < 3.5)
    expected = torch.softmax(log_p.where(fits, -torch.inf), 0)
    result = conditional_sample(model, Given.of([NAN, NAN, NAN, real], {1: 0.5, 2: 0.5}, {2: 3.5}), n)
    error = 1 / n + 1 / result.effective
    assert result.log_p == pytest.approx(float(log_p[fits].logsumexp(0)), abs=5 / math.sqrt(result.effective) + 1e-4)
    drawn = torch.stack([(result.x.float() == row).all(-1).double().mean() for row in x])
    assert float(drawn.sum()) == pytest.approx(1)
    assert ((drawn - expected).abs() < 5 * (expected * (1 - expected) * error).sqrt() + 1e-5).all()


def test_a_seed_fixes_the_rows_and_the_states_are_told() -> None:
    told: list[int] = []
    model, given = linear_gaussian(1).model, Given.of([1.0] + 4 * [NAN], {2: 0.5})
    first, again, other = (conditional_sample(model, given, 5, seed=seed, tick=told.append) for seed in (4, 4, 5))
    assert torch.equal(first.x, again.x)
    assert not torch.equal(first.x, other.x)
    assert told[0] == 0
    assert first.effective >= 1000


@pytest.mark.parametrize(
    "given", [Given.of([*3 * [NAN], 1e4]), Given.of(4 * [NAN], {3: 1e4}), Given.of(4 * [NAN], {}, {2: -0.5})]
)
def test_a_condition_without_probability_names_its_column(given: Given) -> None:
    column = 2 if given.high.isfinite().any() else 3
    with pytest.raises(MemgenError, match=f"column 'name {column}': what is given has a probability below 1e-09"):
        conditional_sample(small_model(False), given, 3, name="name {}".format)
