"""The model: the paper's parameter counts, its starting gradients, exact posteriors, masks and levels."""

from __future__ import annotations

import itertools

import pytest
import torch

from memgen.core.model import DGM, Batch, count_parameters
from memgen.core.objective import importance, local_reconstruction, loss, plain
from memgen.data import DATASETS
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe, recipe_names
from memgen.tasks.density import log_likelihood
from memgen.tasks.sampling import sample
from memgen.training.fit import fit
from memgen.training.statistics import collect_statistics
from tests.exact import linear_gaussian

COUNTS = {
    "mnist-530": 1_559_184,
    "mnist-vis": 1_541_084,
    "mnist-mem": 1_550_084,
    "mnist": 1_440_984,
    "ocr-mem": 207_528,
    "ocr": 163_828,
    "frey-mem": 354_160,
    "frey": 344_340,
}
"""Of PAPER.md, by kind of model."""

ROWS = [name for name in recipe_names() if name.split("-")[0] in ("mnist", "ocr", "frey")]


def kind(name: str) -> str:
    family = name.split("-")[0]
    for suffix in ("530", "vis", "mem"):
        if suffix in name.split("-"):
            return f"{family}-{suffix}"
    return family


def test_there_are_22_rows() -> None:
    assert len(ROWS) == 22


@pytest.mark.parametrize("name", ROWS)
def test_recipe_builds_a_model_with_the_papers_number_of_parameters(name: str) -> None:
    assert count_parameters(build(Recipe.named(name))) == COUNTS[kind(name)]


def tiny(overrides: list[str], columns: int = 6) -> DGM:
    base = ["model.hidden=[7, 5]", "model.latent=3", "model.slots=[4, 2]"]
    return build(Recipe().override([*base, *overrides]), columns)


def gradients(model: DGM, K: int = 2, weights: tuple[tuple[float, ...], ...] = ((0.1, 0.1),)) -> dict[str, float]:
    x = (torch.rand(20, 6, generator=torch.Generator().manual_seed(3)) < 0.5).float()
    noise = model.noise(K, 20, torch.Generator().manual_seed(4))
    model.zero_grad()
    estimate = plain(model, Batch(x), noise, importance)
    loss(estimate.surrogate, local_reconstruction(estimate.inference, weights)).backward()
    sizes = {}
    for name, parameter in model.named_parameters():
        sizes[name] = 0.0 if parameter.grad is None else float(parameter.grad.abs().max())
    return sizes


def test_at_the_first_step_exactly_the_named_parameters_have_zero_gradient() -> None:
    """M, A, b_A and c1 ... c4, in a model with the mlp composition; and the biases before batch norm."""
    found = gradients(tiny([]))
    named = ("memory.M", "attention.A.weight", "attention.A.bias", *(f"composition.c{i}" for i in range(1, 5)))
    assert sum(name.endswith(named) for name in found) == 2 * 7
    for name, size in found.items():
        if name.endswith(named) or name.endswith("linear.bias"):
            assert size == 0, name
        else:
            assert size > 1e-7, name


def test_after_a_few_steps_every_parameter_has_a_gradient() -> None:
    model = tiny([])
    optimizer = torch.optim.Adam(model.parameters(), 0.02)
    for _ in range(5):
        gradients(model)
        optimizer.step()
    for name, size in gradients(model).items():
        if name.endswith("linear.bias"):
            assert size == 0, name
        else:
            assert size > 1e-8, name


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_with_an_exact_posterior_every_log_w_is_log_p(levels: int, norm: str) -> None:
    exact = linear_gaussian(levels, norm)
    x = exact.sample(10)
    noise = exact.model.noise(6, 10, torch.Generator().manual_seed(0))
    with torch.no_grad():
        log_w = exact.model(Batch(x), noise).log_w
    torch.testing.assert_close(log_w.double(), exact.log_p(x).expand(6, 10), atol=2e-5, rtol=0)


def test_log_q_of_the_samples_is_what_infer_says() -> None:
    model = build(Recipe().override(["model.hidden=[[5], [4]]", "model.latent=[3, 2]", "model.norm=none"]), 6)
    batch = Batch(torch.ones(4, 6))
    encoding = model.encode(batch)
    posterior = model.infer(encoding, model.noise(7, 4, torch.Generator().manual_seed(0)))
    for a, b in zip(model.log_q(encoding, posterior.z), posterior.log_q, strict=True):
        torch.testing.assert_close(a, b, atol=1e-5, rtol=1e-5)


def test_what_is_not_observed_does_not_matter_and_does_not_count() -> None:
    model = tiny(["model.norm=none"])
    x = (torch.rand(8, 6) < 0.5).float()
    observed = torch.rand(8, 6) < 0.6
    noise = model.noise(3, 8, torch.Generator().manual_seed(0))
    reference = model(Batch(x, observed), noise).log_w
    for junk in (7.0, torch.nan):
        torch.testing.assert_close(model(Batch(x.where(observed, junk), observed), noise).log_w, reference)
    everything = torch.ones(8, 6, dtype=torch.bool)
    torch.testing.assert_close(model(Batch(x, everything), noise).log_w, model(Batch(x), noise).log_w)
    nothing = model(Batch(x, ~everything), noise)
    assert not nothing.log_p_x.any()


def test_a_missing_category_reaches_q_as_zeros() -> None:
    recipe = Recipe().override(
        ["model.hidden=[5]", "model.latent=2", "model.likelihood=categorical", "model.categories=3", "model.norm=none"]
    )
    model = build(recipe, 2)
    seen: list[torch.Tensor] = []
    model.q[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    model.encode(Batch(torch.tensor([[2.0, 1.0]]), torch.tensor([[False, True]])))
    assert seen[0].tolist() == [[0, 0, 0, 0, 1, 0]]


def test_memory_stands_on_any_subset_of_layers() -> None:
    without = count_parameters(tiny(["model.slots=[]"]))
    per_slot = lambda units, slots: 2 * units * slots + slots + 9 * units  # noqa: E731
    for slots in ([4, 0], [0, 2], [4, 2]):
        extra = sum(per_slot(units, n) for units, n in zip((7, 5), slots, strict=True) if n)
        assert count_parameters(tiny([f"model.slots={slots}"])) == without + extra
    # slots are listed from the data upwards: the first entry belongs to the layer next to x
    layers = tiny(["model.slots=[4, 0]"]).p[0].layers
    assert [type(layer).__name__ for layer in layers] == ["Dense", "MemoryLayer"]


TWO_LEVELS = [
    "model.hidden=[[30, 30], [20]]",
    "model.latent=[10, 5]",
    "model.slots=[[8, 0], [6]]",
    "objective.local_reconstruction=[[0.1, 0.1], [0.1]]",
    "training.epochs=40",
    "training.rate=0.01",
    "training.evaluate_every=0",
]


@pytest.mark.usefixtures("long_loop")
@pytest.mark.parametrize("more", [[], ["objective.samples=5", "objective.estimator=dreg"], ["model.norm=layer"]])
def test_a_two_level_model_trains_and_scores(more: list[str]) -> None:
    data = DATASETS["digits"].load()
    recipe = Recipe().override([*TWO_LEVELS, *more])
    model = build(recipe)
    epochs = list(fit(model, data, recipe))
    assert epochs[-1].bound > epochs[0].bound + 5
    result = log_likelihood(model, data.fixed("test", 100), 200)
    pixels = data.train.mean(0).clamp(0.01, 0.99)
    independent = torch.distributions.Bernoulli(pixels).log_prob(data.fixed("test", 100).x).sum(-1).mean()
    assert result.mean > independent + 0.5  # better than pixels that know nothing of each other
    assert sample(model, 5).shape == (5, 64)


@pytest.mark.usefixtures("long_loop")
@pytest.mark.parametrize("levels", [1, 2])
def test_samples_from_the_prior_have_the_models_mean_and_covariance(levels: int) -> None:
    exact = linear_gaussian(levels)
    x = sample(exact.model, 40_000, draw=True)
    torch.testing.assert_close(x.mean(0), exact.mean, atol=0.03, rtol=0)
    torch.testing.assert_close(x.T.cov(), exact.covariance, atol=0.06, rtol=0)
    assert sample(exact.model, 10, draw=True).equal(sample(exact.model, 10, draw=True))
    torch.testing.assert_close(sample(exact.model, 3, draw=True), sample(exact.model, 230, draw=True)[:3])
    assert len(sample(exact.model, 230).unique(dim=0)) == 230
    assert not sample(exact.model, 10, seed=1).equal(sample(exact.model, 10, seed=2))


def test_every_kind_of_model_runs_in_both_modes() -> None:
    for norm, attention, composition, likelihood in itertools.product(
        ("batch", "layer", "none"), ("sigmoid", "softmax"), ("sum", "mlp"), ("bernoulli", "gaussian", "categorical")
    ):
        model = tiny(
            [
                f"model.norm={norm}",
                f"model.attention={attention}",
                f"model.composition={composition}",
                f"model.likelihood={likelihood}",
            ]
        )
        x = (torch.rand(9, 6) < 0.5).float()
        collect_statistics(model, Batch.of(x))
        noise = model.noise(2, 9, torch.Generator().manual_seed(0))
        for mode in (True, False):
            assert model.train(mode)(Batch(x), noise).log_w.isfinite().all()
