"""Every accelerated function against its plain definition: training steps, the evaluator's log w, pieces of both."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import weakref
from unittest.mock import patch

import pytest
import torch
from torch.nn.utils.parametrizations import weight_norm

from memgen import accelerate
from memgen.accelerate import worker as workers
from memgen.accelerate.blocks import blocks
from memgen.accelerate.program import blas
from memgen.accelerate.step import PlannedStep, supports
from memgen.core.memory import Memory
from memgen.core.model import DGM, Batch
from memgen.core.objective import CHOOSING
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.training import fit as train
from memgen.training.execution import PlannedSteps
from memgen.training.fit import train_step
from memgen.training.losses import step_loss
from memgen.training.state import begin

needs_kernels = pytest.mark.skipif(
    not blas(), reason="there is no C compiler here, or a torch without MKL, so autograd does all steps"
)
SMALL = ["model.hidden=[19, 13]", "model.latent=6"]
MEMORY = [*SMALL, "model.slots=[7, 4]", "objective.local_reconstruction=[0.3, 0.2]"]
KEYS = [*MEMORY, "model.slots=[25, 9]", "model.attention=product", "model.top=4"]

CASES = {
    "without memory": ["model.slots=[]", "objective.local_reconstruction=[]", *SMALL],
    "with memory": MEMORY,
    "memory in one layer": [*SMALL, "model.slots=[0, 4]", "objective.local_reconstruction=[0.3, 0]"],
    "softmax and sum": [*MEMORY, "model.attention=softmax", "model.composition=sum"],
    "stl": [*MEMORY, "objective.estimator=stl"],
    "several samples": [*MEMORY, "objective.samples=4"],
    "several samples, elbo": [*MEMORY, "objective.samples=4", "objective.bound=elbo"],
    "several samples, elbo, stl": [*MEMORY, "objective.samples=4", "objective.bound=elbo", "objective.estimator=stl"],
    "dreg": [*MEMORY, "objective.samples=4", "objective.estimator=dreg"],
    "dreg with one sample": [*MEMORY, "objective.estimator=dreg"],
    "dreg without memory": ["model.slots=[]", *SMALL, "objective.samples=3", "objective.estimator=dreg"],
    "dreg, softmax, sum, Gaussian": [
        *(*MEMORY, "model.attention=softmax", "model.composition=sum", "model.likelihood=gaussian"),
        *("objective.samples=3", "objective.estimator=dreg"),
    ],
    "Gaussian rows": [*MEMORY, "model.likelihood=gaussian"],
    "Gaussian rows with a floor": [
        *MEMORY,
        "model.likelihood=gaussian",
        "model.sigma_floor=0.7",
        "objective.samples=3",
    ],
    "one layer": ["model.hidden=[19]", "model.slots=[7]", "objective.local_reconstruction=[0.3]"],
    "a large epsilon": [*MEMORY, "model.norm_epsilon=0.5", "objective.samples=2"],
    "one slot": [*MEMORY, "model.slots=[1, 1]", "objective.samples=2"],
    "product keys": KEYS,
    "product keys, all slots": [*MEMORY, "model.slots=[4, 9]", "model.attention=product", "model.top=9"],
    "product keys, sum, several samples": [
        *(*MEMORY, "model.slots=[64, 0]", "model.attention=product", "model.top=5", "model.composition=sum"),
        "objective.samples=4",
    ],
    "product keys, dreg": [
        *(*MEMORY, "model.slots=[0, 49]", "model.attention=product", "model.top=5"),
        *("objective.samples=3", "objective.estimator=dreg"),
    ],
    "single": [*MEMORY, "objective.samples=4", "objective.estimator=single"],
    "single, product keys": [*KEYS, "objective.samples=3", "objective.estimator=single"],
    "single, Gaussian rows without memory": [
        *("model.slots=[]", *SMALL, "model.likelihood=gaussian", "objective.samples=50", "objective.estimator=single"),
    ],
    "no layers": ["model.hidden=[]", "model.slots=[]", "objective.local_reconstruction=[]"],
}


BLOCKED = [
    (name, most)
    for name, settings in CASES.items()
    for most in ((1000, 8, 3) if any("samples" in setting for setting in settings) else (1000, 3))
]
"""With the most rows of a block: all, some samples, or some rows of a sample."""


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
@pytest.mark.parametrize(("name", "most"), BLOCKED)
def test_loss_bound_and_gradients_are_those_of_autograd(name: str, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In float64, autograd's are exact enough to be the truth. So it is however many threads share the rows, and
    whether these go through the net at once, some samples at a time, or some rows of a sample."""
    monkeypatch.setattr(workers, "ROWS", most)
    model, recipe = case(CASES[name])
    assert supports(model, recipe.objective)
    batch, K = rows(model), recipe.objective.samples + (recipe.objective.estimator in CHOOSING)
    noise = model.noise(K, len(batch.x), torch.Generator().manual_seed(2))
    truth = copy.deepcopy(model).double()
    double = tuple(level.double() for level in noise)
    value, wanted = step_loss(truth, recipe, Batch(batch.x.double()), double, 1.0)
    value.backward()

    step = accelerate.training_step(model, recipe.objective, len(batch.x))
    assert step is not None
    for count in (1, 2, 3):
        step.compile(count)
        for parameter in model.parameters():  # nothing of an earlier step may stay, ...
            parameter.grad = torch.ones_like(parameter)
        step(Batch(torch.zeros_like(batch.x)), noise)  # ... nor of an earlier call
        torch.testing.assert_close(step(batch, noise).double(), wanted, rtol=1e-6, atol=1e-4)
        for (path, parameter), other in zip(model.named_parameters(), truth.parameters(), strict=True):
            assert (parameter.grad is None) == (other.grad is None), path
            if parameter.grad is not None and other.grad is not None:
                found, true = parameter.grad.to_dense().double(), other.grad.to_dense()
                error = float((found - true).norm() / (true.norm() + 1e-9))
                assert error < 2e-5, (path, count)


@needs_kernels
@pytest.mark.parametrize("settings", [MEMORY, [*MEMORY, "objective.samples=3"], KEYS])
def test_nan_stays_nan(settings: list[str]) -> None:
    """Training looks for one in the loss and in the gradients."""
    model, recipe = case(settings)
    batch, K = rows(model), recipe.objective.samples
    step = PlannedStep(model, recipe.objective, K, len(batch.x))
    noise = model.noise(K, len(batch.x), torch.Generator().manual_seed(2))
    assert step(batch, noise).isfinite().all()
    batch.x[3, 4] = torch.nan
    assert step(batch, noise).isnan().all()
    gradient = model.get_parameter("q.0.layers.0.linear.weight").grad
    assert gradient is not None
    assert bool(gradient.isnan().any())


@needs_kernels
def test_rows_and_noise_may_be_of_any_type_and_lie_anywhere() -> None:
    """The program is told their address: it must be that of floats, one after the other."""
    model, recipe = case([*MEMORY, "objective.samples=3"])
    batch = rows(model)
    noise = model.noise(3, len(batch.x), torch.Generator().manual_seed(2))
    step = PlannedStep(model, recipe.objective, 3, len(batch.x))
    wanted, wide = step(batch, noise), torch.nn.functional.pad(batch.x, (2, 3), value=torch.nan)
    for x in (batch.x.double(), batch.x.t().contiguous().t(), wide[:, 2:-3]):
        assert step(Batch(x), noise).equal(wanted)
    for eps in (noise[0].double(), noise[0].transpose(0, 2).contiguous().transpose(0, 2)):
        assert step(batch, (eps,)).equal(wanted)


@pytest.mark.parametrize("K", [1, 2, 7, 50])
@pytest.mark.parametrize("count", [1, 2, 3])
@pytest.mark.parametrize("rows", [3, 11, 100, 1601])
def test_blocks_are_all_rows_once_and_in_order(K: int, count: int, rows: int) -> None:
    """And gradients of matrices are left to the end by all workers or by none."""
    sizes = [len(part) for part in torch.empty(rows).tensor_split(count)]
    split = [blocks(K, B, -(-rows // count), 250) for B in sizes]
    assert len({(len(own), own[0].only) for own in split}) == 1
    for B, own in zip(sizes, split, strict=True):
        every = torch.arange(K * B)
        assert torch.cat([block.of(every) for block in own]).equal(every)
        for block in own:
            assert 0 < block.size <= 250
            assert block.only == (len(own) == 1)
            assert (block.of(every) % B).equal(block.once(torch.arange(B)).repeat(block.samples))


@needs_kernels
@pytest.mark.parametrize(("B", "settings"), [(11, MEMORY), (200, MEMORY), (900, MEMORY), (11, KEYS), (200, KEYS)])
def test_workers_that_divide_the_rows_do_the_same_every_time(B: int, settings: list[str]) -> None:
    """To the bit, whichever comes first: a resumed run depends on it. And everybody's number of threads stays."""
    model, recipe = case([*settings, "objective.samples=3"])
    batch = rows(model, B)
    noise = model.noise(3, B, torch.Generator().manual_seed(2))
    step, before = PlannedStep(model, recipe.objective, 3, B), torch.__config__.parallel_info()
    step.compile(3)

    def done() -> list[torch.Tensor]:
        report = step(batch, noise)
        gradients = [parameter.grad for parameter in model.parameters() if parameter.grad is not None]
        return [report, *(gradient.to_dense().clone() for gradient in gradients)]

    first = done()
    assert len(first) > 30
    for _ in range(20):
        assert all(a.equal(b) for a, b in zip(first, done(), strict=True))
    assert torch.__config__.parallel_info() == before


@needs_kernels
def test_rows_are_divided_where_there_are_enough_for_every_thread() -> None:
    model, recipe = case(MEMORY)
    threads = torch.get_num_threads()
    try:
        for asked, K, B, count in (  # 19 units
            *((1, 1, 4000, 1), (2, 1, 431, 1), (2, 1, 432, 2)),
            *((3, 2000, 2, 1), (3, 2000, 3, 3)),
        ):
            torch.set_num_threads(asked)
            assert len(PlannedStep(model, recipe.objective, K, B).workers) == count
    finally:
        torch.set_num_threads(threads)


LIMITED = """
import torch
from tests.test_accelerate import MEMORY, PlannedStep, case, rows
model, recipe = case(MEMORY)
batch, noise = rows(model), model.noise(1, 11, torch.Generator())
step = PlannedStep(model, recipe.objective, 1, 11)
wanted = [step(batch, noise), *(parameter.grad.clone() for parameter, _ in step.gradients)]
step.compile(2)
found = [step(batch, noise), *(parameter.grad for parameter, _ in step.gradients)]
assert len(step.workers) == 1
assert all(a.equal(b) for a, b in zip(wanted, found, strict=True))
"""


@needs_kernels
def test_a_step_for_more_threads_than_there_are_is_planned_anew() -> None:
    """Threads that wait for others which never come would wait for ever."""
    limited = os.environ | {"OMP_THREAD_LIMIT": "1"}
    subprocess.run([sys.executable, "-c", LIMITED], check=True, env=limited, timeout=120)


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
    """Whatever somebody has made of a model, autograd knows what it means."""
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
        "slots that nobody asks for": lambda m: setattr(m.p[0].layers[0], "memory", Memory(13, 9)),
        "a floor in Q": lambda m: setattr(m.q[0].head, "floor", 0.1),
    }
    for name, change in changes.items():
        other = copy.deepcopy(model)
        change(other)
        assert not supports(other, objective), name


@needs_kernels
def test_a_step_leaves_no_memory_behind() -> None:
    """Whoever lets go of it has the memory of all its matrices at once: at K = 50 that is a lot."""
    model, recipe = case(MEMORY)
    step = PlannedStep(model, recipe.objective, 1, 11)
    references = [weakref.ref(worker) for worker in step.workers]
    gc.disable()
    try:
        del step
        assert all(reference() is None for reference in references)
    finally:
        gc.enable()


@needs_kernels
def test_a_step_is_not_taken_where_autograd_would_do_otherwise() -> None:
    """Whoever freezes a parameter, switches a part to evaluation or hooks something does so in the middle of things."""
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
def test_training_takes_the_planned_step_unless_somebody_looks_on(settings: list[str]) -> None:
    """Both ways lead to the same weights, and a hook sees every pass."""
    models, seen = [], []
    for hooked in (False, True):
        model, recipe = case(settings)
        state = copy.deepcopy(begin(model, recipe))
        if hooked:
            memory = state.model.get_submodule("p.0.layers.0.memory")
            memory.register_forward_hook(lambda *passed: seen.append(passed))
        with patch.object(train, "step_loss", wraps=step_loss) as ordinary:
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
    with patch.object(train, "step_loss", wraps=step_loss) as called:
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
