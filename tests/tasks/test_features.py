"""Features and what a linear classifier makes of them."""

from __future__ import annotations

import warnings

import pytest
import torch
from sklearn.svm import LinearSVC

import memgen
from memgen.core.batch import Batch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.classification import GRID, PAPER, choose, classify, svm
from memgen.tasks.features import features
from memgen.training.statistics import collect_statistics
from tests.exact import linear_gaussian


def test_the_posterior_mean_is_exact_where_it_is_known() -> None:
    """Linear-Gaussian with an exact encoder: E[z|x] is linear in x, and zero at the mean of x."""
    exact = linear_gaussian(1)
    found = features(exact.model, Batch.of(exact.mean.expand(3, -1)))
    torch.testing.assert_close(found.mean, torch.zeros(3, 3), atol=1e-5, rtol=0)
    assert (found.last >= 0).all()  # after the ReLU


def test_features_depend_on_the_row_alone() -> None:
    model = build(Recipe().override(["model.hidden=[12, 8]", "model.latent=3"]), 6)
    x = torch.rand(1500, 6)
    collect_statistics(model, Batch.of(x), stochastic=True)
    whole, part = features(model, Batch.of(x)), features(model, Batch.of(x[1400:]))
    torch.testing.assert_close(whole.last[1400:], part.last)
    torch.testing.assert_close(whole.mean[1400:], part.mean)
    assert whole.last.shape == (1500, 8)
    bare = build(Recipe().override(["model.hidden=[]", "model.latent=3"]), 6)
    assert features(bare, Batch.of(x)).last.equal(features(bare, Batch.of(x)).mean)


def test_the_machine_is_the_papers() -> None:
    torch.manual_seed(0)
    x, y = torch.randn(200, 5), torch.randint(0, 3, (200,))
    machine, _ = svm(x, y, PAPER)
    assert pytest.approx(1 / (1e-4 * 200)) == machine.C
    assert machine.multi_class == "crammer_singer"
    assert not machine.fit_intercept
    own = LinearSVC(multi_class="crammer_singer", fit_intercept=False, C=50.0, max_iter=20_000, random_state=0)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        assert (own.fit(x, y).predict(x) == machine.predict(x)).all()


def test_regularisation_is_chosen_on_validation_rows() -> None:
    torch.manual_seed(0)
    centres = torch.randn(4, 10)
    y = torch.randint(0, 4, (300,))
    x = centres[y] + 1.5 * torch.randn(300, 10)
    train, valid = (x[:200], y[:200]), (x[200:], y[200:])
    best, accuracies = choose(train, valid)
    assert accuracies[best] == max(accuracies.values())
    assert set(accuracies) == set(GRID)
    result = classify(train, valid, best)
    assert result.accuracy == accuracies[best]
    assert pytest.approx(1 / (best * 200)) == result.C
    assert 0 < result.standard_error < 0.06


def test_features_of_digits_can_be_classified() -> None:
    recipe = Recipe.named("digits-vae").override(["training.epochs=5", "training.evaluate_every=0"])
    model, data = build(recipe), memgen.dataset("digits")
    for _ in memgen.fit(model, data, recipe):
        pass
    train, test = (features(model, Batch.of(data.rows(split))).last for split in ("train", "test"))
    assert classify((train, data.labels["train"]), (test, data.labels["test"])).accuracy > 0.9
