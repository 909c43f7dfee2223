"""Accelerated training steps against autograd, for any rows, noise and number of workers."""

from __future__ import annotations

import copy
import gc
import os
import subprocess
import sys
import weakref

import pytest
import torch

from memgen import accelerate
from memgen.accelerate import worker as workers
from memgen.accelerate.blocks import blocks
from memgen.accelerate.step import PlannedStep, supports
from memgen.core.model import Batch
from memgen.core.objective import CHOOSING
from memgen.training.losses import step_loss
from tests.accelerate.cases import BLOCKED, CASES, KEYS, MEMORY, case, needs_kernels, rows


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
from memgen.accelerate.step import PlannedStep
from tests.accelerate.cases import MEMORY, case, rows
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
def test_a_step_leaves_no_memory_behind() -> None:
    """A step that is deleted frees all its matrices at once: at K = 50 they are large."""
    model, recipe = case(MEMORY)
    step = PlannedStep(model, recipe.objective, 1, 11)
    references = [weakref.ref(worker) for worker in step.workers]
    gc.disable()
    try:
        del step
        assert all(reference() is None for reference in references)
    finally:
        gc.enable()
