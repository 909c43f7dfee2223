"""A step of training: the paper's Adam, rates, the KL warm-up, averages of weights."""

from __future__ import annotations

import math
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from memgen.cli.main import main
from memgen.core.model import Batch, infer_all
from memgen.core.objective import importance, loss, plain
from memgen.data import Dataset
from memgen.errors import MemgenError
from memgen.recipes.settings import Recipe
from memgen.runs.run import Run, load
from memgen.training.fit import fit, train_step
from memgen.training.prepare import adapt, prepare
from memgen.training.rates import adam_epsilon, learning_rate
from memgen.training.state import State, begin
from tests.training.small import coins, small


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


def test_reported_loss_is_the_bounds_for_every_estimator() -> None:
    recipe, model = small("objective.samples=3", "objective.estimator=dreg", "training.epochs=1")
    epoch = next(fit(model, coins(), recipe))
    assert epoch.loss == pytest.approx(-epoch.bound)


def test_stl_with_several_samples_warns() -> None:
    recipe, model = small("objective.samples=2", "objective.estimator=stl", "training.epochs=1")
    with pytest.warns(UserWarning, match="biased"):
        list(fit(model, coins(), recipe))


def test_a_compiled_loss_trains_like_the_plain_one(tmp_path: Path) -> None:
    """Weights after some epochs agree; what cannot be compiled is refused."""
    if shutil.which("g++") is None:
        pytest.skip("torch.compile needs a C++ compiler, and there is none")
    settings = [
        "model.hidden=[8]",
        "model.slots=[3]",
        "objective.local_reconstruction=[0.1]",
        "objective.estimator=stl",
    ]
    settings += ["training.epochs=2", "training.drop_incomplete=true", "training.evaluate_every=0"]
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
