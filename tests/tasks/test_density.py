"""The likelihood evaluator: exact models, its noise, its bounds."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from memgen.core.model import DGM, Batch
from memgen.core.noise import BLOCK, ExampleNoise, binarise
from memgen.errors import MemgenError
from memgen.tasks.density import (
    log_likelihood,
    rungs,
    standard_error,
)
from tests.exact import linear_gaussian
from tests.tasks.tiny import tiny_discrete


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_linear_gaussian_model_against_the_closed_form(levels: int, norm: str) -> None:
    """With a q that is off, the estimate is within its Monte Carlo error of the closed form; the ELBO is far below."""
    exact = linear_gaussian(levels, norm, off=0.25)
    x = exact.sample(40)
    result = log_likelihood(exact.model, Batch.of(x), 6000, chunk=100, batch_size=7)
    error = (1 / result.effective - 1 / 6000).sqrt()  # of log of a mean, to first order
    z = (result.log_p - exact.log_p(x)) / error
    assert z.abs().max() < 4.5
    assert abs(float(z.mean())) < 4.5 / 40**0.5
    assert error.max() < 0.05
    assert result.elbo.mean() < exact.log_p(x).mean() - 0.1


@pytest.mark.parametrize("levels", [1, 2])
def test_exact_posterior_gives_the_closed_form_with_any_number_of_samples(levels: int) -> None:
    exact = linear_gaussian(levels)
    x = exact.sample(9)
    for samples in (1, 3, 251):
        result = log_likelihood(exact.model, Batch.of(x), samples)
        torch.testing.assert_close(result.log_p, exact.log_p(x), atol=2e-5, rtol=0)
        torch.testing.assert_close(result.elbo, exact.log_p(x), atol=2e-5, rtol=0)
        torch.testing.assert_close(
            result.effective, torch.full((9,), float(samples), dtype=torch.float64), rtol=1e-4, atol=0
        )


def quadrature(model: DGM, x: Tensor, levels: int) -> Tensor:
    """p(x) = integral of p(x|z_1) p(z_1|z_2) p(z_2), by the rectangle rule on a fine grid, in float64."""
    model = model.double()
    axis = torch.linspace(-30, 30, 3001, dtype=torch.float64)
    step = float(axis[1] - axis[0])
    normal = torch.distributions.Normal
    log_p_z = normal(0.0, 1.0).log_prob(axis)  # of the top level
    with torch.no_grad():
        if levels == 2:
            p_1 = model.p[1](axis.view(-1, 1))[0]  # p(z_1|z_2) at every z_2
            log_p_z1 = normal(p_1.mean.T, (0.5 * p_1.log_variance.T).exp()).log_prob(axis.view(-1, 1))
            log_p_z = torch.logsumexp(log_p_z1 + log_p_z, 1) + math.log(step)  # the marginal of z_1
        logits = model.p[0](axis.view(-1, 1))[0].logits
        log_p_x = -torch.nn.functional.binary_cross_entropy_with_logits(
            logits.unsqueeze(1).expand(-1, len(x), -1), x.double().expand(len(axis), -1, -1), reduction="none"
        ).sum(-1)
    model.float()
    return torch.logsumexp(log_p_x + log_p_z.unsqueeze(1), 0) + math.log(step)


@pytest.mark.parametrize("levels", [1, 2])
def test_tiny_discrete_model_against_quadrature(levels: int) -> None:
    model = tiny_discrete(levels)
    space = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    truth = quadrature(model, space, levels)
    assert truth.exp().sum().item() == pytest.approx(1, abs=1e-6)
    result = log_likelihood(model, Batch.of(space), 20_000, chunk=130)
    error = (1 / result.effective - 1 / 20_000).sqrt()
    assert error.max() < 0.05
    assert ((result.log_p - truth).abs() < 4.5 * error + 1e-5).all()
    assert result.log_p.exp().sum().item() == pytest.approx(1, abs=0.03)


def test_equal_images_meet_different_noise_and_seeds_matter() -> None:
    model = tiny_discrete(1)
    x = torch.ones(6, 3)
    result = log_likelihood(model, Batch.of(x), 20)
    assert len(result.log_p.unique()) == 6
    assert not log_likelihood(model, Batch.of(x), 20, seed=1).log_p.equal(result.log_p)


def test_noise_is_not_shared_and_not_correlated_across_images() -> None:
    """Consecutive seeds of a Mersenne twister: 400 streams share no values and are correlated by chance only."""
    noise = ExampleNoise(0, range(400), (4,)).block()[0].transpose(0, 1).flatten(1)  # (image, 1000 values)
    assert len(noise.flatten().unique()) > 0.98 * noise.numel()  # float32 normals repeat by chance only
    correlation = torch.corrcoef(noise.double())[~torch.eye(400, dtype=torch.bool)]
    assert correlation.abs().max() < 5.5 / 1000**0.5
    assert correlation.std().item() == pytest.approx(1000**-0.5, rel=0.02)
    assert abs(noise.mean().item()) < 5 / noise.numel() ** 0.5
    first = noise[:, 0]
    assert first.std().item() == pytest.approx(1, abs=0.15)


def test_bounds_rise_to_the_estimate_and_are_averages_over_disjoint_groups() -> None:
    exact = linear_gaussian(1, off=0.5)
    x = exact.sample(30)
    result = log_likelihood(exact.model, Batch.of(x), 2000)
    ladder = [float(result.elbo.mean()), *(float(value.mean()) for value in result.bounds.values()), result.mean]
    assert list(result.bounds) == [5, 50, 500]
    assert ladder == sorted(ladder)
    # Group by group, from the weights themselves.
    noise = ExampleNoise(0, range(30), exact.model.latent)
    blocks = [noise.block() for _ in range(2000 // BLOCK)]
    with torch.no_grad():
        log_w = torch.cat([exact.model(Batch(x), block).log_w.double() for block in blocks])
    for K, value in result.bounds.items():
        torch.testing.assert_close(
            value, (log_w.unflatten(0, (-1, K)).logsumexp(1) - math.log(K)).mean(0), atol=1e-4, rtol=0
        )
    w = (log_w - log_w.max(0).values).exp()
    torch.testing.assert_close(result.effective, w.sum(0) ** 2 / (w**2).sum(0), atol=0, rtol=1e-3)
    torch.testing.assert_close(result.elbo, log_w.mean(0), atol=1e-4, rtol=0)


def test_rungs_fit_blocks() -> None:
    """Each is inside a block or made of whole blocks; else groups would straddle blocks."""
    assert all(BLOCK % K == 0 or K % BLOCK == 0 for K in rungs(10**7))


def test_standard_error_is_that_of_a_mean() -> None:
    values = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert standard_error(values) == pytest.approx(math.sqrt(7 / 3 / 3))
    assert math.isnan(standard_error(values[:1]))


def test_grey_levels_are_scored_only_when_their_binarisation_is_stated() -> None:
    model = tiny_discrete(1)
    grey = torch.rand(5, 3)
    with pytest.raises(MemgenError, match="binarised"):
        log_likelihood(model, Batch.of(grey), 10)
    assert log_likelihood(model, Batch.of(binarise(grey, 3)), 10).log_p.isfinite().all()


def test_likelihood_is_immutable() -> None:
    result = log_likelihood(tiny_discrete(1), Batch.of(torch.ones(2, 3)), 10)
    with pytest.raises(AttributeError):
        result.samples = 5  # type: ignore[misc]
    assert replace(result, samples=5).samples == 5
