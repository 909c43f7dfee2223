"""The NumPy evaluator agrees with memgen's: sample by sample on the same noise, and with the stored results."""

from __future__ import annotations

import ast
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
import torch

import memgen
from memgen.core.model import DGM, Batch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs import zoo
from memgen.runs.storage import load_tensors
from reproduction import independent
from reproduction.independent import Array, Weights, images, log_likelihood, read
from tests.conftest import needs_data

RESULTS = Path(__file__).parents[2] / "results"
MODELS = {
    "mnist-mem-vae": "composition.b1",
    "mnist-vis-mem-vae": "memory.M",
    "ocr-iwae-50": "logits.weight",
}
"""One with sigmoid attention and mlp, one with softmax and sum, one without memory; what is given the wrong sign."""
VARIANTS = {
    "sigmoid-mlp": ["model.slots=[5, 4]"],
    "softmax-sum": ["model.slots=[5, 4]", "model.attention=softmax", "model.composition=sum"],
    "one-layer": ["model.slots=[0, 4]"],
    "plain": [],
}


def saved(settings: list[str], folder: Path) -> tuple[DGM, Path]:
    """A small model with random values in every parameter and statistic, and its file."""
    recipe = Recipe().override(["model.hidden=[8, 7]", "model.latent=3", *settings])
    model = build(recipe, columns=6)
    g = torch.Generator().manual_seed(0)
    for name, value in model.state_dict().items():
        drawn = torch.randn(value.shape, generator=g)
        value.copy_(drawn.abs() + 0.5 if name.endswith("variance") and "norm" in name else drawn)
    memgen.save(model, folder / "model.safetensors", recipe)
    return model.double().eval(), folder / "model.safetensors"


def flipped(w: Weights, ending: str) -> Weights:
    return {name: -value if name.endswith(ending) else value for name, value in w.items()}


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_same_noise_gives_the_same_number(variant: str, tmp_path: Path) -> None:
    model, file = saved(VARIANTS[variant], tmp_path)
    weights, recipe = read(file)
    x = np.random.default_rng(1).integers(0, 2, (4, 6)).astype(float)
    noise = np.random.default_rng(2).standard_normal((4, 20, 3))
    with torch.no_grad():
        inference = model(Batch(torch.from_numpy(x)), (torch.from_numpy(noise).transpose(0, 1),))
    expected = (inference.log_w.logsumexp(0) - math.log(20)).numpy()
    np.testing.assert_allclose(log_likelihood(weights, recipe, x, noise), expected, rtol=1e-9)
    for ending in ("composition.b1", "composition.c4", "memory.M", "A.bias", "norm.mean", "log_variance.bias"):
        if any(name.endswith(ending) for name in weights):
            other = log_likelihood(flipped(weights, ending), recipe, x, noise)
            assert abs(other - expected).max() > 1e-3, ending


def difference(weights: Weights, recipe: dict[str, str], x: Array, stored: Array, gap: float) -> float:
    """Ours with 500 samples minus the stored estimate with thousands, in standard errors over images. The bound rises
    with the number of samples: `gap` is by how much, as stored."""
    noise = np.random.default_rng(0).standard_normal((len(x), 500, len(weights["q.0.head.mean.bias"])))
    found = log_likelihood(weights, recipe, x, noise) - stored - gap
    return float(found.mean() / (found.std() / np.sqrt(len(x))))


def stored_examples(weights_sha256: str) -> Array:
    """log p(x) of every test image, as it was measured with these weights."""
    for path in sorted((RESULTS / "examples").glob("*-likelihood.safetensors")):
        tensors, about = load_tensors(path)
        if about["weights_sha256"] == weights_sha256:
            return tensors["log_p"].double().numpy()
    raise AssertionError("no stored examples have these weights")


@needs_data
@pytest.mark.parametrize("name", MODELS)
def test_shipped_weights_give_the_stored_results(name: str) -> None:
    told = zoo.result(name)
    found = json.loads((RESULTS / f"{name}.json").read_text())
    weights, recipe = read(zoo.folder() / f"{name}.safetensors")
    stored = stored_examples(told["weights_sha256"])
    x = images(recipe["name"], Path(os.environ["MEMGEN_DATA"]))
    n, gap = 30, found["bounds"]["500"] - found["log_likelihood"]
    assert abs(difference(weights, recipe, x[:n], stored[:n], gap)) < 4
    assert abs(difference(flipped(weights, MODELS[name]), recipe, x[:10], stored[:10], gap)) > 4


def test_it_imports_nothing_of_memgen_and_is_short() -> None:
    source = Path(independent.__file__).read_text()
    nodes = list(ast.walk(ast.parse(source)))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {str(node.module) for node in nodes if isinstance(node, ast.ImportFrom)}
    assert not {"memgen", "torch", "reproduction"} & {name.split(".")[0] for name in names}
    assert len(source.splitlines()) <= 100
