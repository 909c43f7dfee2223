"""Bounds in their order, and the local reconstruction."""

from __future__ import annotations

import itertools

import pytest
import torch
from torch import Tensor

from memgen.core.model import Batch
from memgen.core.objective import (
    CHOOSING,
    ESTIMATORS,
    elbo,
    importance,
    local_reconstruction,
    loss,
    plain,
)
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from tests.core.tiny import tiny


def test_bounds_rise_with_k_in_the_mean() -> None:
    model = tiny()
    x = torch.tensor([[1.0, 0.0, 1.0]]).expand(4000, 3)
    log_w = model(Batch(x), model.noise(16, 4000, torch.Generator().manual_seed(0))).log_w
    values = [elbo(log_w).mean()] + [importance(log_w.unflatten(0, (-1, K))[0]).mean() for K in (2, 4, 8, 16)]
    assert all(a < b for a, b in itertools.pairwise(values)), values
    torch.testing.assert_close(importance(log_w[:1]), elbo(log_w[:1]))


@pytest.mark.parametrize("name", list(ESTIMATORS))
def test_all_estimators_report_the_same_bound_and_beta_weighs_the_kl_term(name: str) -> None:
    model = tiny(2)
    batch, noise = Batch(torch.ones(5, 3)), model.noise(4, 5, torch.Generator().manual_seed(0))
    three = tuple(level[:3] for level in noise)
    inference = model(batch, three)
    given = noise if name in CHOOSING else three
    torch.testing.assert_close(
        ESTIMATORS[name](model, batch, given, importance, 0.25).bound, importance(inference.log_w)
    )
    torch.testing.assert_close(inference.tempered(0.0), inference.log_p_x)
    halfway = (inference.log_p_x + inference.log_w) / 2
    torch.testing.assert_close(inference.tempered(0.5), halfway)


@pytest.mark.parametrize("norm", ["batch", "layer", "none"])
def test_local_reconstruction_is_the_formula(norm: str) -> None:
    """Written out: standardised outputs of P, averaged over samples, against Q's standardised pre-activations."""
    recipe = Recipe().override(
        ["model.hidden=[[5, 4], [3]]", "model.latent=[2, 2]", "model.slots=[[3, 0], [2]]", f"model.norm={norm}"]
    )
    model = build(recipe, 6)
    x = (torch.rand(11, 6) < 0.5).float()
    inference = model(Batch(x), model.noise(4, 11, torch.Generator().manual_seed(0)))

    def by_hand(h: Tensor) -> Tensor:
        rows = h.reshape(-1, h.shape[-1])
        rows = (rows - rows.mean(0)) / (rows.var(0, correction=0) + 1e-5).sqrt()
        return rows.reshape(-1, 11, h.shape[-1]).mean(0)

    weights = ((0.1, 0.2), (0.3,))
    expected = torch.zeros(())
    for level, lambdas in enumerate(weights):
        for i, weight in enumerate(lambdas):
            p, q = inference.down[level][i].output, inference.up[level][i].pre
            assert p.shape[-1] == q.shape[-1] == ((5, 4), (3,))[level][i]
            expected = expected + weight * ((by_hand(p) - by_hand(q)) ** 2).mean()
    torch.testing.assert_close(local_reconstruction(inference, weights), expected, atol=1e-5, rtol=1e-5)


def test_at_batch_norm_q_is_compared_with_its_own_normalised_pre_activation() -> None:
    model = build(Recipe().override(["model.hidden=[5]", "model.latent=2"]), 6)
    x = torch.rand(30, 6)
    inference = model(Batch(x), model.noise(1, 30, torch.Generator().manual_seed(0)))
    norm = model.q[0].layers[0].norm
    from memgen.core.objective import standardised_mean

    torch.testing.assert_close(
        norm.gamma * standardised_mean(inference.up[0][0].pre) + norm.beta, norm(inference.up[0][0].pre)
    )


def test_local_reconstruction_reaches_both_nets() -> None:
    model = build(Recipe().override(["model.hidden=[5]", "model.latent=2", "model.slots=[3]"]), 6)
    inference = model(Batch(torch.rand(9, 6)), model.noise(2, 9, torch.Generator().manual_seed(0)))
    local_reconstruction(inference, ((1.0,),)).backward()
    assert model.q[0].layers[0].linear.weight.grad.abs().max() > 0
    assert model.p[0].layers[0].dense.linear.weight.grad.abs().max() > 0


def test_loss_is_minus_the_bound_plus_the_regulariser() -> None:
    model = tiny()
    batch, noise = Batch(torch.ones(5, 3)), model.noise(3, 5, torch.Generator().manual_seed(0))
    estimate = plain(model, batch, noise, importance)
    extra = local_reconstruction(estimate.inference, ((0.1,),))
    assert extra > 0
    assert loss(estimate.surrogate, extra).item() == pytest.approx(-estimate.bound.mean().item() + extra.item())
    for none in ((), ((),), ((0.0,),)):
        assert local_reconstruction(estimate.inference, none).item() == 0
