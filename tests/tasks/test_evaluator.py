"""How the evaluator runs: chunks, batches, threads, memory and planned decoders change no number."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from memgen import accelerate
from memgen.accelerate import decoding
from memgen.accelerate.program import blas
from memgen.core.layers import frozen
from memgen.core.memory import Memory
from memgen.core.model import DGM, Batch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import (
    Likelihood,
    join,
    log_likelihood,
    log_likelihoods,
    side_by_side,
)
from memgen.training.statistics import collect_statistics
from tests.tasks.tiny import tiny_discrete


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


def test_the_models_mode_is_left_as_it_was_also_when_the_iterator_is_dropped() -> None:
    model = tiny_discrete(1).train()
    stream = log_likelihoods(model, Batch.of(torch.ones(20, 3)), 10)
    next(stream)
    stream.close()
    assert model.training


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
    """Hooked or replaced parts are computed by torch."""

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
