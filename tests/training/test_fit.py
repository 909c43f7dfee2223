"""Training over epochs: it learns, binarises anew, reports the evaluator's bounds, and stops where it must."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from memgen.data import Dataset, dataset
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood
from memgen.training.batches import batch_sizes, byte_levels, drawn
from memgen.training.fit import NonFiniteError, fit
from memgen.training.state import State
from tests.training.small import coins, small, weights


@pytest.mark.parametrize(("n", "batch"), [(50, 1), (51, 2), (1, 16)])
def test_batch_norm_refuses_steps_of_a_single_row(n: int, batch: int) -> None:
    """Which has no variance: everything would be normalised to its bias, and Q would learn nothing."""
    recipe, model = small(f"training.batch_size={batch}")
    with pytest.raises(MemgenError, match=r"two rows or more in every step.*model\.norm=layer"):
        next(fit(model, coins(n), recipe))
    recipe, model = small(f"training.batch_size={batch}", "model.norm=layer")
    assert next(fit(model, coins(n), recipe)).epoch == 1


def test_bounds_at_intervals_are_the_evaluators_under_one_protocol() -> None:
    recipe, model = small("training.evaluate_every=2", "training.evaluate_samples=7", "training.evaluate_rows=30")
    data = coins()
    epochs = list(fit(model, data, recipe))
    assert [epoch.train_bound is None for epoch in epochs] == [True, False, False]  # every second, and the last
    for split, value in (("train", epochs[-1].train_bound), ("valid", epochs[-1].valid_bound)):
        assert log_likelihood(model, data.fixed(split).rows(slice(30)), 7).mean == pytest.approx(value, abs=1e-4)


def test_nothing_is_held_out_when_training_on_train_and_valid() -> None:
    recipe, model = small("data.train_on=train+valid", "training.batch_size=60", "training.drop_incomplete=true")
    epochs = list(fit(model, coins(), recipe))  # 50 + 10 rows fill one batch of 60
    assert epochs[-1].train_bound is not None
    assert epochs[-1].valid_bound is None


def test_training_learns() -> None:
    recipe = Recipe.named("digits-mem-vae").override(["training.epochs=15"])
    data, model = dataset("digits"), build(Recipe.named("digits-mem-vae"))
    epochs = list(fit(model, data, recipe))
    assert epochs[-1].bound > epochs[0].bound + 8
    assert epochs[-1].valid_bound is not None
    assert epochs[-1].valid_bound > -26


def test_each_epoch_binarises_anew() -> None:
    recipe, model = small("training.epochs=2", "training.batch_size=50")
    seen: list[Tensor] = []
    model.q[0].register_forward_pre_hook(
        lambda module, inputs: seen.append(inputs[0].clone()) if model.training else None
    )
    list(fit(model, coins(), recipe))
    assert len(seen) == 2
    assert all(set(x.unique().tolist()) == {0.0, 1.0} for x in seen)
    assert sorted(map(tuple, seen[0].tolist())) != sorted(map(tuple, seen[1].tolist()))


def test_a_non_finite_loss_stops_training_and_says_where() -> None:
    recipe, model = small()

    def poison(state: State, steps: int) -> None:
        if (state.epoch, state.step) == (1, 2):
            with torch.no_grad():
                state.model.get_parameter("p.0.head.logits.bias").fill_(torch.nan)

    with pytest.raises(NonFiniteError, match="loss was not finite in epoch 2, step 3 of 4"):
        list(fit(model, coins(), recipe, tick=poison))


def test_a_non_finite_gradient_stops_training_too() -> None:
    recipe, model = small()
    parameter = model.get_parameter("p.0.head.logits.bias")
    calls = iter(range(100))
    parameter.register_hook(lambda grad: grad * torch.inf if next(calls) == 5 else grad)
    with pytest.raises(NonFiniteError, match="gradient was not finite in epoch 2, step 2 of 4"):
        list(fit(model, coins(), recipe))


def test_a_weight_that_overflows_is_noticed_before_anything_is_kept() -> None:
    recipe, model = small("training.rate=1e39", "training.batch_size=1000", "training.epochs=1", "model.norm=none")
    with pytest.raises(NonFiniteError, match="a weight was not finite after epoch 1, step 1 of 1"):
        list(fit(model, coins(), recipe))


def test_bad_validation_rows_are_refused_before_training() -> None:
    recipe, model = small()
    for stochastic in (False, True):
        rows = (torch.rand(20, 6) < 0.5).float()
        data = Dataset("bad", rows, valid=torch.full((5, 6), torch.nan), stochastic=stochastic)
        with pytest.raises(MemgenError, match="validation data has a NaN"):
            next(fit(model, data, recipe))


def test_fewer_rows_than_a_batch() -> None:
    recipe, model = small("training.batch_size=1000")
    assert len(list(fit(model, coins(), recipe))) == 3
    with pytest.raises(MemgenError, match="50 rows do not fill a batch of 1000"):
        list(fit(model, coins(), recipe.override(["training.drop_incomplete=true"])))
    assert batch_sizes(1, recipe.training) == [1]


@pytest.mark.parametrize(
    ("rows", "stochastic", "message"),
    [
        (torch.full((20, 6), torch.nan), False, "NaN or an infinity, first at row 0, column 0"),
        (torch.full((20, 6), torch.nan), True, "NaN or an infinity, first at row 0, column 0"),
        (torch.full((20, 6), torch.inf), False, "infinity"),
        (torch.full((20, 6), 1.5), True, r"must lie in \[0, 1\]"),
        (torch.full((20, 6), -2.0), False, r"needs values in \[0, 1\]"),
        (torch.full((20, 6), 0.5), False, "stochastic=True"),
        (torch.zeros(20, 5), False, "5 columns, the model has 6"),
        (torch.zeros(0, 6), False, "at least one row"),
    ],
)
def test_bad_rows_are_refused_before_anything_is_trained(rows: Tensor, stochastic: bool, message: str) -> None:
    recipe, model = small()
    before = weights(model)
    with pytest.raises(MemgenError, match=message):
        list(fit(model, Dataset("bad", rows, stochastic=stochastic), recipe))
    after = weights(model)
    assert all(torch.equal(before[name].nan_to_num(), after[name].nan_to_num()) for name in before)


def test_grey_levels_under_a_gaussian_are_not_binarised() -> None:
    recipe, model = small("model.likelihood=gaussian", "model.sigma_floor=0.05")
    seen: list[Tensor] = []
    model.q[0].register_forward_pre_hook(lambda module, inputs: seen.append(inputs[0]))
    list(fit(model, coins(), recipe))
    assert all(len(x.unique()) > 2 for x in seen)


def test_bytes_draw_with_exactly_the_probability_that_they_name() -> None:
    """Of all 256 bytes, v are below v; the mean over many draws is v/256 within its error, never v/255."""
    v = torch.arange(256).repeat(2000, 1)
    rows = v.float() / 256
    levels = byte_levels(rows)
    assert levels is not None
    assert levels.equal(v.to(torch.uint8))
    x = drawn(rows, levels, torch.arange(len(rows)), torch.Generator().manual_seed(0))
    error = (rows[0] * (1 - rows[0]) / len(rows)).sqrt()
    assert ((x.mean(0) - rows[0]).abs() <= 4.5 * error).all()
    assert x[:, 0].sum() == 0  # v = 0 is never drawn
    assert abs(float((x - rows).mean())) < 4 * float(error.mean()) / 16  # while v/255 would be off by 0.002
    other = drawn(rows, levels, torch.arange(len(rows)), torch.Generator().manual_seed(1))
    assert 0.5 < float((x == other).float().mean()) < 0.8


def test_other_levels_are_drawn_from_floats() -> None:
    for rows in (torch.tensor([[0.0, 1.0]]), torch.tensor([[0.3, 0.5]]), torch.tensor([[1 / 255, 0.0]])):
        assert byte_levels(rows) is None
    rows = torch.tensor([[0.0, 1.0, 0.3]]).repeat(4000, 1)
    x = drawn(rows, None, torch.arange(4000), torch.Generator().manual_seed(0))
    assert x[:, 0].sum() == 0
    assert x[:, 1].sum() == 4000
    assert abs(float(x[:, 2].mean()) - 0.3) < 0.03
