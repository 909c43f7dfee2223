"""A training by stages: what a stage begins with, and that a run goes on across them as if never stopped."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from memgen.cli.main import main
from memgen.core.model import DGM
from memgen.data import Dataset, dataset
from memgen.errors import MemgenError
from memgen.recipes import document
from memgen.recipes.build import build
from memgen.recipes.listing import recipe_groups
from memgen.recipes.settings import Recipe, recipe_names
from memgen.runs.modelfile import check_shapes, save
from memgen.runs.run import CHECKPOINT, METRICS, RECIPE, WEIGHTS, Run, load, read_model
from memgen.runs.session import Options, Start, train_in
from memgen.runs.storage import load_tensors, save_tensors
from memgen.training.fit import fit, stages
from memgen.training.prepare import adapt, prepare
from memgen.training.state import State, begin

STAGED = """
[model]
hidden = [12]
latent = 3
slots = [4]
start = "mean"

[objective]
local_reconstruction = [0.1]

[training]
batch_size = 100
evaluate_every = 2
evaluate_rows = 20
evaluate_samples = 5

[[stage]]
name = "first"
epochs = 2
ema = 0.9
estimator = "stl"

[[stage]]
name = "best"
epochs = 3
batch_size = 300
keep = "best"
evaluate_every = 1

[[stage]]
name = "k3"
epochs = 1
samples = 3
rate = 0.002
"""


def staged(*more: str) -> Recipe:
    return Recipe.from_toml(STAGED).override(more)


def weights(model: DGM) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def digits() -> Dataset:
    return dataset("digits")


def in_one_go(recipe: Recipe) -> DGM:
    model = build(recipe)
    list(fit(model, digits(), recipe))
    return model


def test_stages_in_one_run_are_trainings_that_begin_with_the_weights_of_the_one_before() -> None:
    """To the bit: averaged or best weights go in, optimizer and noise begin anew."""
    recipe = staged()
    model = build(recipe)
    for index in range(3):
        ready = prepare(recipe.stage(index), digits(), model=model)
        if index == 0:
            adapt(ready)
        list(stages(ready, begin(model, ready.recipe)))
    assert same(weights(in_one_go(recipe)), weights(model))


def test_epochs_carry_their_stage_and_are_counted_through() -> None:
    recipe = staged()
    epochs = list(fit(build(recipe), digits(), recipe))
    assert [(epoch.stage, epoch.epoch) for epoch in epochs] == [
        *(("first", 1), ("first", 2)),
        *(("best", 3), ("best", 4), ("best", 5)),
        ("k3", 6),
    ]


@pytest.mark.parametrize("more", [(), ("model.attention=product", "model.slots=[64]", "model.top=2")])
@pytest.mark.parametrize("at", [(0, 1, 3), (0, 1, 12), (1, 0, 1), (1, 2, 2), (2, 0, 5)])
def test_going_on_from_a_checkpoint_in_any_stage_is_exact(more: tuple[str, ...], at: tuple[int, int, int]) -> None:
    recipe, kept = staged(*more), {}

    def note(state: State, steps: int) -> None:
        if (state.stage, state.epoch, state.step) == at:
            kept.update({name: value.clone() for name, value in state.tensors().items()})

    whole = build(recipe)
    list(fit(whole, digits(), recipe, tick=note))
    model = build(recipe)
    state = begin(model, recipe, stage=at[0])
    state.restore(kept)
    state.epoch, state.step = at[1:]
    rest = list(fit(model, digits(), recipe, state=state))
    assert same(weights(whole), weights(model))
    assert rest[-1].epoch == 6


def test_a_run_stopped_after_every_stage_ends_as_one_in_one_go(tmp_path: Path) -> None:
    recipe, folder = staged(), tmp_path / "run"
    for stage, epochs, finished in (("first", 2, 1), ("best", None, 2), (None, 6, 3)):
        run = train_in(folder, prepare(recipe, digits()), Options(until=stage, checkpoint_every=0))
        saved = read_model(folder)
        assert saved.reached.stage == (stage or "k3")
        assert saved.reached.stages == finished
        assert epochs is None or saved.epoch == epochs
    assert same(weights(load(folder)), weights(in_one_go(recipe)))
    assert [line["stage"] for line in run.metrics()] == ["first"] * 2 + ["best"] * 3 + ["k3"]
    counts = json.loads(load_tensors(folder / CHECKPOINT)[1]["counts"])
    assert (counts["stage"], counts["epoch"], counts["step"]) == (2, 1, 0)


def test_stages_that_led_to_the_weights_of_a_start_are_not_trained_again(tmp_path: Path) -> None:
    recipe = staged()
    ready = prepare(recipe.until("best"), digits())
    train_in(tmp_path / "first", ready)
    start = Start(read_model(tmp_path / "first"), "the first")
    run = train_in(tmp_path / "second", prepare(recipe, digits()), start=start)
    assert [line["epoch"] for line in run.metrics()] == [6]
    assert run.start is not None
    assert (run.start["stages"], run.start["name"]) == (2, "the first")
    assert same(weights(load(tmp_path / "second")), weights(in_one_go(recipe)))
    again = train_in(tmp_path / "second", prepare(recipe, digits()))  # which has all of it
    assert [line["epoch"] for line in again.metrics()] == [6]
    other = train_in(tmp_path / "third", prepare(staged("training.seed=1"), digits()), start=start)
    assert len(other.metrics()) == 6  # other stages than those that led there


def test_the_command_line_trains_to_a_stage_and_goes_on(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mine.toml").write_text(STAGED)
    command = ["train", str(tmp_path / "mine.toml"), "--out", str(tmp_path / "run")]
    assert main([*command, "--until", "frist"]) == 2
    assert "unknown stage 'frist'; did you mean 'first'" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*command, "--until", "first"]) == 0
    assert main(["train", "--resume", "--out", str(tmp_path / "run")]) == 0
    assert "going on with" in capsys.readouterr().out
    assert main(["train", *command[1:2], "--schedule", "fast", "--out", str(tmp_path / "other")]) == 2
    assert "[[stage]] tables of its own" in capsys.readouterr().err
    assert Recipe.read(str(tmp_path / "run" / RECIPE)).stages == staged().stages
    assert len((tmp_path / "run" / METRICS).read_text().splitlines()) == 6


def test_a_stage_can_be_changed_alone_or_with_all_others() -> None:
    recipe = staged("training.seed=7", "stage.best.epochs=9", "stage.k3.samples=2")
    assert [stage.training.seed for stage in recipe.stages] == [7, 7, 7]
    assert [stage.training.epochs for stage in recipe.stages] == [2, 9, 1]
    assert recipe.stages[2].objective.samples == 2
    assert Recipe.from_toml(recipe.to_toml()) == recipe
    assert recipe.differences(staged()) == [
        *(f"stage.{name}.seed was 7, is 0" for name in ("first",)),
        *("stage.best.epochs was 9, is 3", "stage.best.seed was 7, is 0"),
        *("stage.k3.samples was 2, is 3", "stage.k3.seed was 7, is 0"),
    ]
    with pytest.raises(MemgenError, match="unknown stage 'frist'; did you mean 'first'"):
        staged("stage.frist.epochs=1")


def test_a_schedule_leaves_out_the_stages_with_more_samples_than_the_recipe_has() -> None:
    names = [[stage.name for stage in Recipe.named(f"mnist-{model}", "fast").stages] for model in ("vae", "iwae-5")]
    assert names == [["main", "large-batches"], ["main", "large-batches", "k5"]]
    last = Recipe.named("mnist-mem-iwae-50", "fast").stages[-1]
    assert (last.name, last.objective.samples, last.objective.local_reconstruction) == ("k50", 50, ((0.1, 0.1),))


@pytest.mark.parametrize("schedule", document.schedule_names())
def test_every_schedule_trains_the_recipes_model_on_its_loss(schedule: str) -> None:
    for name in recipe_names():
        if schedule.startswith("letters") != name.startswith("ocr"):  # whose stages need validation rows
            continue
        mine, other = Recipe.named(name), Recipe.named(name, schedule)
        assert (mine.data, mine.model.hidden, mine.model.slots) == (other.data, other.model.hidden, other.model.slots)
        assert other.stages[-1].objective.samples <= mine.objective.samples
        assert {s.objective.local_reconstruction for s in other.stages} == {mine.objective.local_reconstruction}
        assert Recipe.from_toml(other.to_toml()) == other


def test_there_are_few_recipes_and_schedules_and_they_fit_on_a_screen() -> None:
    assert len(recipe_names()) <= 30
    assert len(document.schedule_names()) <= 6
    groups = recipe_groups()
    assert sum(1 + len(group.entries) for group in groups) <= 40
    assert {name for group in groups for name in group.entries} == {*recipe_names(), *document.schedule_names()}


def test_all_problems_are_said_at_once_a_line_each() -> None:
    with pytest.raises(MemgenError) as caught:
        Recipe.from_toml(
            "[training]\nepoch = 1\nrate = 0\n[model]\nhidden = [3, 0]\nlatent = [1, 2]\nmask = 1\n", "mine"
        )
    lines = str(caught.value).splitlines()
    assert all(line.startswith("mine: ") for line in lines)
    for words in (
        "did you mean 'epochs'",
        "rate must be above 0",
        "hidden must be at least 1",
        "true or false",
        "agree",
    ):
        assert sum(words in line for line in lines) == 1, words


@pytest.mark.parametrize(
    "text",
    [
        "about = 'x'\n" + "# " + "y" * document.BYTES,
        "value = " + "[" * 5000 + "]" * 5000,
        "a" + ".a" * 5000 + " = 1",
        "seed = " + "9" * 5000,
        "[model]\nhidden = " + "[" * 17 + "]" * 17,
    ],
)
def test_a_text_that_is_no_recipe_by_its_size_or_depth_is_refused(text: str) -> None:
    with pytest.raises(MemgenError, match=r"at most|more than 16 deep|not valid TOML") as caught:
        Recipe.from_toml(text, "mine")
    assert "\n" not in str(caught.value)


def test_a_bracket_in_a_text_or_a_comment_is_not_depth() -> None:
    assert Recipe.from_toml(f"about = '{'[' * 50}' # {'{' * 50}\n").about == "[" * 50


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("extends = 'mnist-vea'", "did you mean 'mnist-vae'"),
        ("schedule = 'fats'", "unknown schedule 'fats'; did you mean 'fast'"),
        ("[[stage]]\nepochs = 1", "needs a name"),
        ("[[stage]]\nname = 'a'\n[[stage]]\nname = 'a'", "name of its own"),
        ("[[stage]]\nname = 'a'\nsampels = 3", "unknown key 'sampels'"),
        ("stage = 3", r"\[\[stage\]\]"),
        ("schedule = 'fast'\n[[stage]]\nname = 'a'", "tables of its own"),
    ],
)
def test_a_wrong_reference_or_stage_is_refused(text: str, words: str) -> None:
    with pytest.raises(MemgenError, match=words):
        Recipe.from_toml(text, "mine")


def test_a_small_file_with_a_large_recipe_allocates_nothing(tmp_path: Path) -> None:
    """Shapes are compared before the model is built: 30,000 x 30,000 weights would be 3.6 GB."""
    recipe = Recipe().override(["model.hidden=[8]", "model.latent=2"])
    save(build(recipe), tmp_path / "small.safetensors", recipe)
    tensors, about = load_tensors(tmp_path / "small.safetensors")
    large = recipe.override("model.hidden=[30000, 30000]").to_toml()
    save_tensors(tmp_path / "small.safetensors", tensors, {**about, "recipe": large})
    with pytest.raises(MemgenError, match="does not fit its recipe") as caught:
        load(tmp_path / "small.safetensors")
    assert "\n" not in str(caught.value)


def test_saving_draws_no_random_numbers_and_checks_shapes(tmp_path: Path) -> None:
    recipe = Recipe().override(["model.hidden=[8]", "model.latent=2"])
    model = build(recipe)
    state = torch.random.get_rng_state()
    save(model, tmp_path / "a.safetensors", recipe)
    assert torch.random.get_rng_state().equal(state)
    with pytest.raises(MemgenError, match="has shape"):
        save(model, tmp_path / WEIGHTS, recipe.override("model.hidden=[9]"))
    check_shapes(recipe, 64, Run(tmp_path, recipe).form, model.state_dict(), "it")
