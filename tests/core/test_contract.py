"""One contract over every entry of every table: a new entry is tested by being there."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from memgen.core.layers import NORMS
from memgen.core.likelihoods import LIKELIHOODS, Head, check_values, draw, factorised
from memgen.core.memory import ATTENTIONS, COMPOSITIONS, SPARSE_ATTENTIONS, Memory
from memgen.core.model import Batch
from memgen.core.objective import BOUNDS, CHOOSING, ESTIMATORS, importance
from memgen.data import DATASETS
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe

ROWS = [(5,), (2, 3)]
"""Shapes before the feature axis: rows, and samples of rows."""


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", [*ATTENTIONS, *SPARSE_ATTENTIONS])
def test_attention(name: str, rows: tuple[int, ...]) -> None:
    sparse = name in SPARSE_ATTENTIONS
    attention, memory = SPARSE_ATTENTIONS[name](4, 9, 3) if sparse else ATTENTIONS[name](4, 9), Memory(4, 9, sparse)
    preference = attention(torch.rand(*rows, 4))
    assert preference.weights.shape == (*rows, 3 if sparse else 9)
    assert (preference.index is not None) == sparse
    assert (preference.weights >= 0).all()
    h_m = memory(preference)
    assert h_m.shape == (*rows, 4)
    h_m.sum().backward()
    assert all(parameter.grad is not None and parameter.grad.isfinite().all() for parameter in attention.parameters())
    assert memory.M.grad is not None
    assert memory.M.grad.is_sparse == sparse
    torch.testing.assert_close(
        memory(attention(torch.zeros(*rows, 4)))[0], memory(attention(torch.zeros(*rows, 4)))[-1]
    )


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", COMPOSITIONS)
def test_composition(name: str, rows: tuple[int, ...]) -> None:
    composition = COMPOSITIONS[name](4)
    h_g, h_m = torch.rand(*rows, 4), torch.randn(*rows, 4)
    h = composition(h_g, h_m)
    assert h.shape == h_g.shape
    assert (h >= 0).all()  # phi comes last
    torch.testing.assert_close(composition(h_g[..., :1, :], h_m[..., :1, :]), h[..., :1, :])  # row by row


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", NORMS)
def test_norm(name: str, rows: tuple[int, ...]) -> None:
    h = torch.randn(*rows, 4)
    assert NORMS[name](4)(h).shape == h.shape


OPTIONS: dict[str, dict[str, Any]] = {
    "categorical": {"categories": 3},
    "mixed": {"kinds": [("count", 0), ("categorical", 4), ("positive", 0)]},
}


@pytest.mark.parametrize("rows", ROWS)
@pytest.mark.parametrize("name", LIKELIHOODS)
def test_likelihood(name: str, rows: tuple[int, ...]) -> None:
    head = LIKELIHOODS[name](4, 3, **OPTIONS.get(name, {}))
    assert isinstance(head, Head)
    p = head(torch.randn(*rows, 4))
    x = draw(p, (*rows, 3), torch.Generator().manual_seed(0))
    assert x.shape == p.mean.shape == p.mode.shape == (*rows, 3)
    assert p.log_probs(x).shape == (*rows, 3)
    assert p.log_prob(x[..., :1, :]).shape == rows  # x broadcasts against the samples
    observed = torch.tensor([True, False, True]).expand_as(x)
    torch.testing.assert_close(p.log_prob(x, observed), p.log_probs(x)[..., [0, 2]].sum(-1))
    assert factorised(p, "this test") is p
    check_values(head, x.reshape(-1, 3))
    check_values(head, p.mode.reshape(-1, 3))
    assert head.encode(x).shape == (*rows, head.encoded)
    assert (p.log_probs(p.mode) >= p.log_probs(x) - 1e-6).all()  # nothing is likelier than the mode


@pytest.mark.parametrize("name", BOUNDS)
def test_bound(name: str) -> None:
    log_w = torch.randn(7, 5)
    value = BOUNDS[name](log_w)
    assert value.shape == (5,)
    torch.testing.assert_close(BOUNDS[name](log_w + 2), value + 2)  # a factor on every weight is a summand of the bound
    torch.testing.assert_close(BOUNDS[name](log_w[:1]), log_w[0])
    torch.testing.assert_close(BOUNDS[name](torch.full((4, 3), -1.5)), torch.full((3,), -1.5))
    assert (value <= importance(log_w) + 1e-6).all()


@pytest.mark.parametrize("name", ESTIMATORS)
def test_estimator(name: str) -> None:
    model = build(Recipe().override(["model.hidden=[[4], [3]]", "model.latent=[2, 2]", "model.slots=[[3], [2]]"]), 5)
    samples = 3 + (name in CHOOSING)
    batch, noise = Batch((torch.rand(6, 5) < 0.5).float()), model.noise(samples, 6, torch.Generator().manual_seed(0))
    estimate = ESTIMATORS[name](model, batch, noise, importance, 0.7)
    assert estimate.surrogate.shape == estimate.bound.shape == (6,)
    assert not estimate.bound.requires_grad
    estimate.surrogate.sum().backward()
    gradients = {key: parameter.grad for key, parameter in model.named_parameters()}
    missing = {key for key, gradient in gradients.items() if gradient is None}
    assert missing == {key for key in gradients if key.endswith("linear.bias")}  # batch norm takes them away
    assert all(gradient.isfinite().all() for gradient in gradients.values() if gradient is not None)
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("name", DATASETS)
def test_data_set_is_known_without_reading_it(name: str) -> None:
    source = DATASETS[name]
    assert source.about
    assert source.likelihood in LIKELIHOODS
    assert source.columns == source.shape[0] * source.shape[1]
    assert bool(source.homes) == bool(source.files)


@pytest.mark.parametrize("name", DATASETS)
def test_data_set(name: str) -> None:
    source = DATASETS[name]
    if source.files and source.find() is None:
        pytest.skip(f"the files of {name} are not here: set MEMGEN_DATA to their folder")
    data = source.load()
    assert data.name == name
    assert data.shape == source.shape
    assert data.likelihood == source.likelihood
    for split in ("train", "valid", "test"):
        x = data.rows(split)
        assert x.shape[1] == source.columns
        assert x.min() >= 0
        assert x.max() <= 1
        assert not data.labels or len(data.labels[split]) == len(x)
        head = LIKELIHOODS[data.likelihood](2, source.columns)
        assert isinstance(head, Head)
        check_values(head, data.fixed(split, 50).x)
