"""A model of a table starts as a linear one: probabilistic PCA of incomplete rows by EM."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import stats

from memgen.core.model import Batch
from memgen.data.dataset import Dataset
from memgen.errors import MemgenError
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood
from memgen.training.initial import gaussian, principal, start_linear
from memgen.training.prepare import adapt, prepare
from memgen.training.state import begin
from tests.core.tables import small, table


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
