"""A step that is written down without autograd against autograd: the same loss, bound and gradients."""

from __future__ import annotations

import copy
from unittest.mock import patch

import pytest
import torch

from memgen import train
from memgen.fused import Step, fits
from memgen.model import DGM, Batch
from memgen.native.library import library
from memgen.recipe import Recipe, build
from memgen.train import begin, step_loss, train_step

needs_kernels = pytest.mark.skipif(library() is None, reason="there is no C compiler here, so autograd does all steps")
SMALL = ["model.hidden=[19, 13]", "model.latent=6"]
MEMORY = [*SMALL, "model.slots=[7, 4]", "objective.local_reconstruction=[0.3, 0.2]"]

CASES = {
    "without memory": ["model.slots=[]", "objective.local_reconstruction=[]", *SMALL],
    "with memory": MEMORY,
    "memory in one layer": [*SMALL, "model.slots=[0, 4]", "objective.local_reconstruction=[0.3, 0]"],
    "softmax and sum": [*MEMORY, "model.attention=softmax", "model.composition=sum"],
    "stl": [*MEMORY, "objective.estimator=stl"],
    "several samples": [*MEMORY, "objective.samples=4"],
    "several samples, elbo": [*MEMORY, "objective.samples=4", "objective.bound=elbo"],
    "several samples, elbo, stl": [*MEMORY, "objective.samples=4", "objective.bound=elbo", "objective.estimator=stl"],
    "Gaussian rows": [*MEMORY, "model.likelihood=gaussian"],
    "Gaussian rows with a floor": [
        *MEMORY,
        "model.likelihood=gaussian",
        "model.sigma_floor=0.7",
        "objective.samples=3",
    ],
    "one layer": ["model.hidden=[19]", "model.slots=[7]", "objective.local_reconstruction=[0.3]"],
    "no layers": ["model.hidden=[]", "model.slots=[]", "objective.local_reconstruction=[]"],
}


def case(settings: list[str]) -> tuple[DGM, Recipe]:
    """A model whose parameters are all away from their starting values, many of which have no gradient."""
    recipe = Recipe.named("digits-mem-vae").override(settings)
    torch.manual_seed(0)
    model = build(recipe).train()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model, recipe


def rows(model: DGM, B: int = 11) -> Batch:
    return Batch(torch.rand(B, model.likelihood.columns, generator=torch.Generator().manual_seed(1)).round())


@needs_kernels
@pytest.mark.parametrize("name", CASES)
def test_loss_bound_and_gradients_are_those_of_autograd(name: str) -> None:
    """In float64, autograd's are exact enough to be the truth."""
    model, recipe = case(CASES[name])
    assert fits(model, recipe)
    batch, K = rows(model), recipe.objective.samples
    noise = model.noise(K, len(batch.x), torch.Generator().manual_seed(2))
    step = Step(model, recipe.objective, K, len(batch.x))
    step(Batch(torch.zeros_like(batch.x)), noise)  # nothing of an earlier call may stay
    found = step(batch, noise)

    truth = copy.deepcopy(model).double()
    double = tuple(level.double() for level in noise)
    value, wanted = step_loss(truth, recipe, Batch(batch.x.double()), double, 1.0)
    value.backward()
    torch.testing.assert_close(found.double(), wanted, rtol=1e-6, atol=1e-4)
    for (path, parameter), other in zip(model.named_parameters(), truth.parameters(), strict=True):
        assert (parameter.grad is None) == (other.grad is None), path
        if parameter.grad is not None and other.grad is not None:
            error = float((parameter.grad.double() - other.grad).norm() / (other.grad.norm() + 1e-9))
            assert error < 2e-5, path


def test_what_does_not_fit_is_left_to_autograd() -> None:
    for settings in (
        ["objective.estimator=dreg", "objective.samples=3"],
        ["objective.kl_warmup_epochs=1"],
        ["model.norm=layer"],
        ["model.attention=top", "model.top=2"],
        ["model.mask=true"],
        ["model.hidden=[[9, 8], [7]]", "model.latent=[5, 3]", "model.slots=[[3, 2], [0]]"],
    ):
        model, recipe = case([*settings, "objective.local_reconstruction=[]"])
        assert not fits(model, recipe), settings
        assert begin(model, recipe).written is None
    model, recipe = case(MEMORY)
    assert not fits(model.double(), recipe)


@needs_kernels
def test_a_training_step_takes_the_written_one_unless_somebody_looks_on() -> None:
    """Both ways lead to the same weights, and a hook sees every pass."""
    models, seen = [], []
    for hooked in (False, True):
        model, recipe = case(MEMORY)
        if hooked:
            model.p[0].layers[0].memory.register_forward_hook(lambda *passed: seen.append(passed))
        state = begin(copy.deepcopy(model) if not hooked else model, recipe)
        state.written = {}  # as if the hook had come later
        with patch.object(train, "step_loss", wraps=step_loss) as ordinary:
            for _ in range(3):
                train_step(state, rows(model), recipe, 10)
        assert ordinary.call_count == (3 if hooked else 0)
        models.append(state.model)
    assert len(seen) == 3
    for (name, a), b in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=1e-4), name


@needs_kernels
def test_a_step_is_written_anew_when_the_weights_have_moved() -> None:
    """It knows them by their addresses."""
    model, recipe = case(MEMORY)
    state = begin(model, recipe)
    train_step(state, rows(model), recipe, 10)
    assert state.written is not None
    (first,) = state.written.values()
    before = [first.stale]
    weight = model.q[0].layers[0].linear.weight
    weight.data = weight.data.clone()
    before.append(first.stale)
    assert before == [False, True]
    train_step(state, rows(model), recipe, 10)
    assert [step.stale for step in state.written.values()] == [False]
    train_step(state, rows(model, 7), recipe, 10)
    assert {*state.written} == {(1, 11), (1, 7)}
