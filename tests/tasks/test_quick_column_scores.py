"""log p of a column given the others, held to closed forms."""

from __future__ import annotations

import pytest
import torch

from memgen.core.batch import Batch
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.columns import quick_column_scores
from tests.exact import linear_gaussian


def conditional(mean: torch.Tensor, covariance: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
    """log N(x_d | x_-d) of every d, from the precision matrix P: variance 1 / P_dd, residual (P (x - m))_d / P_dd."""
    precision = covariance.double().inverse()
    diagonal = precision.diagonal()
    residual = (x - mean).double() @ precision / diagonal
    return torch.distributions.Normal(torch.zeros(5).double(), diagonal**-0.5).log_prob(residual)


@pytest.mark.parametrize("levels", [1, 2])
def test_columns_given_the_others_have_their_gaussian_density(levels: int) -> None:
    exact = linear_gaussian(levels, off=0.1)
    x = exact.sample(6)
    x[0, 2] += 4.0  # an unusual column
    scores = quick_column_scores(exact.model, Batch(x), 6000)
    expected = conditional(exact.mean, exact.covariance, x)
    assert (scores - expected).abs().max() < 0.25
    assert int(expected[0].argmin()) == int(scores[0].argmin()) == 2


def test_missing_columns_count_as_unknown() -> None:
    """With all but two columns missing, log p(a | b) is that of the two-dimensional marginal."""
    exact = linear_gaussian()
    x = exact.sample(1)
    x[0, 2:] = torch.nan
    scores = quick_column_scores(exact.model, Batch.of(x), 6000)
    joint = torch.distributions.MultivariateNormal(exact.mean[:2], exact.covariance[:2, :2]).log_prob(x[0, :2])
    for d in (0, 1):
        other = torch.distributions.Normal(exact.mean[1 - d], exact.covariance[1 - d, 1 - d].sqrt())
        assert float(scores[0, d]) == pytest.approx(float(joint - other.log_prob(x[0, 1 - d])), abs=0.1)
    assert scores[0, 2:].isnan().all()


def test_scores_depend_on_the_row_alone() -> None:
    exact = linear_gaussian()
    x = exact.sample(20)
    together = quick_column_scores(exact.model, Batch(x), 200)
    alone = quick_column_scores(exact.model, Batch(x[17:18]), 200, keys=[17])
    assert (together[17] - alone[0]).abs().max() < 1e-3


def test_very_wide_rows_are_refused() -> None:
    model = build(Recipe().override(["model.hidden=[]", "model.norm=none"]), columns=500)
    with pytest.raises(MemgenError, match="up to 200"):
        quick_column_scores(model, Batch(torch.zeros(1, 500)))
