"""Recipes: what ships loads, what is written is read back, and what is wrong is refused at the door."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe, recipe_names

NAMES = [
    *("mnist-vae", "mnist-mem-vae", "mnist-iwae-5", "mnist-mem-iwae-5", "mnist-iwae-50", "mnist-mem-iwae-50"),
    *("mnist-vae-530", "mnist-iwae-5-530", "mnist-iwae-50-530"),
    *("mnist-mem-vae-no-lre", "mnist-vae-lre", "mnist-vis-mem-vae"),
    *("ocr-vae", "ocr-mem-vae", "ocr-iwae-5", "ocr-mem-iwae-5", "ocr-iwae-50", "ocr-mem-iwae-50"),
    *("frey-vae-b100", "frey-mem-vae-b100", "frey-vae-b10", "frey-mem-vae-b10"),
    *("digits-vae", "digits-mem-vae"),
]


def test_the_promised_recipes_ship() -> None:
    assert set(NAMES) <= set(recipe_names())


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_survives_being_written_and_read(name: str) -> None:
    recipe = Recipe.named(name)
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert recipe.override([]) == recipe


MNIST = ("mnist", "train+valid", (500, 500), 100, (70, 30), "sigmoid", "mlp", "bernoulli", 0.0)
OCR = ("ocr_letters", "train", (200, 200), 50, (70, 30), "sigmoid", "mlp", "bernoulli", 0.0)
FREY = ("frey_faces", "train+valid", (200,), 10, (20,), "sigmoid", "mlp", "gaussian", 1 / (256 * 12**0.5))


def expected(name: str) -> tuple[object, ...]:
    """data, train_on, hidden, latent, slots, attention, composition, likelihood, floor, K and lambdas of a row."""
    family, *parts = name.split("-")
    data, on, hidden, latent, slots, attention, composition, likelihood, floor = {
        "mnist": MNIST,
        "ocr": OCR,
        "frey": FREY,
    }[family]
    if "530" in parts:
        hidden = (530, 530)
    if "vis" in parts:
        attention, composition = "softmax", "sum"
    memory = "mem" in parts
    with_lre = (memory and family != "frey" and "no" not in parts) or parts == ["vae", "lre"]
    K = next((int(part) for part in parts if part in ("5", "50")), 1)
    shown = (attention, composition) if memory else ("sigmoid", "mlp")
    return (
        data,
        on,
        (hidden,),
        (latent,),
        slots if memory else (),
        *shown,
        likelihood,
        floor,
        K,
        (0.1, 0.1) if with_lre else (),
    )


@pytest.mark.parametrize("name", NAMES[:-2])
def test_rows_of_the_paper_are_as_the_paper_says(name: str) -> None:
    recipe = Recipe.named(name)
    model, objective, training = recipe.model, recipe.objective, recipe.training
    slots, lambdas = (value[0] if value else () for value in (model.slots, objective.local_reconstruction))
    found = (
        recipe.data.name,
        recipe.data.train_on,
        model.hidden,
        model.latent,
        slots,
        model.attention,
        model.composition,
    )
    more = (model.likelihood, pytest.approx(model.sigma_floor, rel=1e-6), objective.samples, lambdas)
    assert (*found, *more) == expected(name)
    assert (model.norm, objective.bound, objective.estimator, objective.kl_warmup_epochs) == (
        "batch",
        "importance",
        "plain",
        0,
    )
    assert (training.optimizer, training.rate, training.beta1, training.beta2) == ("adam", 1e-3, 0.9, 0.999)
    assert (training.epsilon, training.warmup_steps, training.weight_decay) == (1e-4, 0, 0)
    assert (training.clip_norm, training.clip_value, training.drop_incomplete, training.ema) == (5.0, 1.0, True, 0.0)
    if name.endswith("-b10"):
        assert (training.batch_size, training.epochs, training.schedule) == (10, 1000, "constant")
    else:
        assert (training.batch_size, training.epochs, training.schedule) == (100, 3000, "step")
        assert (training.decay, training.decay_after, training.decay_every) == (0.998, 1000, 1)


def test_several_levels_survive_too() -> None:
    recipe = Recipe().override(
        [
            "model.hidden=[[5, 4], []]",
            "model.latent=[3, 2]",
            "model.slots=[[2, 0], []]",
            "objective.local_reconstruction=[[0.1, 0], []]",
        ]
    )
    assert recipe.model.hidden == ((5, 4), ())
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    flat = Recipe().override(["model.hidden=[]", "model.latent=2"])
    assert flat.model.hidden == ((),)
    assert Recipe.from_toml(flat.to_toml()) == flat


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("training.epoch=3", "unknown key 'epoch'; did you mean 'epochs'"),
        ("trainin.epochs=3", "unknown section 'trainin'; did you mean 'training'"),
        ("epochs=3", "section.key=value"),
        ("training.epochs", "section.key=value"),
        ("training.epochs=ten", "training.epochs must be a whole number, not 'ten'"),
        ("training.epochs=1.5", "must be a whole number"),
        ("training.epochs=true", "must be a whole number"),
        ("training.epochs=0", "training.epochs must be at least 1, not 0"),
        ("training.rate=0", "must be above 0"),
        ("training.rate=nan", "must be a number"),
        ("training.rate=inf", "must be a number"),
        ("training.ema=1", "must be below 1"),
        ("training.final_rate=2", "must be at most 1"),
        ("training.drop_incomplete=1", "must be true or false"),
        ("training.schedule=cosin", "unknown choice 'cosin'; did you mean 'cosine'? Choices: constant, step, cosine"),
        ("model.attention=max", "unknown choice 'max'; did you mean 'softmax'? Choices: sigmoid, softmax"),
        ("model.attention=3", "must be a text"),
        (f"training.rate={'9' * 400}", "must be a number"),
        (f"training.rate={'9' * 5000}", "must be a number"),
        (f"model.hidden={'[' * 2000}", "must be a list"),
        ("model.slots=[70]", "model.slots must have one entry per layer of model.hidden"),
        ("model.slots=[70, 30, 10]", "model.slots must have one entry per layer"),
        ("model.slots=[70, -1]", "must be at least 0"),
        ("model.slots=70", "must be a list of whole numbers"),
        ("model.hidden=[0]", "must be at least 1"),
        ("model.latent=[3, 3]", "model.hidden has 1 level(s) and model.latent 2"),
        ("objective.local_reconstruction=[0.1]", "must have one entry per layer"),
        ("objective.samples=0", "must be at least 1"),
        ("data.name=minst", "did you mean 'mnist'"),
        ("data.train_on=test", "unknown choice 'test'"),
    ],
)
def test_a_wrong_setting_is_refused_in_one_line(setting: str, message: str) -> None:
    with pytest.raises(MemgenError) as caught:
        Recipe.named("mnist-mem-vae").override([setting])
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_settings_that_do_not_go_together_are_refused() -> None:
    with pytest.raises(MemgenError, match="dreg is for the importance bound"):
        Recipe().override(["objective.estimator=dreg", "objective.bound=elbo"])
    with pytest.raises(MemgenError, match="weight_decay"):
        Recipe().override(["training.optimizer=adam", "training.weight_decay=0.1"])


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[model", "not valid TOML"),
        ("model = 3", "model must be a table"),
        ("[modle]", "unknown key 'modle'; did you mean 'model'"),
        ("about = 3", "about must be a text"),
    ],
)
def test_a_broken_file_is_refused_with_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "mine.toml"
    path.write_text(text)
    with pytest.raises(MemgenError) as caught:
        Recipe.read(str(path))
    assert message in str(caught.value)
    assert str(path) in str(caught.value)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(MemgenError, match="No such file"):
        Recipe.read(str(tmp_path / "none.toml"))
    (tmp_path / "binary.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(MemgenError, match="not UTF-8"):
        Recipe.read(str(tmp_path / "binary.toml"))


def test_an_unknown_recipe_names_the_nearest() -> None:
    with pytest.raises(MemgenError, match="did you mean 'mnist-mem-vae'"):
        Recipe.read("mnist-memvae")


def test_a_model_that_does_not_fit_into_memory_is_refused() -> None:
    with pytest.raises(MemgenError, match="cannot build this model"):
        build(Recipe().override(["model.hidden=[1000000]", "model.latent=2", "model.slots=[100000000]"]), 3)


def test_starting_values_are_a_function_of_the_seed_and_leave_torch_alone() -> None:
    recipe = Recipe().override(["model.hidden=[4]", "model.latent=2"])
    torch.manual_seed(1)
    before = torch.random.get_rng_state()
    a, b = build(recipe, 3), build(recipe, 3)
    assert torch.random.get_rng_state().equal(before)
    assert all(x.equal(y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    other = build(recipe.override(["training.seed=1"]), 3)
    assert not next(a.parameters()).equal(next(other.parameters()))
