"""Every kind of column is a probability distribution in stated units, and its draws have the range of the data."""

from __future__ import annotations

import math
from typing import cast

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import Described, Factorised, Mixed
from memgen.core.likelihoods.heavy import StudentColumns
from memgen.core.likelihoods.integer import IntegerColumns
from memgen.core.likelihoods.mixed import ANSWERS, KINDS

SCALE = 250.0
COLUMNS = [
    Described("real", scale=SCALE, low=-1.0, high=1.5),
    Described("positive", scale=SCALE, low=0.5, high=4.0),
    Described("heavy_tailed", scale=SCALE, low=-3.0, high=9.0),
    Described("zero_inflated", scale=SCALE, low=-1e-9, high=0.8),
    Described("count", low=-0.5, high=3.5),
    Described("integer", scale=SCALE, step=0.25, low=-2.125, high=1.125),
    Described("ordinal", 5),
    Described("binary", 2),
    Described("categorical", 3),
]
"""One column of each kind."""
KIND = [column.kind for column in COLUMNS]


def head_and_features(rows: int = 3) -> tuple[Mixed, Tensor]:
    torch.manual_seed(0)
    head = Mixed(4, len(COLUMNS), COLUMNS).double().eval()
    return head, torch.randn(rows, 4, dtype=torch.float64)


def of_column(kind: str, x: Tensor, head: Mixed, h: Tensor) -> Tensor:
    """log p of values of one column, given the same features."""
    rows = torch.ones(len(x), len(COLUMNS), dtype=torch.float64)
    rows[:, KIND.index(kind)] = x
    return cast(Factorised, head(h.expand(len(x), 4))).log_probs(rows)[:, KIND.index(kind)].detach()


def test_every_kind_is_tried() -> None:
    assert set(KIND) == set(KINDS) == set(ANSWERS)


@pytest.mark.parametrize("kind", ["real", "positive", "heavy_tailed", "zero_inflated"])
def test_densities_integrate_to_one_in_the_users_units(kind: str) -> None:
    """By the trapezoidal rule in t, of x = e^t or x = sinh t, which reaches far into the tails."""
    head, h = head_and_features(1)
    t = torch.linspace(-25, 25, 100_001).double()
    x, slope = (t.exp(), t.exp()) if kind in ("positive", "zero_inflated") else (t.sinh(), t.cosh())
    total = float(torch.trapezoid(of_column(kind, x, head, h).exp() * slope * SCALE, t))
    atom = math.exp(float(of_column(kind, torch.zeros(1), head, h))) if kind == "zero_inflated" else 0.0
    assert total + atom == pytest.approx(1, abs=1e-7)
    assert (kind == "zero_inflated") == (atom > 0)


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("integer", torch.arange(-40_000, 40_000) * 0.25),
        ("count", torch.arange(0, 20_000).float()),
        ("ordinal", torch.arange(5).float()),
        ("binary", torch.arange(2).float()),
        ("categorical", torch.arange(3).float()),
    ],
)
def test_probabilities_sum_to_one(kind: str, values: Tensor) -> None:
    head, h = head_and_features(1)
    assert float(of_column(kind, values.double(), head, h).exp().sum()) == pytest.approx(1, abs=1e-9)


def test_distribution_functions_are_sums_and_integrals_and_quantiles_are_their_inverse() -> None:
    head, h = head_and_features(1)
    p = head(h.expand(400, 4))
    u = torch.rand(400, len(COLUMNS), generator=torch.Generator().manual_seed(1)).double()
    x = p.icdf(u)
    tiny = 1e-9
    assert bool((p.cdf(x) >= u - tiny).all())
    steps = {"integer": 0.25, "count": 1.0, "ordinal": 1.0}
    lower = p.cdf(x - torch.tensor([steps.get(kind, 1e-6) for kind in KIND]).double())
    assert bool((lower <= u + 1e-4).all())  # x is the smallest value with P(X <= x) >= u
    for place in (KIND.index("integer"), KIND.index("ordinal"), KIND.index("count")):
        mass = p.log_probs(x)[:, place].exp()
        torch.testing.assert_close((p.cdf(x) - lower)[:, place], mass, atol=1e-9, rtol=0)


def test_students_distribution_is_scipys() -> None:
    t = torch.linspace(-30, 30, 61).double()
    p = StudentColumns(torch.zeros(1).double(), torch.zeros(1).double())
    truth = stats.t(4)
    np.testing.assert_allclose(p.log_probs(t.unsqueeze(1))[:, 0], truth.logpdf(t), rtol=1e-12)
    np.testing.assert_allclose(p.cdf(t.unsqueeze(1))[:, 0], truth.cdf(t), atol=1e-14)
    u = torch.linspace(0.001, 0.999, 99).double().unsqueeze(1)
    np.testing.assert_allclose(p.icdf(u)[:, 0], truth.ppf(u[:, 0]), rtol=1e-9, atol=1e-12)
    assert p.cdf(torch.tensor([[torch.inf], [-torch.inf]]).double()).flatten().tolist() == [1, 0]


def test_probabilities_of_whole_numbers_keep_their_digits_in_single_precision() -> None:
    """Steps a million times smaller than the deviation, and values far out."""
    x = torch.tensor([[0.0], [3.0], [-40.0], [200.0]])
    single = IntegerColumns(torch.zeros(1), torch.ones(1), torch.tensor([1e-6])).log_probs(x)
    double = IntegerColumns(*(torch.ones(1).double() * v for v in (0, 1, 1e-6))).log_probs(x.double())
    torch.testing.assert_close(single.double(), double, rtol=1e-6, atol=1e-6)


def test_draws_and_only_draws_end_where_the_data_end() -> None:
    head, h = head_and_features(1)
    p = head(h.expand(5000, 4))
    u = torch.rand(5000, len(COLUMNS), generator=torch.Generator().manual_seed(2)).double()
    x = p.sample(u)
    low, high = torch.tensor([column[-2:] for column in COLUMNS]).double().T
    assert bool(((x >= low) & (x <= high)).all())
    outside = (p.icdf(u) < low) | (p.icdf(u) > high)
    ranged = torch.tensor([math.isfinite(column.low) for column in COLUMNS])
    assert outside.any(0).tolist() == ranged.tolist()
    # Inside the range the draws have the same distribution, up to its probability there.
    place = KIND.index("heavy_tailed")
    inside = p.cdf(low)[0, place] + u[:, place] * (p.cdf(high) - p.cdf(low))[0, place]
    torch.testing.assert_close(p.cdf(x)[:, place], inside)
    x[:, place] = 1e4
    assert bool(p.log_probs(x)[:, place].isfinite().all())


def test_units_are_a_constant_that_training_does_not_see() -> None:
    head, h = head_and_features()
    x = torch.ones(3, len(COLUMNS)).double()
    seen = head(h).log_probs(x)
    trained = head.train()(h).log_probs(x)
    densities = torch.tensor([kind in ("real", "positive", "heavy_tailed", "zero_inflated") for kind in KIND])
    torch.testing.assert_close(trained - seen, (densities * math.log(SCALE)).expand(3, -1).double())
    missing = torch.ones(3, len(COLUMNS), dtype=torch.bool)
    missing[0, 0] = False
    assert (head.log_unit(Batch(x, missing)) / math.log(SCALE)).tolist() == pytest.approx([3, 4, 4])
    x[:, KIND.index("zero_inflated")] = 0  # the probability of a zero has no unit
    assert (head.log_unit(Batch(x)) / math.log(SCALE)).tolist() == pytest.approx([3, 3, 3])


def test_answers_are_means_of_numbers_and_medians_of_ordered_levels() -> None:
    head, h = head_and_features(1)
    u = torch.rand(200_000, len(COLUMNS), generator=torch.Generator().manual_seed(3)).double()
    with torch.no_grad():
        answer = head.decide(head.expected(head(0.3 * h)))[0]
        x = head(0.3 * h.expand(len(u), 4)).icdf(u)
    for kind in ("real", "heavy_tailed", "zero_inflated", "count", "integer"):
        place = KIND.index(kind)
        error = float(x[:, place].std()) / len(u) ** 0.5
        assert float(answer[place]) == pytest.approx(float(x[:, place].mean()), abs=5 * error + 1e-6), kind
    assert float(answer[KIND.index("ordinal")]) == float(x[:, KIND.index("ordinal")].median())


def test_a_linear_start_gives_every_kind_its_mean() -> None:
    """E[encode(x)] = mean + weight h with a small deviation, to first order around h = 0."""
    columns = [Described("integer", step=0.01), Described("heavy_tailed"), Described("ordinal", 9)]
    torch.manual_seed(0)
    head = Mixed(2, 3, columns).double()
    rows = torch.stack([torch.linspace(-3, 3, 50), torch.linspace(-2, 2, 50).sinh(), torch.arange(50) % 9], 1)
    head.adapt(lambda: (rows,))
    weight, mean = torch.randn(3, 2).double(), torch.tensor([0.2, -0.3, 0.1]).double()
    head.start(weight, mean, 0.2)
    h = torch.tensor([[0.05, -0.1]]).double()
    u = torch.rand(100_000, 3, generator=torch.Generator().manual_seed(0)).double()
    y = head.encode(head(h.expand(len(u), 2)).icdf(u))
    torch.testing.assert_close(y.mean(0), mean + (weight @ h[0]), atol=0.03, rtol=0)
    torch.testing.assert_close(y.std(0), torch.full((3,), 0.2).double(), atol=0.05, rtol=0)
