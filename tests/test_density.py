"""The likelihood evaluator on the path of production: chunks, stored batch-norm statistics, one and two levels."""

from __future__ import annotations

import itertools
import math
import threading
from collections.abc import Callable
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from memgen import accelerate
from memgen.accelerate import decoding
from memgen.accelerate.program import blas
from memgen.core.layers import frozen
from memgen.core.memory import Memory
from memgen.core.model import DGM, Batch
from memgen.core.noise import BLOCK, ExampleNoise, binarise
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import (
    Likelihood,
    join,
    log_likelihood,
    log_likelihoods,
    rungs,
    side_by_side,
    standard_error,
)
from memgen.training.statistics import collect_statistics
from tests.exact import linear_gaussian


@pytest.mark.parametrize("levels", [1, 2])
@pytest.mark.parametrize("norm", ["batch", "none"])
def test_linear_gaussian_model_against_the_closed_form(levels: int, norm: str) -> None:
    """With a q that is off, the estimate is within its Monte Carlo error of the closed form; the ELBO is far below."""
    exact = linear_gaussian(levels, norm, off=0.25)
    x = exact.sample(40)
    result = log_likelihood(exact.model, Batch.of(x), 6000, chunk=100, batch_size=7)
    error = (1 / result.effective - 1 / 6000).sqrt()  # of log of a mean, to first order
    z = (result.log_p - exact.log_p(x)) / error
    assert z.abs().max() < 4.5
    assert abs(float(z.mean())) < 4.5 / 40**0.5
    assert error.max() < 0.05
    assert result.elbo.mean() < exact.log_p(x).mean() - 0.1


@pytest.mark.parametrize("levels", [1, 2])
def test_exact_posterior_gives_the_closed_form_with_any_number_of_samples(levels: int) -> None:
    exact = linear_gaussian(levels)
    x = exact.sample(9)
    for samples in (1, 3, 251):
        result = log_likelihood(exact.model, Batch.of(x), samples)
        torch.testing.assert_close(result.log_p, exact.log_p(x), atol=2e-5, rtol=0)
        torch.testing.assert_close(result.elbo, exact.log_p(x), atol=2e-5, rtol=0)
        torch.testing.assert_close(
            result.effective, torch.full((9,), float(samples), dtype=torch.float64), rtol=1e-4, atol=0
        )


def tiny_discrete(levels: int) -> DGM:
    """Three binary pixels, one or two one-dimensional levels, batch norm with collected statistics, memory."""
    shape = ["model.hidden=[6]", "model.latent=1", "model.slots=[4]"]
    if levels == 2:
        shape = ["model.hidden=[[6], [4]]", "model.latent=[1, 1]", "model.slots=[[4], [2]]"]
    model = build(Recipe().override([*shape, "training.seed=3"]), 3)
    with torch.no_grad():
        for i, parameter in enumerate(model.parameters()):
            parameter.add_(0.25 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(i)))
        # q wide beside p: the importance weights have a bounded variance, and so the estimate a known error.
        for nets, log_variance in ((model.q, 0.8), (model.p[1:], -0.5)):
            for net in nets:
                net.head.mean.weight.mul_(0.5)
                net.head.log_variance.weight.mul_(0.3)
                net.head.log_variance.bias.fill_(log_variance)
    collect_statistics(model, Batch.of((torch.rand(200, 3, generator=torch.Generator().manual_seed(0)) < 0.5).float()))
    return model.eval()


def quadrature(model: DGM, x: Tensor, levels: int) -> Tensor:
    """p(x) = integral of p(x|z_1) p(z_1|z_2) p(z_2), by the rectangle rule on a fine grid, in float64."""
    model = model.double()
    axis = torch.linspace(-30, 30, 3001, dtype=torch.float64)
    step = float(axis[1] - axis[0])
    normal = torch.distributions.Normal
    log_p_z = normal(0.0, 1.0).log_prob(axis)  # of the top level
    with torch.no_grad():
        if levels == 2:
            p_1 = model.p[1](axis.view(-1, 1))[0]  # p(z_1|z_2) at every z_2
            log_p_z1 = normal(p_1.mean.T, (0.5 * p_1.log_variance.T).exp()).log_prob(axis.view(-1, 1))
            log_p_z = torch.logsumexp(log_p_z1 + log_p_z, 1) + math.log(step)  # the marginal of z_1
        logits = model.p[0](axis.view(-1, 1))[0].logits
        log_p_x = -torch.nn.functional.binary_cross_entropy_with_logits(
            logits.unsqueeze(1).expand(-1, len(x), -1), x.double().expand(len(axis), -1, -1), reduction="none"
        ).sum(-1)
    model.float()
    return torch.logsumexp(log_p_x + log_p_z.unsqueeze(1), 0) + math.log(step)


@pytest.mark.parametrize("levels", [1, 2])
def test_tiny_discrete_model_against_quadrature(levels: int) -> None:
    model = tiny_discrete(levels)
    space = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    truth = quadrature(model, space, levels)
    assert truth.exp().sum().item() == pytest.approx(1, abs=1e-6)
    result = log_likelihood(model, Batch.of(space), 20_000, chunk=130)
    error = (1 / result.effective - 1 / 20_000).sqrt()
    assert error.max() < 0.05
    assert ((result.log_p - truth).abs() < 4.5 * error + 1e-5).all()
    assert result.log_p.exp().sum().item() == pytest.approx(1, abs=0.03)


def test_answer_depends_neither_on_chunks_nor_on_batches_nor_on_the_limit() -> None:
    model = tiny_discrete(2)
    x = torch.tensor(list(itertools.product([0.0, 1.0], repeat=3)))
    reference = log_likelihood(model, Batch.of(x), 600, seed=4)
    for batch_size, chunk in ((1, 250), (8, 7), (5, 1000), (3, 1)):
        other = log_likelihood(model, Batch.of(x), 600, seed=4, batch_size=batch_size, chunk=chunk)
        for a, b in zip(fields(reference), fields(other), strict=True):
            torch.testing.assert_close(a, b, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(
        log_likelihood(model, Batch.of(x[:5]), 600, seed=4).log_p, reference.log_p[:5], atol=1e-4, rtol=0
    )
    tail = join(list(log_likelihoods(model, Batch.of(x), 600, start=5, seed=4)))
    torch.testing.assert_close(tail.log_p, reference.log_p[5:], atol=1e-4, rtol=0)


def test_answer_does_not_depend_on_batches_where_log_w_is_steep() -> None:
    """560 columns with a small sigma: in float32 the last bits of an encoding would show in the fourth decimal."""
    recipe = Recipe().override(
        ["model.hidden=[200]", "model.latent=10", "model.likelihood=gaussian", "model.norm=none"]
    )
    model = build(recipe, 560).eval()
    with torch.no_grad():
        model.p[0].head.log_variance.bias.fill_(-7.0)
    x = torch.rand(24, 560, generator=torch.Generator().manual_seed(0))
    reference = log_likelihood(model, Batch.of(x), 50, batch_size=8)
    scale = reference.log_p.abs().max()
    assert scale > 1e4
    for batch_size in (1, 3, 24):
        other = log_likelihood(model, Batch.of(x), 50, batch_size=batch_size)
        assert (other.log_p - reference.log_p).abs().max() < 1e-7 * scale


def fields(result: Likelihood) -> list[Tensor]:
    return [result.log_p, result.elbo, result.effective, *result.bounds.values()]


def test_equal_images_meet_different_noise_and_seeds_matter() -> None:
    model = tiny_discrete(1)
    x = torch.ones(6, 3)
    result = log_likelihood(model, Batch.of(x), 20)
    assert len(result.log_p.unique()) == 6
    assert not log_likelihood(model, Batch.of(x), 20, seed=1).log_p.equal(result.log_p)


def test_noise_is_not_shared_and_not_correlated_across_images() -> None:
    """Consecutive seeds of a Mersenne twister: 400 streams share no values and are correlated by chance only."""
    noise = ExampleNoise(0, range(400), (4,)).block()[0].transpose(0, 1).flatten(1)  # (image, 1000 values)
    assert len(noise.flatten().unique()) > 0.98 * noise.numel()  # float32 normals repeat by chance only
    correlation = torch.corrcoef(noise.double())[~torch.eye(400, dtype=torch.bool)]
    assert correlation.abs().max() < 5.5 / 1000**0.5
    assert correlation.std().item() == pytest.approx(1000**-0.5, rel=0.02)
    assert abs(noise.mean().item()) < 5 / noise.numel() ** 0.5
    first = noise[:, 0]
    assert first.std().item() == pytest.approx(1, abs=0.15)


def test_bounds_rise_to_the_estimate_and_are_averages_over_disjoint_groups() -> None:
    exact = linear_gaussian(1, off=0.5)
    x = exact.sample(30)
    result = log_likelihood(exact.model, Batch.of(x), 2000)
    ladder = [float(result.elbo.mean()), *(float(value.mean()) for value in result.bounds.values()), result.mean]
    assert list(result.bounds) == [5, 50, 500]
    assert ladder == sorted(ladder)
    # Group by group, from the weights themselves.
    noise = ExampleNoise(0, range(30), exact.model.latent)
    blocks = [noise.block() for _ in range(2000 // BLOCK)]
    with torch.no_grad():
        log_w = torch.cat([exact.model(Batch(x), block).log_w.double() for block in blocks])
    for K, value in result.bounds.items():
        torch.testing.assert_close(
            value, (log_w.unflatten(0, (-1, K)).logsumexp(1) - math.log(K)).mean(0), atol=1e-4, rtol=0
        )
    w = (log_w - log_w.max(0).values).exp()
    torch.testing.assert_close(result.effective, w.sum(0) ** 2 / (w**2).sum(0), atol=0, rtol=1e-3)
    torch.testing.assert_close(result.elbo, log_w.mean(0), atol=1e-4, rtol=0)


def test_rungs_fit_blocks() -> None:
    """Each is inside a block or made of whole blocks; else groups would straddle blocks."""
    assert all(BLOCK % K == 0 or K % BLOCK == 0 for K in rungs(10**7))


def test_standard_error_is_that_of_a_mean() -> None:
    values = torch.tensor([1.0, 2.0, 4.0], dtype=torch.float64)
    assert standard_error(values) == pytest.approx(math.sqrt(7 / 3 / 3))
    assert math.isnan(standard_error(values[:1]))


def test_memory_does_not_grow_with_the_number_of_samples() -> None:
    """The largest tensor that a pass makes holds one chunk, whatever K is."""
    model = tiny_discrete(1)
    largest = 0

    def note(module: torch.nn.Module, inputs: object, output: tuple[object, ...]) -> None:
        nonlocal largest
        logits = output[0].logits  # type: ignore[attr-defined]
        largest = max(largest, logits.numel())

    handle = model.p[0].register_forward_hook(note)
    sizes = []
    for samples in (500, 5000):
        largest = 0
        log_likelihood(model, Batch.of(torch.ones(4, 3)), samples, batch_size=2, chunk=50)
        sizes.append(largest)
    handle.remove()
    assert sizes == [50 * 2 * 3] * 2


def test_x_is_encoded_once_whatever_k_is() -> None:
    model = tiny_discrete(1)
    calls: list[int] = []
    model.q[0].register_forward_hook(lambda module, inputs, output: calls.append(1))
    log_likelihood(model, Batch.of(torch.ones(6, 3)), 3000, batch_size=6)
    assert len(calls) == 1


def test_grey_levels_are_scored_only_when_their_binarisation_is_stated() -> None:
    model = tiny_discrete(1)
    grey = torch.rand(5, 3)
    with pytest.raises(MemgenError, match="binarised"):
        log_likelihood(model, Batch.of(grey), 10)
    assert log_likelihood(model, Batch.of(binarise(grey, 3)), 10).log_p.isfinite().all()


def test_the_models_mode_is_left_as_it_was_also_when_the_iterator_is_dropped() -> None:
    model = tiny_discrete(1).train()
    stream = log_likelihoods(model, Batch.of(torch.ones(20, 3)), 10)
    next(stream)
    stream.close()
    assert model.training


def test_likelihood_is_immutable() -> None:
    result = log_likelihood(tiny_discrete(1), Batch.of(torch.ones(2, 3)), 10)
    with pytest.raises(AttributeError):
        result.samples = 5  # type: ignore[misc]
    assert replace(result, samples=5).samples == 5


def test_batches_side_by_side_give_the_same_and_leave_the_threads_as_they_were() -> None:
    """In order, with any number of threads; an iterator that is left takes its workers with it."""
    recipe = Recipe().override(["model.hidden=[8]", "model.latent=2", "model.norm=none"])
    model, x = build(recipe, 3), (torch.rand(20, 3) < 0.5).float()
    threads, found = torch.get_num_threads(), []
    try:
        for n in (1, 3):
            torch.set_num_threads(n)
            found.append(log_likelihood(model, Batch.of(x), 300, batch_size=2).log_p)
            assert torch.get_num_threads() == n
        assert torch.allclose(found[0], found[1], rtol=0, atol=1e-6)
        workers = list(side_by_side(lambda _: (threading.get_ident(), torch.get_num_threads()), range(9)))
        assert {own[1] for own in workers} == {1}
        assert threading.get_ident() not in {own[0] for own in workers}
        stream = log_likelihoods(model, Batch.of(x), 300, batch_size=2)
        next(stream)
        stream.close()
        assert torch.get_num_threads() == 3
        with pytest.raises(ZeroDivisionError):
            list(side_by_side(lambda n: 1 // n, [2, 1, 0, 1]))
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(threads)


MEMORY = ["model.hidden=[19, 13]", "model.latent=6", "model.slots=[7, 4]", "objective.local_reconstruction=[]"]


@pytest.mark.skipif(not blas(), reason="there is no C compiler here, or a torch without MKL: torch's own calls are all")
@pytest.mark.parametrize(
    "settings",
    [
        [],
        ["model.attention=softmax", "model.composition=sum"],
        ["model.slots=[]"],
        ["model.slots=[0, 4]", "model.likelihood=gaussian"],
        ["model.likelihood=gaussian", "model.sigma_floor=0.3"],
        ["model.hidden=[]", "model.slots=[]"],
        ["model.norm=none"],
        ["model.slots=[25, 9]", "model.attention=product", "model.top=4"],
        ["model.slots=[0, 9]", "model.attention=product", "model.composition=sum"],
    ],
)
def test_a_planned_decoder_gives_the_same(settings: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever number of samples is left for the last call."""
    model = build(Recipe.named("digits-mem-vae").override([*MEMORY, *settings]))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(3)))
    x = torch.rand(9, 64, generator=torch.Generator().manual_seed(1)).round()
    collect_statistics(model, Batch.of(x))
    assert decoding.supports(frozen(model.eval()))
    found = log_likelihood(model, Batch.of(x), 333, batch_size=4)
    monkeypatch.setattr(accelerate, "log_weights", lambda *passed: None)
    wanted = log_likelihood(model, Batch.of(x), 333, batch_size=4)
    torch.testing.assert_close(found.log_p, wanted.log_p, rtol=0, atol=2e-4)
    torch.testing.assert_close(found.elbo, wanted.elbo, rtol=2e-6, atol=2e-4)


def test_other_decoders_are_not_planned() -> None:
    """What somebody looks at, or has made anew, torch does."""

    def fitting(*settings: str, change: Callable[[DGM], object] = lambda model: None) -> bool:
        model = build(Recipe.named("digits-mem-vae").override([*MEMORY, *settings])).eval()
        change(model)
        return decoding.supports(frozen(model))

    assert fitting() == blas()
    assert not fitting("model.norm=layer")
    assert not fitting("model.attention=top", "model.top=2")
    assert not fitting("model.mask=true")
    assert not fitting("model.likelihood=categorical", "model.categories=2")
    assert not fitting("model.hidden=[[9, 8], [7]]", "model.latent=[5, 3]", "model.slots=[[3, 2], [0]]")
    assert not fitting(change=lambda model: model.double())
    assert not fitting(change=lambda model: model.q.double())
    assert not fitting(change=lambda model: setattr(model.p[0].layers[0].dense, "linear", torch.nn.Linear(7, 13)))
    keys = ("model.slots=[25, 9]", "model.attention=product", "model.top=4")
    assert fitting(*keys) == blas()
    assert not fitting(*keys, change=lambda model: setattr(model.p[0].layers[0].attention, "side", 4))
    assert not fitting(*keys, change=lambda model: setattr(model.p[0].layers[0].attention, "top", 2))
    assert not fitting(*keys, change=lambda model: setattr(model.p[0].layers[0].memory, "sparse", False))
    assert not fitting(*keys, change=lambda model: setattr(model.p[0].layers[0], "memory", Memory(13, 16, sparse=True)))
    handle = torch.nn.modules.module.register_module_forward_hook(lambda *passed: None)
    assert not fitting()
    handle.remove()
    assert not fitting(change=lambda model: model.p[0].layers[0].memory.register_forward_hook(lambda *passed: None))
    assert not fitting(change=lambda model: setattr(model.p[0].layers[0].attention, "A", torch.nn.Linear(13, 4, False)))
