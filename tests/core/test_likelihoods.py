"""Every likelihood is a probability distribution: it sums or integrates to one, and its draws follow it."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from memgen.core.likelihoods import Bernoulli, Categorical, Gaussian, check_values, draw
from memgen.errors import MemgenError


def test_bernoulli_decoder_sums_to_one_over_all_x() -> None:
    torch.manual_seed(0)
    p = Bernoulli(3, 5)(3 * torch.randn(4, 3))
    space = torch.tensor(list(itertools.product([0.0, 1.0], repeat=5)))
    total = torch.stack([p.log_prob(x).exp() for x in space]).sum(0)
    torch.testing.assert_close(total, torch.ones(4))


def test_categorical_decoder_sums_to_one_over_all_x() -> None:
    torch.manual_seed(0)
    p = Categorical(3, 3, 4)(torch.randn(6, 3))
    space = torch.tensor(list(itertools.product(range(4), repeat=3))).float()
    total = torch.stack([p.log_prob(x).exp() for x in space]).sum(0)
    torch.testing.assert_close(total, torch.ones(6))


def test_gaussian_decoder_is_the_normal_density_above_its_floor() -> None:
    torch.manual_seed(0)
    head = Gaussian(3, 2, floor=0.4)
    h = 3 * torch.randn(50, 3)
    p = head(h)
    sigma = p.log_variance.mul(0.5).exp()
    assert sigma.min() >= 0.4
    torch.testing.assert_close(sigma**2, head.log_variance(h).exp() + 0.4**2)
    x = torch.randn(50, 2)
    torch.testing.assert_close(p.log_probs(x), torch.distributions.Normal(p.mean, sigma).log_prob(x))
    with torch.no_grad():
        head.log_variance.bias.fill_(-200.0)
    assert head(h).log_probs(head(h).mean).max() <= -math.log(0.4 * math.sqrt(2 * math.pi)) + 1e-4


def test_extreme_logits_stay_finite() -> None:
    head = Bernoulli(1, 1)
    with torch.no_grad():
        head.logits.weight.fill_(1.0)
    log_p = head(torch.tensor([[-200.0], [200.0]])).log_probs(torch.tensor([[0.0], [1.0]]))
    torch.testing.assert_close(log_p, torch.zeros(2, 1))
    assert head(torch.tensor([[200.0]])).log_prob(torch.tensor([[0.0]])).item() == pytest.approx(-200)


@pytest.mark.parametrize("head", [Bernoulli(3, 2), Gaussian(3, 2, floor=0.1), Categorical(3, 2, 5)])
def test_draws_have_the_stated_mean(head: torch.nn.Module) -> None:
    torch.manual_seed(0)
    p = head(torch.randn(1, 3).expand(20_000, 3))
    x = draw(p, p.mean.shape, torch.Generator().manual_seed(1))
    error = x.std(0) / 20_000**0.5
    assert ((x.mean(0) - p.mean[0]).abs() < 5 * error).all()
    check_values(head, x)  # type: ignore[arg-type]
    assert x.equal(draw(p, p.mean.shape, torch.Generator().manual_seed(1)))


def test_categorical_draws_follow_the_probabilities_and_the_mode_is_the_likeliest() -> None:
    torch.manual_seed(0)
    p = Categorical(3, 1, 4)(torch.randn(1, 3).expand(40_000, 3))
    x = draw(p, p.mean.shape, torch.Generator().manual_seed(1)).squeeze(-1)
    frequency = torch.bincount(x.long(), minlength=4) / len(x)
    probability = torch.softmax(p.logits[0, 0], -1)
    torch.testing.assert_close(frequency, probability.detach(), atol=0.015, rtol=0)
    assert p.mode[0].item() == frequency.argmax().item()


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (torch.zeros(0, 2), "at least one row"),
        (torch.zeros(3, 1), "1 columns, the model has 2"),
        (torch.tensor([[0.0, 1.0], [0.0, torch.nan]]), "row 1, column 1"),
        (torch.tensor([[0.0, torch.inf]]), "row 0, column 1"),
        (torch.tensor([[0.0, 2.0]]), r"values in \[0, 1\]"),
        (torch.tensor([[0.0, 0.5]]), "binarised"),
    ],
)
def test_values_that_cannot_be_scored_are_refused(x: torch.Tensor, message: str) -> None:
    with pytest.raises(MemgenError, match=message):
        check_values(Bernoulli(3, 2), x)


def test_categories_out_of_range_are_refused() -> None:
    for bad in (-1.0, 5.0, 0.5):
        with pytest.raises(MemgenError, match="whole numbers from 0 to 4"):
            check_values(Categorical(3, 1, 5), torch.tensor([[bad]]))
