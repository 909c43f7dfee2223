"""Incomplete rows: bounds, likelihoods and imputations are those of what was observed."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from scipy import stats

from memgen.core.likelihoods import check_values
from memgen.core.likelihoods.mixed import Kind
from memgen.core.model import Batch
from memgen.core.objective import importance
from memgen.data.dataset import Dataset
from memgen.errors import MemgenError
from memgen.tasks.density import log_likelihood
from memgen.tasks.imputation import impute
from memgen.training.fit import fit
from memgen.training.initial import principal
from memgen.training.prepare import adapt, prepare
from tests.core.tables import adapted, small, table


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


@pytest.mark.usefixtures("long_loop")
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


@pytest.mark.usefixtures("long_loop")
def test_a_missing_category_becomes_the_likeliest_one() -> None:
    x = table(300)
    model, recipe = small("training.epochs=60", "training.rate=0.01", "objective.samples=5")
    for _ in fit(model, Batch.of(x), recipe):
        pass
    incomplete = x[:100].clone()
    incomplete[:, 1] = torch.nan
    result = impute(model, Batch(incomplete, ~incomplete.isnan()), steps=50)
    assert set(result.mean[:, 1].tolist()) <= {0.0, 1.0, 2.0}
    assert (result.mean[:, 1] == x[:100, 1]).double().mean() > 0.7
    drawn = impute(model, Batch(incomplete, ~incomplete.isnan()), "mwg", steps=20, draws=1).draws[0]
    check_values(model.likelihood, drawn.float())


def test_the_method_for_masks_is_refused_without_one() -> None:
    model, _ = small("model.mask=false")
    with pytest.raises(MemgenError, match=r"model\.mask=true"):
        impute(model, Batch(table(), torch.ones(60, 6, dtype=torch.bool)), "observed")
