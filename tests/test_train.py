"""Training: the paper's Adam, schedules, averages, exact continuation, and what stops it."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from memgen.cli.main import main
from memgen.core.model import DGM, Batch, infer_all
from memgen.core.objective import importance, loss, plain
from memgen.data import Dataset, dataset
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs.run import Run, load
from memgen.tasks.density import log_likelihood
from memgen.training import fit as train
from memgen.training.batches import batch_sizes, byte_levels, drawn
from memgen.training.fit import Epoch, NonFiniteError, fit, train_step
from memgen.training.prepare import adapt, prepare
from memgen.training.rates import adam_epsilon, learning_rate
from memgen.training.state import State, begin

SMALL = ["model.hidden=[12]", "model.latent=3", "model.slots=[4]", "training.epochs=3", "training.batch_size=16"]


def coins(n: int = 50, columns: int = 6) -> Dataset:
    own = torch.Generator().manual_seed(0)
    rows = torch.rand(n + 20, columns, generator=own)
    return Dataset("coins", rows[:n], rows[n : n + 10], rows[n + 10 :], stochastic=True)


def small(*more: str) -> tuple[Recipe, DGM]:
    recipe = Recipe().override([*SMALL, *more])
    return recipe, build(recipe, 6)


def weights(model: DGM) -> dict[str, Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def trained(model: DGM) -> dict[str, Tensor]:
    """Without the statistics, which are forgotten while training."""
    return {name: value.detach().clone() for name, value in model.named_parameters()}


def same(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[name].equal(b[name]) for name in a)


def test_adam_is_the_papers_with_epsilon_beside_the_uncorrected_root() -> None:
    """theta -= rate * sqrt(1 - b2^t) / (1 - b1^t) * m / (sqrt(v) + eps), in NumPy, with both clippings before it."""
    recipe, model = small(
        "training.optimizer=adam", "training.epsilon=1e-4", "training.clip_norm=0.5", "training.clip_value=0.1"
    )
    recipe = recipe.override(["training.schedule=constant"])
    state = begin(model, recipe)
    theta = {name: value.detach().double().numpy() for name, value in model.named_parameters()}
    m = {name: np.zeros_like(value) for name, value in theta.items()}
    v = {name: np.zeros_like(value) for name, value in theta.items()}
    for t in range(1, 6):
        batch = Batch((torch.rand(16, 6, generator=torch.Generator().manual_seed(t)) < 0.5).float())
        before = state.generator.get_state()
        noise = model.noise(1, 16, torch.Generator().set_state(before))
        raw = torch.autograd.grad(
            loss(plain(model, batch, noise, importance).surrogate, torch.zeros(())),
            list(model.parameters()),
            materialize_grads=True,
        )
        train_step(state, batch, recipe, 10)
        # Clipped to the global norm first, then entry by entry: the other order gives other numbers here.
        total = math.sqrt(sum(float((grad.double() ** 2).sum()) for grad in raw))
        assert total > 0.5
        clipped = [np.clip(grad.double().numpy() * 0.5 / total, -0.1, 0.1) for grad in raw]
        other = [np.clip(grad.double().numpy(), -0.1, 0.1) for grad in raw]
        assert max(np.abs(a - b * 0.5 / total).max() for a, b in zip(clipped, other, strict=True)) > 1e-3
        for (name, _), grad in zip(model.named_parameters(), clipped, strict=True):
            m[name] = 0.9 * m[name] + 0.1 * grad
            v[name] = 0.999 * v[name] + 0.001 * grad**2
            step = 1e-3 * math.sqrt(1 - 0.999**t) / (1 - 0.9**t)
            theta[name] = theta[name] - step * m[name] / (np.sqrt(v[name]) + 1e-4)
        assert not state.generator.get_state().equal(before)
        state.step += 1
    for name, value in model.named_parameters():
        np.testing.assert_allclose(value.detach().numpy(), theta[name], atol=2e-6)
    assert adam_epsilon(recipe.training, 0) == pytest.approx(1e-4 / math.sqrt(1 - 0.999))


def test_papers_schedule() -> None:
    training = Recipe.named("mnist-mem-vae").training
    rate = lambda epoch: learning_rate(training, epoch * 600, 600)  # noqa: E731
    assert rate(0) == rate(999) == 1e-3
    assert rate(1000) == pytest.approx(1e-3 * 0.998)
    assert rate(2999) == pytest.approx(1e-3 * 0.998**2000)


def test_cosine_schedule_with_warm_up() -> None:
    training = Recipe().override(["training.epochs=10", "training.warmup_steps=5", "training.final_rate=0.1"]).training
    rates = [learning_rate(training, t, 10) for t in range(100)]
    assert rates[0] == pytest.approx(training.rate / 5, rel=1e-3)
    assert max(rates) == pytest.approx(training.rate, rel=0.01)
    assert rates[-1] == pytest.approx(0.1 * training.rate, rel=0.01)
    assert rates[5:] == sorted(rates[5:], reverse=True)


@pytest.mark.parametrize(("n", "batch"), [(50, 1), (51, 2), (1, 16)])
def test_batch_norm_refuses_steps_of_a_single_row(n: int, batch: int) -> None:
    """Which has no variance: everything would be normalised to its bias, and Q would learn nothing."""
    recipe, model = small(f"training.batch_size={batch}")
    with pytest.raises(MemgenError, match=r"two rows or more in every step.*model\.norm=layer"):
        next(fit(model, coins(n), recipe))
    recipe, model = small(f"training.batch_size={batch}", "model.norm=layer")
    assert next(fit(model, coins(n), recipe)).epoch == 1


def test_kl_warm_up_weighs_the_kl_term() -> None:
    recipe, model = small("objective.kl_warmup_epochs=2")
    state = begin(model, recipe)
    state.epoch, state.step = 1, 0  # half of the warm-up
    x = Batch(torch.ones(16, 6))
    noise = model.noise(1, 16, torch.Generator().manual_seed(0))
    state.generator.manual_seed(0)
    estimate = plain(model, x, noise, importance, 0.5)
    torch.testing.assert_close(estimate.surrogate, infer_all(model, x, noise).tempered(0.5)[0])
    expected = torch.autograd.grad(
        loss(estimate.surrogate, torch.zeros(())), list(model.parameters()), materialize_grads=True
    )
    reported = train_step(state, x, recipe.override(["training.clip_norm=0"]), 4)
    for parameter, grad in zip(model.parameters(), expected, strict=True):
        torch.testing.assert_close(torch.zeros_like(parameter) if parameter.grad is None else parameter.grad, grad)
    assert reported[1].item() == pytest.approx(estimate.bound.mean().item(), rel=1e-5)  # with the whole KL term
    assert reported[0].item() == pytest.approx(-reported[1].item())


def test_averaged_weights_are_the_result_and_follow_the_formula() -> None:
    recipe, model = small("training.ema=0.8", "training.epochs=2")
    history: list[Tensor] = []
    name = "q.0.head.mean.weight"

    def note(state: State, steps: int) -> None:
        history.append(state.model.get_parameter(name).detach().clone())

    list(fit(model, coins(), recipe, tick=note))
    average = history[0]
    for value in history[1:]:
        average = 0.8 * average + 0.2 * value
    torch.testing.assert_close(model.get_parameter(name), average, atol=1e-6, rtol=1e-5)
    assert not torch.allclose(average, history[-1])


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


def test_a_model_can_begin_at_the_mean_of_the_rows() -> None:
    """With features of zero p(x = 1) is the mean; a column that is always 0 begins at a small probability."""
    recipe, model = small("model.start=mean")
    data = Dataset("coins", torch.tensor([[0.0, 1, 0, 1, 0, 1], [0, 1, 1, 0, 0, 0], [0, 1, 0, 0, 0, 0]]))
    adapt(prepare(recipe, data, model=model))
    mean = torch.sigmoid(model.likelihood.logits.bias.detach())
    assert mean[2:].tolist() == pytest.approx([1 / 3, 1 / 3, 1e-4, 1 / 3])
    assert mean[:2].tolist() == pytest.approx([1e-4, 1 - 1e-4])
    gaussian, model = small("model.start=mean", "model.likelihood=gaussian")
    adapt(prepare(gaussian, data, model=model))
    assert model.likelihood.mean.bias.tolist() == data.train.mean(0).tolist()
    categorical, model = small("model.start=mean", "model.likelihood=categorical")
    with pytest.raises(MemgenError, match="does not start at a mean"):
        adapt(prepare(categorical, data, model=model))


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


def test_reported_loss_is_the_bounds_for_every_estimator() -> None:
    recipe, model = small("objective.samples=3", "objective.estimator=dreg", "training.epochs=1")
    epoch = next(fit(model, coins(), recipe))
    assert epoch.loss == pytest.approx(-epoch.bound)


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


def test_stl_with_several_samples_warns() -> None:
    recipe, model = small("objective.samples=2", "objective.estimator=stl", "training.epochs=1")
    with pytest.warns(UserWarning, match="biased"):
        list(fit(model, coins(), recipe))


def test_fit_is_an_iterator_that_can_be_left() -> None:
    recipe, model = small("training.epochs=100000")
    stream: Iterator[Epoch] = fit(model, coins(), recipe)
    assert next(stream).epoch == 1
    assert next(stream).epoch == 2


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


def test_a_compiled_loss_trains_like_the_plain_one(tmp_path: Path) -> None:
    """Weights after some epochs agree; what cannot be compiled is refused."""
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    settings = ["model.hidden=[12, 8]", "model.slots=[5, 3]", "objective.estimator=stl", "training.epochs=3"]
    settings += ["training.drop_incomplete=true", "training.evaluate_every=0"]
    more = [part for setting in settings for part in ("--set", setting)]
    # Not in this process: torch.compile cannot look into functions whose types are being checked.
    command = [sys.executable, "-m", "memgen", "train", "digits-mem-vae", "--out", str(tmp_path / "compiled")]
    subprocess.run([*command, *more, "--compile"], check=True, capture_output=True)
    assert main(["train", "digits-mem-vae", "--out", str(tmp_path / "plain"), *more]) == 0
    checkpoint = Run.open(tmp_path / "compiled").checkpoint()
    assert checkpoint is not None
    assert checkpoint.execution["path"] == "compiled"
    plain, compiled = (load(tmp_path / name) for name in ("plain", "compiled"))
    for (name, a), b in zip(plain.named_parameters(), compiled.parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4), name
    warming, model = small("objective.kl_warmup_epochs=1")
    with pytest.raises(MemgenError, match="leave out --compile"):
        begin(model, warming, compiled=True)
