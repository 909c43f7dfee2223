"""Training on several processes: whatever their number, the weights are those of one process, up to rounding."""

from __future__ import annotations

import contextlib
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch._C._distributed_c10d import FileStore

from memgen.data.dataset import Dataset
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training.distributed import Ranks
from memgen.training.fit import Epoch, stages
from memgen.training.prepare import prepare
from memgen.training.state import State, begin
from tests.distributed.ranks import spawned

COMMON = (
    "training.epochs=5",
    "training.batch_size=13",  # 10 steps of an epoch, of 12 or 13 rows: no rank count divides all of them
    "training.rate=0.01",
    "training.seed=3",
    "training.evaluate_every=2",
    "training.evaluate_rows=100",
    "training.evaluate_samples=5",
    "training.ema=0.9",
    "training.keep=best",
    "model.latent=3",
    "model.hidden=[8]",
)
MODELS = {
    "two levels, product keys, K = 4, missing values": (
        "model.latent=[4, 3]",
        "model.hidden=[[8], [6]]",
        "model.slots=[[100], [4]]",
        "model.attention=product",
        "model.top=3",
        "model.mask=true",
        "model.likelihood=gaussian",
        "objective.samples=4",
        "objective.local_reconstruction=[[0.1], [0.2]]",
    ),
    "doubly reparameterised gradient, K = 3, two stages": (
        "model.hidden=[8, 6]",
        "objective.samples=3",
        "objective.estimator=dreg",
        "training.clip_norm=0.5",
    ),
    "single sample of K = 3": (
        "model.slots=[5]",
        "objective.samples=3",
        "objective.estimator=single-shared",
        "objective.kl_warmup_epochs=2.0",
    ),
}
"""Name -> what the model has beside COMMON; all have batch norm."""
ALL, DREG, _ = MODELS
SIZES = {2: tuple(MODELS), 4: (ALL,)}
"""Number of ranks -> the models that they train."""


class Trained(NamedTuple):
    epochs: list[Epoch]
    tensors: dict[str, torch.Tensor]


def data_of(name: str) -> Dataset:
    random = torch.Generator().manual_seed(1)
    x = torch.rand(128, 10, generator=random)
    if "missing values" in name:
        x[torch.rand(x.shape, generator=random) < 0.3] = torch.nan
        return Dataset("rows", x[:125], valid=x[100:])
    return Dataset("rows", x[:125], valid=x[100:], stochastic=True)


def begun(name: str, ranks: Ranks | None) -> tuple[Any, State]:
    """A model in float64, in which rounding cannot hide an error."""
    recipe = Recipe().override([*COMMON, *MODELS[name]])
    if "two stages" in name:
        first = recipe.stages[0]
        second = replace(first, name="second", training=replace(first.training, epochs=2, batch_size=31))
        recipe = replace(recipe, stages=(first, second))
    model = build(recipe, 10).double()
    ready = prepare(recipe, data_of(name), model=model)
    return ready, begin(model, ready.recipe, ranks=ranks)


def train(name: str, ranks: Ranks | None = None) -> Trained:
    ready, state = begun(name, ranks)
    epochs = [epoch for epoch, _ in stages(ready, state)]
    return Trained(epochs, {**state.tensors(), **ready.model.state_dict(prefix="result.")})


def join(index: int, size: int, file: str) -> Ranks:
    torch.set_num_threads(1)
    store = FileStore(file, size)
    return Ranks.join(store, index, size, "cpu", 60)


def train_all(index: int, size: int, folder: str) -> None:
    """What one of several processes does: all models, one after the other."""
    ranks = join(index, size, f"{folder}/store-{size}")
    trained = {name: train(name, ranks) for name in SIZES[size]}
    torch.save(trained, f"{folder}/{size}-{index}.pt")
    ranks.leave()


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Trained]]:
    """(number of ranks, rank) -> model -> the result."""
    folder = tmp_path_factory.mktemp("ranks")
    for size in SIZES:
        spawned(train_all, size, str(folder))
    several = {
        (size, index): torch.load(folder / f"{size}-{index}.pt", weights_only=False)
        for size in SIZES
        for index in range(size)
    }
    return {(1, 0): {name: train(name) for name in MODELS}, **several}


@pytest.mark.parametrize(("size", "name"), [(size, name) for size in SIZES for name in SIZES[size]])
def test_weights_do_not_depend_on_the_number_of_ranks(size: int, name: str, trained: Any) -> None:
    """After 50 steps: weights, averages, moments of the optimizer, statistics, and the best epoch."""
    one, several = trained[1, 0][name], trained[size, 0][name]
    assert one.tensors.keys() == several.tensors.keys()
    for key, value in one.tensors.items():
        torch.testing.assert_close(several.tensors[key], value, rtol=1e-7, atol=1e-9, msg=key, equal_nan=True)
    for first, second in zip(one.epochs, several.epochs, strict=True):
        assert first.stage == second.stage
        numbers = [[-1.0 if x is None else x for x in epoch._replace(seconds=0)[:-1]] for epoch in (first, second)]
        assert numbers[0] == pytest.approx(numbers[1])


def test_all_ranks_have_the_same_bits(trained: Any) -> None:
    """Weights, moments and best epochs, which no rank sends to the others."""
    for size, names in SIZES.items():
        for name in names:
            first, *others = [trained[size, index][name].tensors for index in range(size)]
            for other in others:
                assert all(torch.equal(value.nan_to_num(7), other[key].nan_to_num(7)) for key, value in first.items())


def part_of_training(ready: Any, state: State, steps: int) -> State:
    """The state after some steps, in the middle of an epoch."""

    def tick(state: State, of_epoch: int) -> None:
        if state.optimizer.t == steps:
            raise StopIteration

    with contextlib.suppress(RuntimeError):  # what a StopIteration becomes inside a generator
        list(stages(ready, state, tick=tick))
    return state


def train_a_part(index: int, size: int, folder: str) -> None:
    ranks = join(index, size, f"{folder}/store")
    state = part_of_training(*begun(ALL, ranks), 23)
    if ranks.writes:
        torch.save((state.tensors(), state.epoch, state.step), f"{folder}/state.pt")
    ranks.leave()


def test_another_number_of_ranks_can_go_on(tmp_path: Path, trained: Any) -> None:
    """Two ranks begin, and one process ends with the weights that it alone would have had."""
    spawned(train_a_part, 2, str(tmp_path))
    ready, state = begun(ALL, None)
    tensors, state.epoch, state.step = torch.load(tmp_path / "state.pt", weights_only=False)
    assert (state.epoch, state.step) == (2, 3)
    state.restore(tensors)
    list(stages(ready, state))
    for key, value in trained[1, 0][ALL].tensors.items():
        torch.testing.assert_close(
            {**state.tensors(), **ready.model.state_dict(prefix="result.")}[key], value, msg=key, equal_nan=True
        )


def train_after_a_drift(index: int, size: int, folder: str) -> None:
    ranks = join(index, size, f"{folder}/store")
    ready, state = begun(DREG, ranks)
    with torch.no_grad():
        for tensor in state.optimizer.tensors:
            tensor.add_(1e-3 * index)
    list(stages(ready, state))
    if ranks.writes:
        torch.save(state.tensors(), f"{folder}/drifted.pt")
    ranks.leave()


def test_ranks_whose_weights_have_drifted_apart_are_brought_together(tmp_path: Path, trained: Any) -> None:
    """As if processors had rounded differently: every epoch begins with the bits of rank 0."""
    spawned(train_after_a_drift, 2, str(tmp_path))
    for key, value in torch.load(tmp_path / "drifted.pt", weights_only=False).items():
        torch.testing.assert_close(value, trained[2, 0][DREG].tensors[key], rtol=0, atol=0, msg=key, equal_nan=True)


def say_things(index: int, size: int, folder: str) -> None:
    ranks = join(index, size, f"{folder}/store")
    assert ranks.words("ä recipe" if ranks.writes else "") == "ä recipe"
    assert ranks.words("") == ""
    assert ranks.all_words("x" * index) == ["x" * i for i in range(size)]
    assert [part.tolist() for part in ranks.gather(torch.arange(index))] == [list(range(i)) for i in range(size)]
    given = {"a": torch.eye(2, dtype=torch.float64), "b": torch.tensor(3), "c": torch.zeros(0, 3)}
    received = ranks.tensors(given if ranks.writes else None)
    assert all(torch.equal(received[name], value) for name, value in given.items())
    assert ranks.any(index == 1)
    assert not ranks.any(False)
    parts = [Ranks(i, size, ranks.group, ranks.device).own(10) for i in range(size)]
    assert [row for part in parts for row in range(10)[part]] == list(range(10))
    ranks.leave()


def test_ranks_tell_each_other_texts_and_tensors(tmp_path: Path) -> None:
    spawned(say_things, 3, str(tmp_path))
