"""Missing values: against the exact conditional law, and what must hold for every method."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from itertools import islice

import pytest
import torch
from torch import Tensor

from memgen.core.model import DGM, Batch
from memgen.core.noise import RowNoise
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.imputation import AUTHORS_BATCH, METHODS, Settings, imputations, impute, join
from memgen.tasks.imputation.methods import importance
from memgen.tasks.patterns import missing_entries
from memgen.training.statistics import collect_statistics
from tests.exact import LinearGaussian, linear_gaussian

pytestmark = pytest.mark.usefixtures("long_loop")

COPIES = 1000
AUTHORS = Settings(batch_size=AUTHORS_BATCH, batch_statistics=True)
MASKS = torch.tensor([[0, 0, 1, 1, 0], [1, 1, 1, 1, 0], [1, 1, 1, 1, 1], [0, 0, 0, 0, 0]], dtype=torch.bool)


def conditional(exact: LinearGaussian, x: Tensor, missing: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and covariance of x_mis given x_obs under N(mean, covariance)."""
    m, o = missing.nonzero().flatten(), (~missing).nonzero().flatten()
    S = exact.covariance
    gain = S[m][:, o] @ torch.linalg.inv(S[o][:, o])
    return exact.mean[m] + gain @ (x[o] - exact.mean[o]), S[m][:, m] - gain @ S[o][:, m]


def check_law(exact: LinearGaussian, method: str, steps: int, keep: int, copies: int = COPIES) -> None:
    """One state of each of many chains on the same row: their mean and covariance are the exact ones."""
    x = exact.sample(1)[0] + 1.0
    observed = ~MASKS[:3].repeat_interleave(copies, 0)
    batch = Batch(x.expand(3 * copies, -1).where(observed, torch.nan), observed)
    result = impute(exact.model, batch, method, steps=steps, keep=keep, draws=1, batch_size=3 * copies)
    for missing, draws in zip(MASKS, result.draws[0].split(copies), strict=False):
        values = draws[:, missing].float()
        mean, covariance = conditional(exact, x, missing)
        error = covariance.diagonal().sqrt() / math.sqrt(copies)
        assert ((values.mean(0) - mean).abs() < 4.5 * error).all(), (values.mean(0) - mean) / error
        if method == "paper":
            continue
        scale = covariance.diagonal().sqrt()
        # A correlation's standard error is at most 1/sqrt(n), a variance's sqrt(2/n).
        off = (values.T.cov().reshape(covariance.shape) - covariance) / torch.outer(scale, scale)
        assert off.abs().max() < 4.5 * math.sqrt(2 / copies), off


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(
    ("method", "steps", "keep"), [("paper", 60, 1), ("gibbs", 60, 1), ("mwg", 60, 1), ("importance", 150, 120)]
)
def test_with_an_exact_encoder_every_method_has_the_exact_law(method: str, steps: int, keep: int, levels: int) -> None:
    check_law(linear_gaussian(levels), method, steps, keep)


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize(("method", "steps", "keep"), [("mwg", 150, 1), ("importance", 450, 420)])
def test_with_a_wrong_encoder_mwg_and_importance_still_have_it(method: str, steps: int, keep: int, levels: int) -> None:
    # Self-normalised weights have a bias of the order of 1/keep; fewer copies cannot see it.
    check_law(linear_gaussian(levels, off=0.2), method, steps, keep, copies=COPIES if method == "mwg" else 400)


def test_with_a_wrong_encoder_gibbs_has_not() -> None:
    """The tests above would notice: the mean of the same chains is off by many standard errors."""
    exact, missing = linear_gaussian(1, off=0.2), MASKS[0]
    x = exact.sample(1)[0] + 1.0
    rows, observed = x.expand(COPIES, -1), (~missing).expand(COPIES, -1)
    values = impute(exact.model, Batch(rows, observed), "gibbs", steps=60, keep=1, draws=1, batch_size=COPIES).draws[0]
    mean, covariance = conditional(exact, x, missing)
    error = covariance.diagonal().sqrt() / math.sqrt(COPIES)
    assert ((values[:, missing].float() - mean).mean(0).abs() / error).max() > 8


@pytest.mark.parametrize("burn", [2, 20])
def test_importance_proposes_from_the_very_mixture_that_its_weights_assume(burn: int) -> None:
    """sum of w over the proposals estimates p(x_obs), row by row, without bias, however many completions propose: a
    completion that is charged for but never proposes, or a part of the prior that never comes, would show.
    """
    exact = linear_gaussian(1, off=0.3)
    missing = torch.tensor([0, 1, 1, 1, 0], dtype=torch.bool)
    x = exact.sample(3)
    model = copy.deepcopy(exact.model).double()
    observed = (~missing).expand(3, -1)
    batch = Batch(x.double(), observed)
    noise = RowNoise(1, range(3), model.latent, 5, torch.device("cpu"))
    with torch.no_grad():
        states = list(islice(importance(model, batch, burn, noise.steps()), burn + 2500))
    log_w = torch.stack([state.log_weight for state in states[burn:]])
    S, m = exact.covariance[~missing][:, ~missing].double(), exact.mean[~missing].double()
    law = torch.distributions.MultivariateNormal(m, S).log_prob(batch.x[:, ~missing])
    ratio = (log_w - law).exp()
    error = ratio.std(0) / math.sqrt(len(ratio))
    assert ((ratio.mean(0) - 1).abs() < 4.5 * error).all(), (ratio.mean(0), error)
    assert error.max() < 0.15


@pytest.mark.parametrize("method", ["gibbs", "mwg", "importance"])
def test_averages_over_states_are_exact_means_and_log_likelihoods(method: str) -> None:
    """The mean over the kept states, and log mean_m p(x_mis|z_m) against the exact conditional density."""
    exact = linear_gaussian(1)
    x = exact.sample(1)[0]
    observed = (~MASKS[0]).expand(COPIES, -1)
    result = impute(exact.model, Batch(x.expand(COPIES, -1), observed), method, steps=160, keep=120, batch_size=COPIES)
    mean, covariance = conditional(exact, x, MASKS[0])
    torch.testing.assert_close(result.mean[:, 2:4].mean(0).float(), mean, atol=0.03, rtol=0)
    law = torch.distributions.MultivariateNormal(mean, covariance)
    assert result.log_p.exp().mean().log().item() == pytest.approx(law.log_prob(x[2:4]).item(), abs=0.05)
    if method == "mwg":
        assert result.accepted.min() > 0.999  # the exact encoder proposes from p(z|x): never refused
    assert result.effective.max() <= 120 * (1 + 1e-9)


def binary_model(levels: int = 1, *more: str) -> tuple[DGM, Tensor]:
    torch.manual_seed(0)
    sizes = [
        ["model.hidden=[12]", "model.latent=3", "model.slots=[5]"],
        ["model.hidden=[[12], [8]]", "model.latent=[3, 2]"],
    ]
    model = build(Recipe().override([*sizes[levels - 1], *more]), columns=6)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.5 * torch.randn_like(parameter))
    x = (torch.rand(40, 6) < 0.4).float()
    collect_statistics(model, Batch.of(x))
    return model.eval(), x


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("levels", [1, 2])
def test_what_holds_for_every_method(method: str, levels: int) -> None:
    model, x = binary_model(levels, *(["model.mask=true"] if METHODS[method].masked else []))
    observed = torch.rand(40, 6, generator=torch.Generator().manual_seed(1)) < 0.5
    observed[0], observed[1] = True, False
    incomplete = x.where(observed, torch.nan)
    result = impute(model, Batch(incomplete, observed), method, steps=20, draws=1)
    for completed in (result.mean, result.draws[0]):
        assert completed.isfinite().all()
        assert completed[observed].equal(x[observed].double())
        assert (completed >= 0).all()
        assert (completed <= 1).all()
    assert result.mean[0].equal(x[0].double())
    if method != "paper":
        assert ((result.draws == 0) | (result.draws == 1)).all()
    # The result does not depend on how rows are batched, nor on what stood where a value is missing.
    again = impute(model, Batch(x.where(observed, 77.0), observed), method, steps=20, draws=1, batch_size=7)
    torch.testing.assert_close(again.mean, result.mean, rtol=0, atol=1e-10)
    torch.testing.assert_close(again.draws, result.draws, rtol=0, atol=1e-10)
    few = impute(model, Batch(incomplete[:5], observed[:5]), method, steps=20, draws=1)
    torch.testing.assert_close(few.mean, result.mean[:5], rtol=0, atol=1e-10)
    assert not impute(model, Batch(incomplete, observed), method, steps=20, seed=1).mean.equal(result.mean)
    assert next(model.parameters()).dtype == torch.float32  # the caller's model is left as it was
    assert not model.training


@pytest.mark.parametrize("method", ["mwg", "importance"])
@pytest.mark.parametrize("levels", [1, 2])
def test_on_binary_data_with_a_random_encoder_the_law_is_that_of_exact_enumeration(method: str, levels: int) -> None:
    """p(x_mis|x_obs) of all 8 completions, from p(x) = E p(x|z) over draws of the prior, against the methods' draws."""
    model, x = binary_model(levels)
    missing = torch.tensor([1, 0, 1, 0, 0, 1], dtype=torch.bool)
    all_x = x[3].repeat(8, 1)
    all_x[:, missing] = torch.cartesian_prod(*[torch.tensor([0.0, 1.0])] * 3)
    with torch.no_grad():
        nothing = Batch.unobserved(200_000, 6)
        z = model.prior(model.noise(1, 200_000, torch.Generator().manual_seed(2)), nothing)
        p_x = model.decode((z[0][0],), nothing)
        p = torch.stack([p_x.log_prob(row).exp().mean() for row in all_x])
    p = p / p.sum()
    copies = 2000
    rows, observed = x[3].expand(copies, -1), (~missing).expand(copies, -1)
    result = impute(model, Batch(rows, observed), method, steps=200, keep=150, draws=1, batch_size=copies)
    code = (result.draws[0][:, missing] @ torch.tensor([4.0, 2.0, 1.0]).double()).long()
    frequency = torch.bincount(code, minlength=8) / copies
    error = (p * (1 - p) / copies).sqrt()
    assert ((frequency - p).abs() < 4.5 * error + 0.01).all(), (frequency, p)
    truth = p[int((x[3, missing] @ torch.tensor([4.0, 2.0, 1.0])).item())]
    assert result.log_p.exp().mean().item() == pytest.approx(truth.item(), rel=0.1)


def test_draws_of_a_chain_are_spread_and_draws_of_weighted_states_follow_the_weights() -> None:
    model, x = binary_model()
    observed = torch.zeros(40, 6, dtype=torch.bool)
    result = impute(model, Batch(x, observed), "gibbs", steps=40, keep=20, draws=20)
    assert len(result.draws.flatten(1).unique(dim=0)) > 10
    smooth = impute(model, Batch(x, observed), "gibbs", steps=40, keep=20, draws=20, smooth=True)
    torch.testing.assert_close(smooth.draws.mean(0), smooth.mean)  # all kept states, each once
    weighted = impute(model, Batch(x, observed), "importance", steps=60, keep=50, draws=50, smooth=True)
    assert (weighted.draws.mean(0) - weighted.mean).abs().mean() < 0.05
    # Even where one state has all the weight, completions are draws of their own.
    alone = impute(model, Batch(x, observed), "importance", steps=20, keep=1, draws=1)
    assert ((alone.draws == 0) | (alone.draws == 1)).all()
    few = impute(model, Batch(x, observed), "importance", steps=20, keep=10, draws=10)
    assert all(len(few.draws[:, row].unique(dim=0)) > 1 for row in range(40))


def test_the_default_is_importance_for_the_mean_and_gibbs_for_draws() -> None:
    model, x = binary_model()
    observed = x > 0
    assert impute(model, Batch(x, observed), steps=10).mean.equal(
        impute(model, Batch(x, observed), "importance", steps=10).mean
    )
    drawn = impute(model, Batch(x, observed), steps=10, draws=2)
    assert drawn.draws.equal(impute(model, Batch(x, observed), "gibbs", steps=10, draws=2).draws)


def test_batch_statistics_are_those_of_the_batch() -> None:
    model, x = binary_model()
    observed = missing_entries("rand-0.5", (), 6, 40).logical_not()
    exact = join(list(imputations(model, Batch(x, observed), "paper", Settings(batch_size=AUTHORS_BATCH))))
    batch = join(list(imputations(model, Batch(x, observed), "paper", AUTHORS)))
    halves = join(list(imputations(model, Batch(x, observed), "paper", Settings(batch_size=20, batch_statistics=True))))
    assert not torch.allclose(exact.mean, batch.mean)
    assert not torch.allclose(batch.mean, halves.mean)
    assert not model.training
    with pytest.raises(MemgenError, match="one row alone"):
        list(imputations(model, Batch(x[:1], observed[:1]), "paper", AUTHORS))
    # By hand: the first step, all of whose input is known if nothing is missing.
    everything = torch.ones_like(observed)
    seen: list[Tensor] = []
    model.q[0].layers[0].norm.register_forward_hook(lambda module, inputs, output: seen.append(output))
    list(imputations(model, Batch(x, everything), "paper", Settings(steps=2, batch_statistics=True)))
    pre = model.q[0].layers[0].linear(x).double()
    by_hand = (pre - pre.mean(0)) / torch.sqrt(pre.var(0, correction=0) + 1e-5)
    norm = model.q[0].layers[0].norm
    torch.testing.assert_close(seen[0], by_hand * norm.gamma + norm.beta, atol=1e-4, rtol=1e-4)


def test_batches_of_a_batch_are_near_equal() -> None:
    model, x = binary_model()
    sizes = [len(part.mean) for part in imputations(model, Batch(x, x > 0), "paper", Settings(steps=2, batch_size=39))]
    assert sizes == [20, 20]


def wrong(x: Tensor, observed: Tensor) -> list[tuple[Callable[[], object], str]]:
    model, _ = binary_model()
    half = torch.full_like(x, 0.5)
    return [
        (lambda: impute(model, Batch(x, observed), "gibs"), "did you mean 'gibbs'"),
        (lambda: impute(model, Batch(x, observed), steps=1), "at least 2"),
        (lambda: impute(model, Batch(x, observed), "gibbs", steps=10, keep=11), "between 1 and 10"),
        (lambda: impute(model, Batch(x, observed), "importance", steps=10, keep=10), "between 1 and 9"),
        (lambda: impute(model, Batch(x, observed), steps=10, keep=5, draws=6), "6 draws need"),
        (lambda: impute(model, Batch(half, observed), "mwg"), "0 and 1 only"),
        (lambda: impute(model, Batch(3 * half, observed), "paper"), r"values in \[0, 1\]"),
        (lambda: impute(model, Batch(x.fill_diagonal_(torch.nan), torch.ones_like(observed))), "NaN"),
        (lambda: impute(build(Recipe().override(["model.hidden=[4]"]), 6), Batch(x, observed)), "never collected"),
    ]


@pytest.mark.parametrize("case", range(9))
def test_bad_input_is_refused_in_one_line(case: int) -> None:
    call, words = wrong(torch.ones(4, 6), torch.eye(4, 6, dtype=torch.bool))[case]
    with pytest.raises(MemgenError, match=words) as error:
        call()
    assert "\n" not in str(error.value)


def test_means_are_no_categories() -> None:
    model = build(Recipe().override(["model.hidden=[]", "model.likelihood=categorical", "model.categories=3"]), 4)
    x = torch.randint(0, 3, (5, 4)).float()
    observed = torch.rand(5, 4) < 0.5
    with pytest.raises(MemgenError, match="fills in means"):
        impute(model, Batch(x, observed), "paper")
    for method in ("gibbs", "mwg", "importance"):
        draws = impute(model, Batch(x, observed), method, steps=10, draws=3).draws
        assert set(draws.unique().tolist()) <= {0.0, 1.0, 2.0}


def test_grey_levels_are_for_the_methods_that_fill_in_means() -> None:
    model, _ = binary_model()
    x = torch.rand(5, 6)
    observed = torch.rand(5, 6) < 0.5
    for method in ("paper", "gibbs"):
        assert impute(model, Batch(x, observed), method, steps=5).mean[observed].equal(x[observed].double())
