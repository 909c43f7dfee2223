"""Training goes on from a state as if it had never stopped."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import Tensor

from memgen.data import dataset
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training import fit as train
from memgen.training.fit import Epoch, fit
from memgen.training.state import State, begin
from tests.training.small import coins, same, small, trained, weights


def test_two_fits_with_a_seed_agree_to_the_bit_and_other_seeds_do_not() -> None:
    results = []
    for seed in (0, 0, 1):
        recipe, model = small(f"training.seed={seed}")
        list(fit(model, coins(), recipe))
        results.append(weights(model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


@pytest.mark.parametrize(
    "more",
    [
        [],
        ["training.ema=0.9", "training.optimizer=adam"],
        ["objective.samples=3", "objective.estimator=dreg"],
        ["objective.samples=3", "objective.estimator=single"],
        ["model.attention=product", "model.slots=[2500]", "model.top=3", "training.ema=0.9"],
    ],
)
def test_going_on_from_a_state_inside_an_epoch_is_exact(more: list[str]) -> None:
    recipe, model = small(*more)
    kept: dict[str, Tensor] = {}
    counts = (0, 0)

    def note(state: State, steps: int) -> None:
        nonlocal counts
        if (state.epoch, state.step) == (1, 2):
            kept.update({name: value.clone() for name, value in state.tensors().items()})
            counts = state.epoch, state.step

    whole = list(fit(model, coins(), recipe, tick=note))
    again = build(recipe, 6)
    state = begin(again, recipe)
    with torch.no_grad():
        for slot in state.optimizer.slots:
            if slot.last is None:
                slot.value.fill_(9.0)  # whatever was there before must not matter
            else:  # of such a memory only the rows that were ever read are kept
                rows = [kept[f"{part}.{slot.name}"] for part in ("model", "averaged", "first", "second")]
                assert {len(part) for part in rows} == {len(kept[f"rows.{slot.name}"])}
                assert 0 < len(rows[0]) < len(slot.value) / 2
    state.restore(kept)
    state.epoch, state.step = counts
    rest = list(fit(again, coins(), recipe, state=state))
    assert same(weights(model), weights(again))
    assert [epoch._replace(seconds=0) for epoch in rest] == [epoch._replace(seconds=0) for epoch in whole[1:]]


def test_a_warm_start_keeps_the_rows_of_a_large_memory_that_no_step_has_touched() -> None:
    """Rows that the seed did not make must be in the checkpoint, also those that were never read."""
    settings = ["model.slots=[4096]", "model.attention=product", "model.top=2", "training.ema=0.9"]
    recipe, model = small(*settings)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.25)
    state = begin(model, recipe, foreign=True)
    next(iter(fit(model, coins(), recipe, state=state)))
    fresh = begin(build(recipe, 6), recipe)
    fresh.restore(state.tensors())
    assert state.averaged is not None
    assert fresh.averaged is not None
    assert same(trained(state.model), trained(fresh.model))
    assert same(trained(state.averaged), trained(fresh.averaged))
    again = begin(build(recipe, 6), recipe)
    again.restore(fresh.tensors())  # and a second time
    assert same(trained(state.model), trained(again.model))


def test_a_small_memory_that_is_all_used_does_not_fill_the_checkpoint_with_a_large_one() -> None:
    sizes = ["model.hidden=[12, 8]", "model.slots=[4096, 4]", "model.attention=top", "model.top=3"]
    recipe, model = small(*sizes, "objective.local_reconstruction=[]")
    state = begin(model, recipe)
    next(iter(fit(model, coins(), recipe, state=state)))
    kept = state.tensors()
    rows = {key: len(value) for key, value in kept.items() if key.startswith("rows.")}
    assert min(rows.values()) == 4  # all of them
    assert 4 < max(rows.values()) < 2048
    fresh = begin(build(recipe, 6), recipe)
    fresh.restore(kept)
    again = fresh.tensors()
    assert {key: len(again[key]) for key in rows} == rows


def test_fit_is_an_iterator_that_can_be_left() -> None:
    recipe, model = small("training.epochs=100000")
    stream: Iterator[Epoch] = fit(model, coins(), recipe)
    assert next(stream).epoch == 1
    assert next(stream).epoch == 2


def test_the_best_epoch_on_validation_rows_is_kept_and_survives_a_checkpoint(monkeypatch: pytest.MonkeyPatch) -> None:
    """The result is that of the epoch whose validation rows scored best, to the bit; here the second, by decree."""
    decreed = iter([-5.0, -3.0, -4.0, -6.0])
    monkeypatch.setattr(train, "_score", lambda m, d, split, *s: -1.0 if split == "train" else next(decreed))
    data = dataset("digits")
    settings = ["training.keep=best", "training.evaluate_every=1", "training.epochs=4", "training.evaluate_rows=100"]
    recipe = Recipe.named("digits-mem-vae").override(settings)
    model = build(recipe)
    state = begin(model, recipe)
    seen = {}
    for epoch in fit(model, data, recipe, state=state):
        seen[epoch.epoch] = (epoch.valid_bound, {name: v.clone() for name, v in state.result.state_dict().items()})
    assert state.best.epoch == 2
    for name, value in model.state_dict().items():
        assert value.equal(seen[2][1][name]), name
    assert not model.p[0].head.logits.bias.equal(seen[4][1]["p.0.head.logits.bias"])
    other = begin(build(recipe), recipe)
    other.restore(state.tensors())
    assert (other.best.epoch, other.best.bound) == (state.best.epoch, state.best.bound)
    assert all(value.equal(model.state_dict()[name]) for name, value in other.chosen_weights.items())
    with pytest.raises(MemgenError, match="validation rows"):
        recipe.override("data.train_on=train+valid")
