"""Layers as tables of a recipe: [[model.encoder]] and [[model.decoder]]."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

import memgen
from memgen import accelerate
from memgen.core.convolution import Conv
from memgen.core.layers import NORMS, Dense, MemoryLayer
from memgen.core.model import Batch, Conditional, count_parameters
from memgen.core.specification import (
    LAYERS,
    ConvSpec,
    DenseSpec,
    LayerSpec,
    UpsampleSpec,
    ViewSpec,
    build_layers,
    output_of,
)
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood

CONVOLUTIONAL = "digits-conv-mem-vae"


def test_hidden_and_slots_are_short_for_tables() -> None:
    short = Recipe().override(["model.hidden=[6, 5]", "model.latent=3", "model.slots=[4, 0]"])
    long = Recipe().override(
        [
            "model.hidden=[]",
            "model.latent=3",
            'model.encoder=[{kind="dense", units=6}, {kind="dense", units=5}]',
            'model.decoder=[{kind="dense", units=5}, {kind="dense", units=6, slots=4}]',
        ]
    )
    ours, theirs = (dict(build(recipe).named_parameters()) for recipe in (short, long))
    assert [*ours] == [*theirs]
    assert all(value.equal(theirs[name]) for name, value in ours.items())


def test_a_recipe_of_tables_needs_no_hidden_and_survives_toml() -> None:
    text = "[model]\nlatent = 2\n[[model.encoder]]\nkind = 'dense'\nunits = 3\n"
    recipe = Recipe.from_toml(text)
    assert recipe.model.hidden == ((),)
    assert recipe.model.encoder == (DenseSpec(3),)
    for each in (recipe, Recipe.named(CONVOLUTIONAL)):
        assert Recipe.from_toml(each.to_toml()) == each
        assert not each.differences(Recipe.from_toml(each.to_toml()))
    p = build(recipe, 4).p[0]
    assert isinstance(p, Conditional)
    assert not p.layers


def test_the_convolutional_recipe_reads_its_memory_at_every_position() -> None:
    recipe = Recipe.named(CONVOLUTIONAL)
    model = build(recipe)
    layers = model.memory_layers()
    assert [*layers] == ["layer 1", "layer 2"]
    assert isinstance(layers["layer 1"].dense, Conv)
    assert layers["layer 1"].attention(torch.zeros(2, 3, 8, 8, 16)).weights.shape == (2, 3, 8, 8, 30)
    norm, composition = 2, 9
    q = 16 * (9 + 1 + norm) + 100 * (4 * 4 * 16 + 1 + norm) + 2 * 20 * (100 + 1)
    p2 = 128 * (20 + 1 + norm) + 15 * (128 + 1) + 128 * 15 + 128 * composition
    p1 = 16 * (9 * 8 + 1 + norm) + 30 * (16 + 1) + 16 * 30 + 16 * composition
    assert count_parameters(model) == q + p2 + p1 + 64 * (8 * 8 * 16 + 1)
    assert accelerate.training_step(model, recipe.objective, 100) is None


def test_the_convolutional_recipe_trains_evaluates_and_imputes(tmp_path: Path) -> None:
    small = ["training.epochs=2", "training.evaluate_every=0", "training.ema=0"]
    recipe, data = Recipe.named(CONVOLUTIONAL).override(small), memgen.dataset("digits")
    data = replace(data, train=data.train[:200], valid=data.valid[:50], labels={})
    model = build(recipe)
    first, last = memgen.fit(model, data, recipe)
    assert last.bound > first.bound
    memgen.save(model, tmp_path / "model.safetensors", recipe)
    rows = data.fixed("test", 9)
    expected = log_likelihood(model, rows, 20).log_p
    again = memgen.load(tmp_path / "model.safetensors")
    torch.testing.assert_close(log_likelihood(again, rows, 20, batch_size=4).log_p, expected, atol=1e-3, rtol=0)
    observed = torch.rand(rows.x.shape, generator=torch.Generator().manual_seed(1)) < 0.7
    filled = memgen.impute(again, Batch(rows.x, observed), steps=3).mean
    assert filled[observed].equal(rows.x[observed])
    assert ((filled >= 0) & (filled <= 1)).all()


def test_layers_are_built_as_they_are_specified() -> None:
    specs: list[LayerSpec] = [ViewSpec((4, 4, 1)), ConvSpec(3, stride=2, slots=2), UpsampleSpec(2), DenseSpec(5)]
    assert [*LAYERS.values()] == [DenseSpec, ConvSpec, UpsampleSpec, ViewSpec]
    layers, shape = build_layers(specs, (16,), NORMS["batch"])
    assert shape == (output_of(specs, (16,)),) == (5,)
    assert isinstance(layers[1], MemoryLayer)
    h = torch.rand(2, 7, 16, generator=torch.Generator().manual_seed(0))
    for layer in layers:
        h = getattr(layer(h), "output", layer(h))
    assert h.shape == (2, 7, 5)
    (dense,), _ = build_layers([DenseSpec(3)], (4,), NORMS["none"])
    assert isinstance(dense, Dense)
    assert output_of([ViewSpec((2, 2, 1)), UpsampleSpec(3)], (4,)) == 36


PROBLEMS = {
    "{kind='pol'}": "model.decoder.1: unknown kind of layer 'pol'. Choices: dense, conv, upsample, view",
    "{units=3}": "model.decoder.1 needs a kind: dense, conv, upsample, view",
    "{kind='conv', channel=3}": "model.decoder.1.conv: unknown key 'channel'; did you mean 'channels'?",
    "{kind='conv', size=3}": "model.decoder.1.conv.channels is missing",
    "{kind='conv', channels=3, size=2}": "a conv layer needs an odd size",
    "{kind='dense', units=0}": "model.decoder.1.dense.units must be at least 1, not 0",
    "{kind='dense', units=2.5}": "model.decoder.1.dense.units must be a whole number, not 2.5",
    "{kind='dense', units=true}": "model.decoder.1.dense.units must be a whole number, not True",
    "{kind='dense', units=3, slots=-1}": "model.decoder.1.dense.slots must be at least 0, not -1",
    "{kind='view', shape=[3, '4']}": "model.decoder.1.view.shape.2 must be a whole number, not '4'",
    "{kind='view', shape=3}": "model.decoder.1.view.shape must be a list of whole numbers, not 3",
    "5": "model.decoder.1 must be a table, not 5",
}


@pytest.mark.parametrize("table", PROBLEMS)
def test_a_table_that_is_no_layer_is_refused_in_one_line(table: str) -> None:
    with pytest.raises(MemgenError) as error:
        Recipe.from_toml(f"[model]\ndecoder = [{table}]")
    assert PROBLEMS[table] in str(error.value)
    assert "\n" not in str(error.value)


def test_all_problems_are_reported_at_once() -> None:
    first, second = "{kind='pol'}", "{kind='dense', units=0}"
    with pytest.raises(MemgenError) as error:
        Recipe.from_toml(f"[model]\nlatnt = 3\ndecoder = [{first}, {second}]")
    for problem in (PROBLEMS[first], "model.decoder.2.dense.units must be at least 1", "did you mean 'latent'"):
        assert problem in str(error.value)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ("hidden = [3]\ndecoder = [{kind='dense', units=3}]", "in place of model.hidden and model.slots"),
        ("latent = [3, 2]\ndecoder = [{kind='dense', units=3}]", "model.latent to one number"),
        ("encoder = [{kind='dense', units=3, slots=2}]", "only layers of P have a memory"),
        ("attention = 'product'\ndecoder = [{kind='dense', units=3, slots=5}]", "needs square numbers of slots"),
        ("encoder = 5", "model.encoder must be a list of tables, one per layer, not 5"),
    ],
)
def test_what_contradicts_the_tables(settings: str, message: str) -> None:
    with pytest.raises(MemgenError, match=message):
        Recipe.from_toml(f"[model]\n{settings}")


def test_shapes_that_do_not_fit_the_data_are_refused_when_the_model_is_built() -> None:
    recipe = Recipe.from_toml("[model]\nencoder = [{kind='view', shape=[3, 3, 1]}]")
    with pytest.raises(MemgenError, match="64 numbers cannot be seen as 3 x 3 x 1"):
        build(recipe)


def test_the_documented_recipe_is_one() -> None:
    text = (Path(__file__).parents[2] / "docs" / "design.md").read_text("utf-8")
    (example,) = [block for block in text.split("```toml\n")[1:] if "model.encoder" in block]
    model = build(Recipe.from_toml(example.partition("```")[0]))
    assert [*model.memory_layers()] == ["layer 1"]
