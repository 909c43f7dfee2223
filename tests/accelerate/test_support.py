"""Which steps are accelerated, and when a plan is made anew."""

from __future__ import annotations

import copy
from unittest.mock import patch

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from memgen.accelerate.step import PlannedStep, supports
from memgen.core.memory import Memory
from memgen.core.model import DGM, Batch
from memgen.training import gradients
from memgen.training.execution import PlannedSteps
from memgen.training.fit import train_step
from memgen.training.losses import step_loss
from memgen.training.state import begin
from tests.accelerate.cases import KEYS, MEMORY, case, needs_kernels, rows


@needs_kernels
@pytest.mark.parametrize(
    "settings",
    [
        ["objective.estimator=single-shared", "objective.samples=3"],
        ["model.norm=layer"],
        ["model.attention=top", "model.top=2"],
        ["model.mask=true"],
        ["model.skip=true"],
        ["model.likelihood=categorical", "model.categories=2"],
        ["model.hidden=[[9, 8], [7]]", "model.latent=[5, 3]", "model.slots=[[3, 2], [0]]"],
    ],
)
def test_recipes_that_do_not_fit(settings: list[str]) -> None:
    model, recipe = case([*settings, "objective.local_reconstruction=[]"])
    assert not supports(model, recipe.objective)
    with pytest.raises(ValueError, match="cannot be planned"):
        PlannedStep(model, recipe.objective, 1, 100)


@needs_kernels
def test_models_that_do_not_fit() -> None:
    """Models that were changed are computed by autograd."""
    model, recipe = case(MEMORY)
    objective = recipe.objective
    assert supports(model, objective)
    assert supports(copy.deepcopy(model), objective)

    class Other(DGM):
        pass

    def other_sizes() -> DGM:
        return case([*MEMORY, "model.hidden=[9, 8]"])[0]

    layers = [model.p[0].layers[i] for i in (0, 1)]
    changes = {
        "a class of one's own": lambda m: setattr(m, "__class__", Other),
        "float64": lambda m: m.double(),
        "memory in Q": lambda m: m.q[0].layers.__setitem__(1, copy.deepcopy(layers[0])),
        "one memory for both layers": lambda m: setattr(m.p[0].layers[1], "memory", m.p[0].layers[0].memory),
        "weights that are computed": lambda m: weight_norm(m.p[0].layers[0].dense.linear),
        "no bias": lambda m: setattr(m.p[0].layers[0].attention, "A", torch.nn.Linear(13, 4, bias=False)),
        "another norm": lambda m: setattr(m.q[0].layers[0], "norm", torch.nn.BatchNorm1d(19)),
        "layers of other sizes than Q's": lambda m: setattr(m, "p", other_sizes().p),
        "more inputs than x": lambda m: setattr(m.q[0].layers[0], "linear", torch.nn.Linear(70, 19)),
        "a memory of another size": lambda m: setattr(m.p[0].layers[0], "memory", Memory(13, 9)),
        "a floor in Q": lambda m: setattr(m.q[0].head, "floor", 0.1),
    }
    for name, change in changes.items():
        other = copy.deepcopy(model)
        change(other)
        assert not supports(other, objective), name


@needs_kernels
def test_a_step_is_not_taken_where_autograd_would_do_otherwise() -> None:
    """A parameter is frozen, a part switched to evaluation or something hooked in the middle of things."""
    model, recipe = case(MEMORY)
    planned, batch = PlannedSteps(), rows(model)

    def taken(other: Batch = batch) -> bool:
        return planned.find(model, recipe.objective, other) is not None

    assert taken()
    parameter, memory = model.get_parameter("p.0.head.logits.bias"), model.get_submodule("p.0.layers.0.memory")
    for look_on in (
        parameter.register_hook,
        parameter.register_post_accumulate_grad_hook,
        memory.register_forward_hook,
        memory.register_forward_pre_hook,
        memory.register_full_backward_hook,
        memory.register_full_backward_pre_hook,
        torch.nn.modules.module.register_module_forward_hook,
    ):
        handle = look_on(lambda *passed: None)
        assert not taken()
        handle.remove()
        assert taken()
    parameter.requires_grad_(False)
    assert not taken()
    parameter.requires_grad_(True)
    model.get_submodule("q.0.layers.0.norm").eval()
    assert not taken()
    model.train()
    with torch.autocast("cpu"):
        assert not taken()
    assert not taken(Batch(batch.x, batch.x > 2))
    assert taken(Batch(batch.x, label=torch.zeros(len(batch), dtype=torch.int64)))
    assert taken()


@needs_kernels
@pytest.mark.parametrize("settings", [MEMORY, KEYS])
def test_training_takes_the_planned_step_unless_a_part_is_hooked(settings: list[str]) -> None:
    """Both ways lead to the same weights, and a hook sees every pass."""
    models, seen = [], []
    for hooked in (False, True):
        model, recipe = case(settings)
        state = copy.deepcopy(begin(model, recipe))
        if hooked:
            memory = state.model.get_submodule("p.0.layers.0.memory")
            memory.register_forward_hook(lambda *passed: seen.append(passed))
        with patch.object(gradients, "step_loss", wraps=step_loss) as ordinary:
            for B in (11, 7, 11):
                train_step(state, rows(model, B), recipe, 10)
        assert ordinary.call_count == (3 if hooked else 0)
        models.append(state.model)
        copy.deepcopy(state)
    assert len(seen) == 3
    # Adam divides small gradients by themselves: in float32 either way is off by 1e-4 of float64's after three steps.
    for (name, a), b in zip(models[0].named_parameters(), models[1].parameters(), strict=True):
        assert torch.allclose(a, b, rtol=1e-3, atol=4e-4), name


@needs_kernels
def test_steps_are_planned_once_the_kl_term_counts_in_full() -> None:
    model, recipe = case([*MEMORY, "objective.kl_warmup_epochs=0.2"])
    state = begin(model, recipe)
    ordinary = []
    with patch.object(gradients, "step_loss", wraps=step_loss) as called:
        for state.step in range(4):  # weights 0, 1/2, 1, 1
            train_step(state, rows(model), recipe, 10)
            ordinary.append(called.call_count)
    assert ordinary == [1, 2, 2, 2]


@needs_kernels
def test_a_step_is_planned_anew_when_the_weights_have_moved_or_the_loss_is_another() -> None:
    """It knows weights by their addresses."""
    model, recipe = case(MEMORY)
    planned, batch = PlannedSteps(), rows(model)
    noise = model.noise(1, len(batch.x), torch.Generator().manual_seed(2))
    first = planned.find(model, recipe.objective, batch)
    assert first is not None
    assert planned.find(model, recipe.objective, batch) is first
    weight = model.get_parameter("q.0.layers.0.linear.weight")
    weight.data = weight.data.clone()
    second = planned.find(model, recipe.objective, batch)
    assert second is not None
    assert second is not first
    third = planned.find(model, recipe.override("objective.local_reconstruction=[]").objective, batch)
    assert third is not None
    assert third(batch, noise)[0] < second(batch, noise)[0]
    with pytest.raises(ValueError, match="is for rows"):
        second(Batch(batch.x[:, :1]), noise)
