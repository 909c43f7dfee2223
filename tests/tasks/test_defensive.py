"""log p(x) of rows far from all others is that of quadrature and of closed forms; ordinary rows lose nothing."""

from __future__ import annotations

import math
from functools import cache

import pytest
import torch
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.model import DGM
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.defensive import Defence, limited
from memgen.tasks.density import by_mixture, log_likelihood
from memgen.tasks.modes import GaussianAt, climb, gaussians_at_modes
from memgen.tasks.scoring import score_rows
from memgen.training.fit import fit
from tests.exact import linear_gaussian

REAL = [("real", 0)] * 3
TABLE = ["model.likelihood=mixed", "model.hidden=[16,16]", "model.slots=[5,5]", "model.latent=1", "model.skip=true"]
TABLE += ["model.norm=none", "model.sigma_floor=0.01", "model.mask=true", "objective.samples=5"]
TABLE += ["training.epochs=40", "training.rate=0.01", "training.batch_size=100", "training.evaluate_every=0"]


def rows(n: int = 300, seed: int = 0) -> Tensor:
    """A curve with noise that is wider at its ends."""
    g = torch.Generator().manual_seed(seed)
    t = torch.randn(n, generator=g)
    noise = torch.randn(n, 3, generator=g) * torch.stack([0.2 + 0 * t, 0.1 + 0.3 * t.abs(), 0.3 + 0 * t], 1)
    return torch.stack([t, t**2, torch.sin(2 * t)], 1) + noise


@cache
def trained() -> DGM:
    """A model with one latent variable, in float64."""
    recipe = Recipe().override(TABLE)
    model = build(recipe, 3, REAL)
    model.likelihood.adapt(lambda: (rows(),))
    *_, _ = fit(model, Batch(rows()), recipe)
    return model.double().eval()


def far(distance: float) -> Batch:
    """Rows that many standard deviations from the mean, in both directions of every column."""
    x = rows().double()
    steps = torch.cat([torch.eye(3), -torch.eye(3)]) * x.std(0)
    return Batch(x.mean(0) + distance * steps)


@torch.no_grad()
def quadrature(model: DGM, batch: Batch) -> Tensor:
    """log of the integral of p(x, z) over one latent variable, by the rectangle rule around its highest point."""

    def log_joint(z: Tensor) -> Tensor:
        joint = model.joint(batch, (z.unsqueeze(-1),))
        return joint.log_p_x + joint.log_p_z[0]

    coarse = torch.arange(-250, 250, 0.05, dtype=torch.float64).unsqueeze(1).expand(-1, len(batch))
    highest = coarse[log_joint(coarse).argmax(0), 0]
    fine = torch.linspace(-1.5, 1.5, 20_001, dtype=torch.float64).unsqueeze(1)
    return log_joint(highest + fine).logsumexp(0) + math.log(float(fine[1, 0] - fine[0, 0]))


@pytest.mark.parametrize("distance", [10, 100, 300])
def test_rows_far_out_have_the_density_of_the_model(distance: float) -> None:
    batch, samples = far(distance), 1000
    exact = quadrature(trained(), batch)
    result = log_likelihood(trained(), batch, samples)
    error = (1 / result.effective - 1 / samples).sqrt()
    assert ((result.log_p - exact).abs() < 5 * error + 1e-3).all(), (result.log_p, exact, result.effective)
    assert error.median() < 0.2
    by_q = log_likelihood(trained(), batch, samples, defensive=False)
    assert (exact - by_q.log_p).max() > 100  # it is these rows that need another proposal


def test_incomplete_rows_far_out_have_the_density_of_their_observed_values() -> None:
    x = far(100).x
    x[:, 2] = torch.nan
    batch = Batch.of(x)
    scores = score_rows(trained(), batch, 1000)
    assert ((scores.log_p - quadrature(trained(), batch)).abs() < 5 * scores.standard_error + 1e-3).all()


@pytest.mark.parametrize("levels", [1, 2])
def test_a_mixture_gives_the_closed_form_with_several_latent_variables(levels: int) -> None:
    """Also where q is far from the posterior: its mean is off by one prior deviation, its width by a factor of four."""
    exact = linear_gaussian(levels, off=1.0)
    deviation = exact.covariance.diagonal().sqrt()
    x = torch.cat([exact.sample(3), exact.mean + torch.eye(5) * 300 * deviation]).double()
    defence, batch, keys = Defence.of(exact.model, 0), Batch(x), range(8)
    result = by_mixture(defence, batch, keys, defence.pilot(batch, keys), 1000)
    error = (1 / result.effective - 1 / 1000).sqrt()
    tolerance = 1e-6 * exact.log_p(x).abs()  # the layers' weights are rounded to float32
    assert ((result.log_p - exact.log_p(x)).abs() < 5 * error + tolerance).all()
    assert result.effective.min() > 250


def test_the_estimate_of_p_is_unbiased_with_the_choice_of_the_proposal() -> None:
    """One row many times, with its own noise each time; the pilot chooses q for some and the mixture for others."""
    x = far(1.5).x[2:3]
    exact, n = quadrature(trained(), Batch(x)), 400
    batch = Batch(x.expand(n, -1))
    pilot = Defence.of(trained(), 0).pilot(batch, range(n))
    chosen = pilot.needed.double().mean()
    ratio = torch.exp(log_likelihood(trained(), batch, 30, batch_size=100).log_p - exact)
    assert abs(float(ratio.mean()) - 1) < 4 * float(ratio.std()) / n**0.5, (chosen, ratio.mean())
    assert float(ratio.std()) / n**0.5 < 0.05


def test_ordinary_rows_lose_nothing() -> None:
    """Rows that keep q as their proposal have the same bits; the others have more effective samples."""
    batch = Batch(rows(60, seed=1).double())
    by_q = log_likelihood(trained(), batch, 500, batch_size=60, defensive=False)
    result = log_likelihood(trained(), batch, 500, batch_size=60)
    needed = Defence.of(trained(), 0).pilot(batch, range(60)).needed
    assert 0 < needed.double().mean() < 1
    assert result.log_p[~needed].equal(by_q.log_p[~needed])
    assert result.elbo.equal(by_q.elbo)
    gained = result.effective[needed] / by_q.effective[needed]
    assert gained.median() > 1


def test_models_of_bounded_values_are_scored_by_q_alone() -> None:
    model = build(Recipe().override(["model.hidden=[4]", "model.slots=[]", "model.latent=2", "model.norm=none"]), 6)
    batch = Batch((torch.rand(10, 6, generator=torch.Generator().manual_seed(0)) < 0.5).float())
    results = [log_likelihood(model, batch, 300, defensive=choice).log_p for choice in (True, False)]
    assert results[0].equal(results[1])


def test_a_far_row_has_the_same_bits_beside_any_others() -> None:
    x = torch.cat([far(10).x, far(100).x])
    whole = log_likelihood(trained(), Batch(x), 250, batch_size=12).log_p
    for index in ([3], [11, 2, 7]):
        part = log_likelihood(trained(), Batch(x[index]), 250, batch_size=2, keys=index).log_p
        torch.testing.assert_close(part, whole[index], atol=1e-9, rtol=1e-9)


def test_a_gaussian_at_a_mode_is_the_gaussian() -> None:
    """Of a quadratic function, from any start; and its samples have its density."""
    g = torch.Generator().manual_seed(0)
    root, mean = torch.randn(4, 4, generator=g).double(), 50 * torch.randn(4, generator=g).double()
    law = torch.distributions.MultivariateNormal(mean, precision_matrix=root @ root.T + torch.eye(4))
    starts = torch.randn(3, 2, 4, generator=g).double()
    (gaussian,) = gaussians_at_modes(law.log_prob, starts, 1, (1.0,))
    z = gaussian.sample(torch.randn(20, 2, 4, generator=g).double())
    torch.testing.assert_close(gaussian.log_prob(z), law.log_prob(z), atol=1e-3, rtol=1e-3)
    wide = GaussianAt(gaussian.mode, gaussian.precision, gaussian.axes, 2.0)
    twice = torch.distributions.MultivariateNormal(mean, covariance_matrix=4 * law.covariance_matrix)
    torch.testing.assert_close(wide.log_prob(z), twice.log_prob(z), atol=1e-3, rtol=1e-3)


def test_a_ridge_is_climbed() -> None:
    """-|a'z - 1| - |b'z - 2| has its maximum where both terms vanish, at a corner without derivatives."""
    a, b = torch.tensor([[1.0, 3.0], [2.0, -1.0]]).double()
    z, height = climb(lambda z: -(z @ a - 1).abs() - 10 * (z @ b - 2).abs(), torch.full((1, 1, 2), 5.0).double())
    assert height.item() == pytest.approx(0, abs=0.05)
    torch.testing.assert_close(z[0, 0], torch.tensor([1.0, 0.0]).double(), atol=0.05, rtol=0)


def test_limited_widths_are_finite_for_any_encoding() -> None:
    model, x = trained(), torch.full((1, 3), 1e12, dtype=torch.float64)
    q = limited(model.encode(Batch(x)).q, 0.03)
    assert q.mean.isfinite().all()
    assert ((q.log_variance >= 2 * math.log(0.03)) & (q.log_variance <= 0)).all()
