"""Training on several processes: whatever their number, the weights are those of one process, up to rounding."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
import torch.multiprocessing as mp

from memgen.core.batch import Batch
from memgen.data.dataset import Dataset
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training.distributed import Ranks
from memgen.training.fit import Epoch, stages
from memgen.training.prepare import prepare
from memgen.training.state import State, begin

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
    "model.hidden=[8, 6]",
)
MODELS = {
    "batch norm, memory, local reconstruction": (
        "model.slots=[5, 4]",
        "objective.local_reconstruction=[0.1, 0.2]",
    ),
    "several levels, K = 4": (
        "model.latent=[4, 3]",
        "model.hidden=[[8], [6]]",
        "model.slots=[[5], [4]]",
        "objective.samples=4",
        "objective.local_reconstruction=[[0.1], [0.2]]",
    ),
    "product keys": (
        "model.slots=[100, 0]",
        "model.attention=product",
        "model.top=3",
        "training.clip_norm=0.5",
    ),
    "doubly reparameterised gradient, K = 3": ("objective.samples=3", "objective.estimator=dreg"),
    "single sample of K = 3": (
        "objective.samples=3",
        "objective.estimator=single-shared",
        "objective.kl_warmup_epochs=2.0",
    ),
    "missing values": ("model.mask=true", "model.norm=layer", "model.likelihood=gaussian"),
}
"""Name -> what the model has beside COMMON."""


class Trained(NamedTuple):
    epochs: list[Epoch]
    tensors: dict[str, torch.Tensor]


def data_of(name: str) -> Dataset:
    random = torch.Generator().manual_seed(1)
    x = torch.rand(128, 10, generator=random)
    if name == "missing values":
        x[torch.rand(x.shape, generator=random) < 0.3] = torch.nan
        return Dataset("rows", x[:125], valid=x[100:])
    return Dataset("rows", x[:125], valid=x[100:], stochastic=True)


def begun(name: str, ranks: Ranks | None) -> tuple[Any, State]:
    """A model in float64, in which rounding cannot hide an error."""
    recipe = Recipe().override([*COMMON, *MODELS[name]])
    model = build(recipe, 10).double()
    ready = prepare(recipe, data_of(name), model=model)
    return ready, begin(model, ready.recipe, ranks=ranks)


def train(name: str, ranks: Ranks | None = None) -> Trained:
    ready, state = begun(name, ranks)
    epochs = [epoch for epoch, _ in stages(ready, state)]
    return Trained(epochs, {**state.tensors(), **ready.model.state_dict(prefix="result.")})


def join(index: int, size: int, file: str) -> Ranks:
    torch.set_num_threads(1)
    store = torch.distributed.FileStore(file, size)
    return Ranks.join(store, index, size, "cpu", 60)


def train_all(index: int, size: int, folder: str) -> None:
    """What one of several processes does: all models, one after the other."""
    ranks = join(index, size, f"{folder}/store-{size}")
    trained = {name: train(name, ranks) for name in MODELS}
    torch.save(trained, f"{folder}/{size}-{index}.pt")
    ranks.leave()


def spawned(work: Callable[..., None], size: int, *arguments: object) -> None:
    mp.start_processes(work, (size, *arguments), nprocs=size, start_method="fork")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, int], dict[str, Trained]]:
    """(number of ranks, rank) -> model -> the result."""
    folder = tmp_path_factory.mktemp("ranks")
    for size in (2, 4):
        spawned(train_all, size, str(folder))
    several = {
        (size, index): torch.load(folder / f"{size}-{index}.pt", weights_only=False)
        for size in (2, 4)
        for index in range(size)
    }
    return {(1, 0): {name: train(name) for name in MODELS}, **several}


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", MODELS)
def test_weights_do_not_depend_on_the_number_of_ranks(name: str, size: int, trained: Any) -> None:
    """After 50 steps: weights, averages, moments of the optimizer, statistics, and the best epoch."""
    one, several = trained[1, 0][name], trained[size, 0][name]
    assert one.tensors.keys() == several.tensors.keys()
    for key, value in one.tensors.items():
        torch.testing.assert_close(several.tensors[key], value, rtol=1e-7, atol=1e-9, msg=key, equal_nan=True)
    for first, second in zip(one.epochs, several.epochs, strict=True):
        assert first._replace(seconds=0) == pytest.approx(second._replace(seconds=0))
