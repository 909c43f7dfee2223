"""Batch norm: pooled rows in training, exact statistics in evaluation."""

from __future__ import annotations

from typing import cast

import pytest
import torch
from torch import nn

from memgen.core.layers import EPSILON, BatchNorm, Dense, Frozen, has_statistics, write_statistics
from memgen.core.model import Batch
from memgen.core.noise import Purpose, generator
from memgen.core.objective import standardised_mean
from memgen.data import dataset
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood
from memgen.training.fit import fit
from memgen.training.statistics import collect_statistics


def test_training_normalises_with_all_rows_of_all_samples() -> None:
    norm, h = BatchNorm(4), torch.randn(3, 5, 4) * 2 + 1
    out = norm(h).reshape(-1, 4)
    torch.testing.assert_close(out.mean(0), torch.zeros(4), atol=1e-6, rtol=0)
    torch.testing.assert_close(out.var(0, correction=0), torch.ones(4), atol=1e-4, rtol=0)
    torch.testing.assert_close(standardised_mean(h.reshape(-1, 4)), out)


@pytest.mark.parametrize("epsilon", [0.7, 1e-5, 1e-10])
def test_epsilon_is_added_to_the_variance(epsilon: float) -> None:
    """In training, in evaluation with the norm as a module and folded into the weights, and in the regulariser."""
    recipe = Recipe().override(["model.hidden=[6]", "model.latent=3", f"model.norm_epsilon={epsilon}"])
    dense = cast(Dense, build(recipe, columns=10).requires_grad_(False).q[0].layers[0])
    h = torch.randn(20, 10, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    pre = h @ dense.linear.weight.double().T + dense.linear.bias.double()
    centred, variance = pre - pre.mean(0), pre.var(0, correction=0)
    standardised = centred / torch.sqrt(variance + epsilon)
    torch.testing.assert_close(dense(h.float()).output.double(), standardised.relu(), atol=1e-5, rtol=1e-4)
    torch.testing.assert_close(standardised_mean(pre.float(), epsilon).double(), standardised, atol=1e-5, rtol=1e-4)
    norm = cast(BatchNorm, dense.norm)
    norm.mean.copy_(pre.mean(0))
    norm.variance.copy_(variance)
    for layer in (dense.eval(), Frozen(dense)):
        torch.testing.assert_close(layer(h.float()).output.double(), standardised.relu(), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("levels", [1, 2])
def test_collected_statistics_equal_those_of_one_full_batch_pass(levels: int) -> None:
    """A pass over all rows at once, in training mode, has exactly these statistics at every layer."""
    sizes = "[8, 8]" if levels == 1 else "[[8, 8], [6]]"
    recipe = Recipe().override([f"model.hidden={sizes}", f"model.latent={[3, 2][:levels]}"])
    model = build(recipe, columns=10)
    x, noise = torch.rand(37, 10), model.noise(1, 37, torch.Generator().manual_seed(1))
    parts = [(Batch(x[i : i + 8]), tuple(eps[:, i : i + 8] for eps in noise)) for i in range(0, 37, 8)]
    write_statistics(model, lambda: parts)

    seen: dict[nn.Module, torch.Tensor] = {}
    norms = [module for module in model.modules() if isinstance(module, BatchNorm)]
    for norm in norms:
        norm.register_forward_pre_hook(lambda module, inputs: seen.update({module: inputs[0].flatten(0, -2)}))
    model.train()
    in_training = model(Batch(x), noise)
    assert len(norms) == len(seen) == (4 if levels == 1 else 6)
    for norm in norms:
        torch.testing.assert_close(norm.mean, seen[norm].mean(0), atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(norm.variance, seen[norm].var(0, correction=0), atol=1e-5, rtol=1e-4)
    model.eval()
    torch.testing.assert_close(model(Batch(x), noise).log_w, in_training.log_w, atol=1e-3, rtol=1e-5)


def test_averaged_mini_batch_moments_are_another_thing() -> None:
    """Why the layers are done one after the other: the shortcut gives other statistics, by much more than rounding."""
    recipe = Recipe().override(["model.hidden=[8, 8]", "model.latent=3"])
    model = build(recipe, columns=10).train()
    x, noise = torch.rand(36, 10), model.noise(1, 36, torch.Generator().manual_seed(1))
    parts = [(Batch(x[i : i + 6]), tuple(eps[:, i : i + 6] for eps in noise)) for i in range(0, 36, 6)]
    deep = [module for module in model.modules() if isinstance(module, BatchNorm)][1]
    means: list[torch.Tensor] = []
    handle = deep.register_forward_pre_hook(lambda module, inputs: means.append(inputs[0].mean(0)))
    for part in parts:
        model(*part)
    handle.remove()
    write_statistics(model, lambda: parts)
    assert (torch.stack(means).mean(0) - deep.mean).abs().max() > 1e-3


def test_statistics_do_not_depend_on_the_mode_and_training_does_not_touch_them() -> None:
    recipe = Recipe().override(["model.hidden=[8]", "model.latent=3", "model.slots=[4]"])
    model = build(recipe, columns=10)
    assert not has_statistics(model)
    x = torch.rand(50, 10)
    collect_statistics(model, Batch.of(x), stochastic=True)
    assert has_statistics(model)
    assert model.training
    before = [buffer.clone() for buffer in model.buffers()]
    model(Batch(x), model.noise(1, 50, generator(0, Purpose.TRAINING)))
    assert all(a.equal(b) for a, b in zip(before, model.buffers(), strict=True))
    collect_statistics(model.eval(), Batch.of(x), stochastic=True)
    assert all(a.equal(b) for a, b in zip(before, model.buffers(), strict=True))
    collect_statistics(model, Batch.of(x), stochastic=True, seed=1)
    assert not all(a.equal(b) for a, b in zip(before, model.buffers(), strict=True))


def test_statistics_never_collected_cannot_be_used_unnoticed() -> None:
    model = build(Recipe().override(["model.hidden=[8]", "model.latent=3"]), columns=4)
    with pytest.raises(MemgenError, match="never collected"):
        log_likelihood(model, Batch.of(torch.ones(2, 4)), 10)


def test_fit_leaves_exact_statistics_of_its_final_weights() -> None:
    recipe = Recipe.named("digits-mem-vae").override(["training.epochs=2", "training.ema=0.9"])
    data, model = dataset("digits"), build(recipe)
    list(fit(model, data, recipe))
    kept = {name: buffer.clone() for name, buffer in model.named_buffers()}
    collect_statistics(model, Batch.of(data.rows("train")), stochastic=True, seed=recipe.training.seed)
    for name, buffer in model.named_buffers():
        torch.testing.assert_close(kept[name], buffer, atol=EPSILON, rtol=EPSILON)


def test_statistics_of_older_weights_cannot_be_used_unnoticed() -> None:
    """Leaving `fit` after an epoch that was not evaluated: the weights have moved on, the statistics are gone."""
    recipe = Recipe.named("digits-vae").override(["training.epochs=9", "training.evaluate_every=2", "training.ema=0"])
    data, model = dataset("digits"), build(recipe)
    x = data.fixed("test").x[:20]
    stream = fit(model, data, recipe)
    next(stream), next(stream)
    log_likelihood(model, Batch.of(x), 5)  # the second was evaluated
    next(stream)
    with pytest.raises(MemgenError, match="collect_statistics"):
        log_likelihood(model, Batch.of(x), 5)
    collect_statistics(model, Batch.of(data.rows("train")), stochastic=True)
    log_likelihood(model, Batch.of(x), 5)


def test_statistics_of_rows_that_cannot_be_used_are_refused() -> None:
    model = build(Recipe().override(["model.hidden=[8]", "model.latent=3"]), columns=4)
    for rows in (torch.zeros(0, 4), torch.zeros(3, 5), torch.full((3, 4), torch.nan), torch.full((3, 4), 2.0)):
        for stochastic in (False, True):
            with pytest.raises(MemgenError):
                collect_statistics(model, Batch.of(rows), stochastic=stochastic)


def test_statistics_of_grey_levels_are_those_of_one_binarisation() -> None:
    model = build(Recipe().override(["model.hidden=[8]", "model.latent=3"]), columns=4)
    grey = torch.tensor([0.1, 0.5, 0.9, 1.0]).expand(3000, 4)
    seen: list[torch.Tensor] = []
    model.q[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    collect_statistics(model, Batch.of(grey), stochastic=True)
    passes = torch.cat(seen).unflatten(0, (-1, 3000))  # one for each batch norm
    assert len(passes) == 2
    assert passes[0].equal(passes[1])
    assert set(passes.unique().tolist()) == {0.0, 1.0}
    torch.testing.assert_close(passes[0].mean(0), grey[0], atol=0.05, rtol=0)
    seen.clear()
    collect_statistics(model, Batch.of((grey > 0.5).float()))
    assert torch.cat(seen)[:3000].equal((grey > 0.5).float())
