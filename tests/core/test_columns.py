"""Likelihoods of columns: distributions in the user's units, whose draws follow them."""

from __future__ import annotations

import math
from functools import partial
from typing import cast

import numpy as np
import pytest
import torch
from scipy import integrate, stats

from memgen.core.likelihoods import Count, DiscretisedLogistic, Factorised, Mixed, Positive, Real, check_values, draw
from memgen.core.likelihoods.count import NegativeBinomialColumns
from memgen.core.likelihoods.pixels import TOP, DiscretisedLogisticColumns
from memgen.core.model import Batch
from memgen.data.dataset import Dataset
from memgen.errors import MemgenError
from memgen.tasks.density import log_likelihood
from memgen.training.prepare import adapt, prepare
from tests.core.tables import adapted, small, table


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
    """log p of x in metres and of 100 x in centimetres differ by log 100 per real or positive column, with equal z."""
    x = table()
    scaled = x.clone()
    scaled[:, [0, 4, 5]] *= 100
    found = []
    for rows in (x, scaled):
        model, recipe = small()
        adapt(prepare(recipe, Dataset("table", rows), model=model))
        found.append(log_likelihood(model.eval(), Batch.of(rows), 20, defensive=False).log_p)
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
