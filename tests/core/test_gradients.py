"""Gradient estimators against the plain one and the exact one."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from memgen.core.layers import BatchNorm
from memgen.core.model import DGM, Batch
from memgen.core.objective import (
    CHOOSING,
    ESTIMATORS,
    Bound,
    _fixed_q,
    elbo,
    importance,
    plain,
)
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from tests.core.tiny import tiny

GROUPS, DRAWS = 30, 2000


def mean_gradients(model: DGM, name: str, bound: Bound, K: int, beta: float = 1.0) -> tuple[Tensor, Tensor]:
    """Mean gradient and its standard error over GROUPS x DRAWS draws of the noise, all parameters in one vector."""
    x = torch.tensor([[1.0, 0.0, 1.0]]).expand(DRAWS, 3)
    own = torch.Generator().manual_seed(10 * K + list(ESTIMATORS).index(name))
    found = []
    for _ in range(GROUPS):
        noise = model.noise(K + (name in CHOOSING), DRAWS, own)
        surrogate = ESTIMATORS[name](model, Batch(x), noise, bound, beta).surrogate.mean()
        grads = torch.autograd.grad(surrogate, list(model.parameters()))
        found.append(torch.cat([grad.flatten() for grad in grads]))
    stacked = torch.stack(found).double()
    return stacked.mean(0), stacked.std(0) / GROUPS**0.5


def deviation(model: DGM, name: str, bound: Bound, K: int, beta: float = 1.0) -> dict[str, Tensor]:
    """(mean gradient - plain's) / standard error, per entry, of Q's and P's parameters."""
    theirs, their_error = mean_gradients(model, name, bound, K, beta)
    plains, error = mean_gradients(model, "plain", bound, K, beta)
    z = (theirs - plains) / (their_error**2 + error**2).sqrt().clamp_min(1e-9)
    in_q = sum(parameter.numel() for parameter in model.q.parameters())
    return {"q": z[:in_q].abs(), "p": z[in_q:].abs()}


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(
    ("name", "bound", "K"),
    [
        ("stl", elbo, 1),
        ("stl", importance, 1),
        ("stl", elbo, 4),
        ("dreg", importance, 1),
        ("dreg", importance, 4),
        ("single", importance, 4),
        ("single-shared", importance, 4),
    ],
)
def test_estimator_has_the_expectation_of_the_plain_gradient(levels: int, name: str, bound: Bound, K: int) -> None:
    z = deviation(tiny(levels), name, bound, K)
    assert z["q"].max() < 4.5
    assert z["p"].max() < 4.5


@pytest.mark.parametrize(("name", "bound"), [("stl", elbo), ("dreg", importance), ("single", importance)])
def test_estimators_stay_unbiased_while_the_kl_term_is_warmed_up(name: str, bound: Bound) -> None:
    z = deviation(tiny(), name, bound, 4, beta=0.4)
    assert z["q"].max() < 4.5
    assert z["p"].max() < 4.5


@pytest.mark.parametrize("levels", [1, 2])
def test_stl_is_biased_for_q_under_the_importance_bound_with_several_samples(levels: int) -> None:
    z = deviation(tiny(levels), "stl", importance, 4)
    assert z["q"].max() > 15  # far beyond chance: this is why memgen warns
    assert z["p"].max() < 4.5


def test_plain_gradient_against_the_exact_one() -> None:
    """One binary pixel and one z: the ELBO and its gradient by quadrature over the noise, in float64."""
    model = build(
        Recipe().override(["model.hidden=[2]", "model.latent=1", "model.norm=none", "training.seed=1"]), 1
    ).double()
    eps = torch.linspace(-9, 9, 40_001, dtype=torch.float64)  # ReLU has a kink, so no Gauss rule
    mass = torch.softmax(-0.5 * eps**2, 0)
    x = torch.ones(1, 1, dtype=torch.float64)
    exact = (mass * model(Batch(x), (eps.view(-1, 1, 1),)).log_w[:, 0]).sum()
    wanted = torch.cat([grad.flatten() for grad in torch.autograd.grad(exact, list(model.parameters()))])
    draws = torch.randn(200, 500, 1, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    found = []
    for part in draws.split(10):
        surrogate = plain(model, Batch(x.expand(500, 1)), (part,), elbo).surrogate.mean()
        found.append(torch.cat([g.flatten() for g in torch.autograd.grad(surrogate, list(model.parameters()))]))
    stacked = torch.stack(found)
    error = stacked.std(0) / len(found) ** 0.5
    assert ((stacked.mean(0) - wanted).abs() < 4.5 * error + 1e-9).all()


def test_at_one_sample_dreg_is_stl_and_p_gets_the_plain_gradient() -> None:
    model = tiny(2)
    batch, noise = Batch(torch.ones(5, 3)), model.noise(1, 5, torch.Generator().manual_seed(0))
    grads = {
        name: torch.autograd.grad(
            estimator(model, batch, noise, importance, 1.0).surrogate.sum(), list(model.parameters())
        )
        for name, estimator in ESTIMATORS.items()
        if name not in CHOOSING
    }
    in_q = len(list(model.q.parameters()))
    for a, b in zip(grads["dreg"], grads["stl"], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)
    for a, b in zip(grads["dreg"][in_q:], grads["plain"][in_q:], strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("estimator", ["stl", "dreg"])
def test_no_row_reaches_others_through_batch_norm_with_more_than_its_weight(estimator: str) -> None:
    """Q's gradient is that of sum_k weight_k log w_k, paths through the shared statistics included: a sample whose
    weight is next to nothing, but whose own gradient may be huge, has next to no part in it.
    """
    model = build(Recipe().override(["model.hidden=[6, 5]", "model.latent=2", "training.seed=5"]), 3).double().train()
    noise = model.noise(3, 8, torch.Generator().manual_seed(0))[0].double()
    batch, q = Batch(torch.eye(3).repeat(3, 1)[:8].double()), list(model.q.parameters())
    inference, _ = _fixed_q(model, batch, (noise,))
    v = torch.softmax(inference.log_w.detach(), 0)
    weights = v if estimator == "stl" else v**2
    surrogate = ESTIMATORS[estimator](model, batch, (noise,), importance, 1.0).surrogate
    wanted, found = (
        torch.autograd.grad(value.sum(), q, materialize_grads=True)  # batch norm takes biases away
        for value in (weights * inference.log_w, surrogate)
    )
    for a, b in zip(found, wanted, strict=True):
        torch.testing.assert_close(a, b)


def test_dreg_has_less_noise_for_q_than_plain() -> None:
    model = tiny()
    in_q = sum(parameter.numel() for parameter in model.q.parameters())
    ratio = {}
    for K in (4, 32):
        errors = {name: mean_gradients(model, name, importance, K)[1][:in_q].norm() for name in ("plain", "dreg")}
        ratio[K] = errors["dreg"] / errors["plain"]
    assert ratio[32] < ratio[4] < 0.7  # and the more so the larger K is


def test_stl_has_no_variance_where_q_is_exact() -> None:
    from tests.exact import linear_gaussian

    exact = linear_gaussian(1, "none")
    batch, noise = Batch(exact.sample(6)), exact.model.noise(1, 6, torch.Generator().manual_seed(0))
    q = list(exact.model.q.parameters())
    for name, small in (("stl", True), ("plain", False)):
        surrogate = ESTIMATORS[name](exact.model, batch, noise, elbo, 1.0).surrogate.sum()
        size = max(
            float(grad.abs().max()) for grad in torch.autograd.grad(surrogate, q, allow_unused=True) if grad is not None
        )
        assert (size < 1e-3) == small, (name, size)


@pytest.mark.parametrize(("name", "instead"), [("dreg", "stl"), ("single", "plain"), ("single-shared", "plain")])
def test_estimators_of_the_importance_bound_refuse_the_elbo(name: str, instead: str) -> None:
    model = tiny()
    with pytest.raises(ValueError, match=instead):
        ESTIMATORS[name](model, Batch(torch.ones(2, 3)), model.noise(2, 2, torch.Generator()), elbo, 1.0)


def normed() -> tuple[DGM, Batch, tuple[Tensor, ...]]:
    model = build(Recipe().override(["model.hidden=[8, 7]", "model.latent=3", "model.slots=[4, 3]"]), 5).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    batch = Batch((torch.rand(30, 5, generator=torch.Generator().manual_seed(2)) < 0.5).float())
    return model, batch, model.noise(5, 30, torch.Generator().manual_seed(3))


def test_a_single_sample_is_chosen_by_its_weight() -> None:
    """The noise of the choice is uniform, and sample k is taken where it falls into k's share of the weights."""
    model, batch, noise = normed()
    log_w = model(batch, tuple(level[:-1] for level in noise)).log_w
    shares = torch.softmax(log_w, 0).cumsum(0)
    for u in (0.02, 0.4, 0.97):
        noise[0][-1, :, 0] = torch.special.ndtri(torch.tensor(u))
        estimate = ESTIMATORS["single-shared"](model, batch, noise, importance, 1.0)
        k = (shares < u).sum(0)
        # With the statistics of all K*B rows the chosen rows have the very log w by which they were chosen.
        torch.testing.assert_close(estimate.surrogate, log_w.gather(0, k.unsqueeze(0))[0], atol=1e-4, rtol=1e-4)
        assert estimate.inference.log_p_x.shape == (1, 30)


def test_a_single_sample_with_its_own_statistics_is_a_pass_at_one_sample() -> None:
    model, batch, noise = normed()
    estimate = ESTIMATORS["single"](model, batch, noise, importance, 1.0)
    z = estimate.inference.z[0][0]
    encoding = model.encode(batch)
    eps = ((z - encoding.q.mean) * torch.exp(-0.5 * encoding.q.log_variance)).detach()
    assert ((eps - noise[0][:-1]).abs().amax(-1) < 1e-4).any(0).all()  # every row's noise is one of its K
    at_one = plain(model, batch, (eps.unsqueeze(0),), importance)
    torch.testing.assert_close(estimate.surrogate, at_one.surrogate, atol=1e-4, rtol=1e-4)


def test_shared_statistics_are_gone_afterwards_even_after_an_error() -> None:
    model, batch, noise = normed()
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]

    def fail(*arguments: object) -> None:
        raise RuntimeError("stop")

    ESTIMATORS["single-shared"](model, batch, noise, importance, 1.0)
    handle = model.likelihood.register_forward_hook(fail)
    with pytest.raises(RuntimeError, match="stop"):
        ESTIMATORS["single-shared"](model, batch, noise, importance, 1.0)
    handle.remove()
    assert all(norm.training and norm.mean.isnan().all() for norm in norms)
