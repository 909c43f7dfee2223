"""Columns of different kinds: every likelihood is a distribution in the user's units; incomplete rows; linear start."""

from __future__ import annotations

import itertools
import math
from functools import partial
from typing import cast

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from memgen.core.likelihoods import Count, DiscretisedLogistic, Factorised, Mixed, Positive, Real, check_values, draw
from memgen.core.likelihoods.count import NegativeBinomialColumns
from memgen.core.likelihoods.mixed import Kind
from memgen.core.likelihoods.pixels import TOP, DiscretisedLogisticColumns
from memgen.core.model import DGM, Batch
from memgen.core.objective import importance
from memgen.data.dataset import Dataset
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood
from memgen.tasks.imputation import impute
from memgen.training.fit import fit
from memgen.training.initial import gaussian, principal, start_linear
from memgen.training.prepare import adapt, prepare
from memgen.training.state import begin

KINDS: list[Kind] = [("real", 0), ("categorical", 3), ("count", 0), ("binary", 2), ("positive", 0), ("real", 0)]


def table(n: int = 60, seed: int = 0) -> Tensor:
    """Rows of KINDS whose columns have to do with each other."""
    rng = np.random.default_rng(seed)
    t = rng.normal(size=n)
    columns = [
        1000 + 5 * t + rng.normal(size=n),
        (t > -0.5).astype(int) + (t > 0.5),
        rng.poisson(np.exp(1 + 0.5 * t)),
        (t + rng.normal(size=n) > 0).astype(int),
        np.exp(3 + t + 0.1 * rng.normal(size=n)),
        0.001 * t,
    ]
    return torch.tensor(np.stack(columns, 1), dtype=torch.float32)


def small(*more: str, kinds: list[Kind] = KINDS) -> tuple[DGM, Recipe]:
    settings = ["model.likelihood=mixed", "model.hidden=[8]", "model.latent=3", "model.norm=none", "model.mask=true"]
    recipe = Recipe().override([*settings, "training.evaluate_every=0", *more])
    return build(recipe, len(kinds), kinds), recipe


def adapted(*more: str) -> DGM:
    model, recipe = small(*more)
    adapt(prepare(recipe, Dataset("table", table()), model=model))
    return model.eval()


def test_every_kind_sums_or_integrates_to_one_in_the_units_of_the_table() -> None:
    model = adapted()
    x, z = table(), torch.randn(1, 3, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        p = cast(Factorised, model.double().decode((z.double(),), Batch(x[:1])))

    def density(column: int, value: float) -> float:
        row = x[:1].double().clone()
        row[0, column] = value
        return float(p.log_probs(row)[0, column].detach().exp())

    for column in (0, 4, 5):
        low, *points, high = (
            float(p.icdf(torch.full((1, 6), u).double())[0, column]) for u in (1e-9, 0.1, 0.5, 0.9, 1 - 1e-9)
        )
        total, _ = integrate.quad(partial(density, column), low, high, points=points, limit=200)
        assert total == pytest.approx(1, abs=1e-4)
    assert sum(density(1, code) for code in range(3)) == pytest.approx(1)
    assert sum(density(3, code) for code in range(2)) == pytest.approx(1)
    assert sum(density(2, n) for n in range(2000)) == pytest.approx(1, abs=1e-6)


def test_densities_change_with_units_as_densities_do() -> None:
    """log p of x in metres and of 100 x in centimetres differ by log 100 per real or positive column."""
    x = table()
    scaled = x.clone()
    scaled[:, [0, 4, 5]] *= 100
    found = []
    for rows in (x, scaled):
        model, recipe = small()
        adapt(prepare(recipe, Dataset("table", rows), model=model))
        found.append(log_likelihood(model.eval(), Batch.of(rows), 20).log_p)
    torch.testing.assert_close(found[0] - found[1], torch.full((60,), 3 * math.log(100)).double(), atol=2e-3, rtol=0)


def test_negative_binomial_is_scipys() -> None:
    m, r = torch.tensor([0.3, 4.0, 80.0]).double(), torch.tensor([0.7, 2.5, 5000.0]).double()
    p = NegativeBinomialColumns(m, r)
    x = torch.arange(0.0, 200.0).double().unsqueeze(1).expand(200, 3)
    truth = stats.nbinom(r.numpy(), (r / (r + m)).numpy())
    np.testing.assert_allclose(p.log_probs(x).numpy(), truth.logpmf(x.numpy()), rtol=1e-8, atol=1e-8)
    np.testing.assert_allclose(p.mean.numpy(), truth.mean())
    u = torch.rand(50, 3, generator=torch.Generator().manual_seed(0)).double()
    np.testing.assert_array_equal(
        NegativeBinomialColumns(m.expand(50, 3), r.expand(50, 3)).icdf(u), truth.ppf(u.numpy())
    )


def test_large_counts_keep_their_digits_in_float32() -> None:
    """Terms of 1e8 nats cancel to a few."""
    m, r = torch.meshgrid(torch.tensor([3.0, 1e4, 1e6, 1e7]), torch.tensor([0.5, 30.0, 9000.0]), indexing="ij")
    x = (m * torch.tensor([[0.5], [1.0], [1.5]]).unsqueeze(2)).floor()
    truth = stats.nbinom(r.double().numpy(), (r.double() / (r.double() + m.double())).numpy())
    found = NegativeBinomialColumns(m, r).log_probs(x)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), truth.logpmf(x.double().numpy()), rtol=1e-5, atol=1e-4)


def test_pixels_sum_to_one_and_their_mean_is_right_to_a_fraction_of_a_level() -> None:
    location = torch.tensor([-0.3, 0.0, 0.2, 0.501, 1.0, 1.7]).double()
    for scale in (0.0005, 0.01, 0.3):
        p = DiscretisedLogisticColumns(location, torch.full_like(location, scale))
        levels = torch.arange(TOP + 1).double().unsqueeze(1).expand(-1, 6) / TOP
        probabilities = p.log_probs(levels).exp()
        torch.testing.assert_close(probabilities.sum(0), torch.ones(6).double())
        torch.testing.assert_close((levels * probabilities).sum(0), p.mean, atol=0.5 / TOP, rtol=0)
        assert (levels[probabilities.argmax(0), 0] == p.mode).all()


def test_draws_follow_the_distribution_for_every_kind() -> None:
    torch.manual_seed(0)
    heads = [Real(3, 2, 0.01), Positive(3, 2, 0.01), Count(3, 2), DiscretisedLogistic(3, 2)]
    for head in heads:
        p = head(torch.randn(1, 3).expand(20_000, 3))
        x = draw(p, p.mean.shape, torch.Generator().manual_seed(1))
        assert ((x.mean(0) - p.mean[0]).abs() < 5 * x.std(0) / 20_000**0.5 + 1e-6).all(), type(head)
        check_values(head, x)


def test_a_gaussian_column_cannot_buy_density_below_its_floor() -> None:
    """A constant, or whole numbers: the density is at most that of a sigma of 0.01 standard deviations."""
    head = Mixed(2, 1, [("real", 0)], floor=0.01)
    x = torch.tensor([[3.0], [4.0], [5.0], [4.0]])
    head.adapt(lambda: (x,))
    with torch.no_grad():
        head.parts[0].inner.log_variance.bias.fill_(-100.0)
    p = head(torch.zeros(1, 2))
    most = -math.log(0.01 * float(x.std(correction=0)) * math.sqrt(2 * math.pi))
    assert p.log_probs(p.mean).item() == pytest.approx(most, abs=1e-4)


def test_values_that_a_kind_cannot_have_are_refused_and_missing_ones_are_not() -> None:
    model = adapted()
    for column, value, message in ((1, 3.0, "3 categories"), (2, -1.0, "whole numbers"), (4, 0.0, "above 0")):
        x = table()
        x[7, column] = value
        with pytest.raises(MemgenError, match=message):
            log_likelihood(model, Batch.of(x), 5)
        x[7, column] = torch.nan
        assert log_likelihood(model, Batch.of(x), 5).log_p.isfinite().all()
    with pytest.raises(MemgenError, match="infinity, first at row 2, column 0"):
        log_likelihood(model, Batch.of(table().index_fill(0, torch.tensor([2]), torch.inf)), 5)


def test_with_nothing_missing_the_bound_is_the_ordinary_one_bit_by_bit() -> None:
    model, x = adapted(), table()
    noise = model.noise(5, len(x), torch.Generator().manual_seed(0))
    ordinary = importance(model(Batch(x), noise).log_w)
    masked = importance(model(Batch(x, torch.ones_like(x, dtype=torch.bool)), noise).log_w)
    assert ordinary.equal(masked)


def test_the_bound_of_an_incomplete_row_is_that_of_its_observed_columns_alone() -> None:
    """What a missing cell holds changes nothing, and log p(x|z) is the sum over the others."""
    model, x = adapted(), table()
    observed = torch.rand(x.shape, generator=torch.Generator().manual_seed(1)) > 0.4
    noise = model.noise(4, len(x), torch.Generator().manual_seed(0))
    with_nan = model(Batch(x.where(observed, torch.nan), observed), noise)
    with_junk = model(Batch(x.where(observed, 1.0), observed), noise)
    assert with_nan.log_w.equal(with_junk.log_w)
    p = model.decode(with_nan.z, Batch(x))
    torch.testing.assert_close(with_nan.log_p_x, p.log_prob(x, observed))


def test_log_likelihood_of_what_is_observed_is_the_marginal_by_enumeration() -> None:
    """p(x_obs) = sum over all values of the missing columns of p(x_obs, x_mis), here of discrete columns."""
    kinds: list[Kind] = [("binary", 2), ("categorical", 3), ("binary", 2)]
    model, _ = small("model.latent=1", kinds=kinds)
    model = model.double().eval()
    x = torch.tensor([[1.0, torch.nan, torch.nan]])
    whole = torch.tensor([[1.0, c, b] for c, b in itertools.product(range(3), range(2))])
    found = log_likelihood(model, Batch.of(x), 10_000).log_p
    every = log_likelihood(model, Batch.of(whole), 10_000).log_p
    assert float(found) == pytest.approx(float(every.logsumexp(0)), abs=0.02)


def test_training_on_holes_learns_and_says_where_a_model_cannot() -> None:
    x = table(200)
    x = x.where(torch.rand(x.shape, generator=torch.Generator().manual_seed(0)) > 0.3, torch.nan)
    model, recipe = small("training.epochs=30", "training.rate=0.01")
    bounds = [epoch.bound for epoch in fit(model, Batch.of(x), recipe)]
    assert bounds[-1] > bounds[0] + 3
    blind, recipe = small("model.mask=false")
    with pytest.raises(MemgenError, match=r"NaN.*model\.mask=true"):
        next(fit(blind, Batch.of(x), recipe))


def test_probabilistic_pca_starts_as_the_gaussian_of_full_covariance() -> None:
    """Exactly, ELBO and log-likelihood alike: the posterior of the linear model is Q's."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(300, 5)) @ rng.normal(size=(5, 5)) + 7
    model, recipe = small("model.latent=4", "model.skip=true", "model.start=linear", kinds=[("real", 0)] * 5)
    rows = torch.tensor(x, dtype=torch.float32)
    adapt(prepare(recipe, Dataset("table", rows), model=model))
    found = log_likelihood(model.eval(), Batch.of(rows), 10)
    truth = stats.multivariate_normal(x.mean(0), np.cov(x.T, bias=True)).logpdf(x)
    np.testing.assert_allclose(found.log_p.numpy(), truth, atol=2e-3)
    np.testing.assert_allclose(found.elbo.numpy(), truth, atol=2e-3)


def test_the_linear_start_needs_its_path() -> None:
    with pytest.raises(MemgenError, match=r"model\.skip=true"):
        Recipe().override("model.start=linear")
    model, _ = small()
    with pytest.raises(MemgenError, match=r"model\.skip=true"):
        start_linear(model, table())


def test_em_finds_the_moments_of_highest_likelihood() -> None:
    """No small change of mean or covariance makes what is observed likelier."""
    rng = np.random.default_rng(0)
    y = torch.tensor(rng.normal(size=(150, 3)) @ rng.normal(size=(3, 3)))
    observed = torch.tensor(rng.random((150, 3)) > 0.3)
    mean, covariance = gaussian(y, observed)

    def log_likelihood_of(m: np.ndarray, S: np.ndarray) -> float:
        total = 0.0
        for row, seen in zip(y.numpy(), observed.numpy(), strict=True):
            if seen.any():
                total += stats.multivariate_normal(m[seen], S[np.ix_(seen, seen)]).logpdf(row[seen])
        return total

    best = log_likelihood_of(mean.numpy(), covariance.numpy())
    for _ in range(6):
        shift = 0.05 * rng.normal(size=3)
        change = 0.05 * rng.normal(size=(3, 3))
        assert log_likelihood_of(mean.numpy() + shift, covariance.numpy()) < best
        factor = np.eye(3) + change
        assert log_likelihood_of(mean.numpy(), factor @ covariance.numpy() @ factor.T) < best


def test_principal_components_rebuild_the_covariance_with_one_variable_less() -> None:
    rng = np.random.default_rng(1)
    S = torch.tensor(np.cov(rng.normal(size=(4, 50))))
    W, sigma = principal(S, 3)
    torch.testing.assert_close(W @ W.T + sigma**2 * torch.eye(4).double(), S)
    W, sigma = principal(S[:1, :1], 1)
    torch.testing.assert_close(W @ W.T + sigma**2, S[:1, :1])


def test_imputation_by_weights_is_the_conditional_of_the_model_whatever_q_is() -> None:
    """Of a linear Gaussian model p(x_mis | x_obs) is known; here Q is the prior, and the weights do all the work."""
    rng = np.random.default_rng(0)
    x = torch.tensor(rng.normal(size=(400, 1)) @ rng.normal(size=(1, 4)) + 0.7 * rng.normal(size=(400, 4)))
    model, recipe = small("model.latent=1", "model.skip=true", "model.start=linear", kinds=[("real", 0)] * 4)
    adapt(prepare(recipe, Dataset("table", x.float()), model=model))
    with torch.no_grad():
        for parameter in model.q[0].head.parameters():
            parameter.zero_()
    scale, y = x.std(0, correction=0), (x - x.mean(0)) / x.std(0, correction=0)
    W, sigma = principal(torch.cov(y.T, correction=0), 1)
    C = W @ W.T + sigma**2 * torch.eye(4).double()
    truth = x.mean(0)[3] + scale[3] * y[:3, :3] @ torch.linalg.solve(C[:3, :3], C[:3, 3])
    spread = scale[3] * (C[3, 3] - C[3, :3] @ torch.linalg.solve(C[:3, :3], C[:3, 3])).sqrt()
    observed = torch.ones(3, 4, dtype=torch.bool)
    observed[:, 3] = False
    found = impute(model.eval(), Batch(x[:3], observed), steps=300, draws=60)
    assert (found.mean[:, 3] - truth).abs().max() < 0.15 * spread
    np.testing.assert_allclose(found.draws[:, :, 3].std(0).numpy(), float(spread), rtol=0.25)
    marginal = stats.multivariate_normal(np.zeros(3), C[:3, :3].numpy()).logpdf(y[:3, :3].numpy())
    np.testing.assert_allclose(found.log_observed.numpy(), marginal - np.log(scale[:3].numpy()).sum(), atol=0.15)


def test_a_missing_category_becomes_the_likeliest_one() -> None:
    x = table(300)
    model, recipe = small("training.epochs=60", "training.rate=0.01", "objective.samples=5")
    for _ in fit(model, Batch.of(x), recipe):
        pass
    holes = x[:100].clone()
    holes[:, 1] = torch.nan
    result = impute(model, Batch(holes, ~holes.isnan()), steps=50)
    assert set(result.mean[:, 1].tolist()) <= {0.0, 1.0, 2.0}
    assert (result.mean[:, 1] == x[:100, 1]).double().mean() > 0.7
    drawn = impute(model, Batch(holes, ~holes.isnan()), "mwg", steps=20, draws=1).draws[0]
    check_values(model.likelihood, drawn.float())


def test_the_method_for_masks_is_refused_without_one() -> None:
    model, _ = small("model.mask=false")
    with pytest.raises(MemgenError, match=r"model\.mask=true"):
        impute(model, Batch(table(), torch.ones(60, 6, dtype=torch.bool)), "observed")


def test_a_state_goes_on_with_the_units_of_its_first_rows() -> None:
    """The units are part of the state: a resumed training does not take them anew."""
    model, recipe = small("training.epochs=2")
    adapt(prepare(recipe, Dataset("table", table()), model=model))
    kept = begin(model, recipe).tensors()
    other, _ = small("training.epochs=2")
    state = begin(other, recipe)
    state.restore(kept)
    for name, value in model.likelihood.state_dict().items():
        assert other.likelihood.state_dict()[name].equal(value), name
