"""Adam: against torch's own, native against plain, rows against the whole."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import Tensor, nn

from memgen import accelerate
from memgen.accelerate import library
from memgen.training.optimizer import Adam, Settings

SETTINGS = Settings(rate=0.05, epsilon=1e-8, weight_decay=0.1, ema=0.7)


class Table(nn.Module):
    """A matrix of which a step reads some rows, and a vector."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        own = torch.Generator().manual_seed(0)
        self.M = nn.Parameter(torch.randn(40, 6, generator=own).to(dtype))
        self.b = nn.Parameter(torch.randn(6, generator=own).to(dtype))


def gradient(t: int, rows: Tensor, dtype: torch.dtype) -> Tensor:
    return torch.randn(len(rows), 6, generator=torch.Generator().manual_seed(100 + t)).to(dtype)


def steps(model: Table, optimizer: Adam, sparse: bool, every_row: bool, settings: Settings = SETTINGS) -> list[float]:
    norms = []
    for t in range(8):
        own = torch.Generator().manual_seed(t)
        rows = torch.arange(40) if every_row else torch.randperm(40, generator=own)[:5].sort().values
        values = gradient(t, rows, model.M.dtype)
        model.b.grad = values.sum(0)
        model.M.grad = torch.sparse_coo_tensor(rows.unsqueeze(0), values, model.M.shape, check_invariants=False)
        if not sparse:
            model.M.grad = model.M.grad.to_dense()
        norms.append(float(optimizer.step(settings)))
    return norms


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_it_is_torchs_adamw_with_clipping_and_its_average(dtype: torch.dtype) -> None:
    """float32 takes the kernels where there are any, float64 never does."""
    model, theirs, averaged = Table(dtype), Table(dtype), Table(dtype)
    settings = SETTINGS._replace(clip_norm=3.0, clip_value=0.5)
    optimizer = Adam(model, averaged)
    reference = torch.optim.AdamW(theirs.parameters(), lr=0.05, weight_decay=0.1)
    average: dict[str, Tensor] = {}
    for t in range(8):
        rows = torch.arange(40)
        for one in (model, theirs):
            one.M.grad, one.b.grad = gradient(t, rows, dtype), gradient(t, rows, dtype).sum(0)
        norm = nn.utils.clip_grad_norm_(theirs.parameters(), 3.0)
        nn.utils.clip_grad_value_(theirs.parameters(), 0.5)
        reference.step()
        torch.testing.assert_close(optimizer.step(settings).double(), norm.double())
        for name, value in theirs.named_parameters():
            average[name] = value.detach() * (0.3 if t else 1.0) + average.get(name, value).detach() * 0.7 * bool(t)
    for name, value in model.named_parameters():
        torch.testing.assert_close(value, theirs.get_parameter(name), atol=5e-6, rtol=1e-5)
        torch.testing.assert_close(averaged.get_parameter(name).detach(), average[name], atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("every_row", [True, False])
def test_kernels_and_formulas_agree(every_row: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    found = []
    for native in (True, False):
        if not native:
            monkeypatch.setattr(accelerate, "optimizer_step", lambda *passed: None)
        model, averaged = Table(), Table()
        optimizer = Adam(model, averaged, ["M"])
        norms = steps(model, optimizer, True, every_row, SETTINGS._replace(clip_norm=2.0, clip_value=0.3))
        optimizer.catch_up(SETTINGS.ema)
        found.append([torch.tensor(norms), *model.parameters(), *averaged.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("beside", [0, 1])
@pytest.mark.parametrize("threads", [1, 2, 3])
def test_sizes_threads_and_places_make_no_difference(
    threads: int, beside: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Less than a line of the cache, one, more, several blocks. Where there are several threads the kernels write
    whole lines past the caches, but not to numbers that begin `beside` a line. What lies beside the numbers stays."""

    def trained() -> list[Tensor]:
        own, model, places = torch.Generator().manual_seed(0), nn.Module(), []
        for size in (1, 15, 16, 17, 33, 1024, 2049, 5000):
            places.append(torch.randn(size + 3, generator=own))
            model.register_parameter(f"w{size}", nn.Parameter(places[-1][beside : beside + size]))
        averaged = copy.deepcopy(model)
        optimizer = Adam(model, averaged)
        for _ in range(3):
            for value in model.parameters():
                value.grad = torch.randn(value.shape, generator=own)
            optimizer.step(SETTINGS._replace(clip_norm=50.0, clip_value=0.5))
        return [*places, *averaged.parameters()]

    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        found = trained()
    finally:
        torch.set_num_threads(before)
    monkeypatch.setattr(accelerate, "optimizer_step", lambda *passed: None)
    for a, b in zip(found, trained(), strict=True):
        torch.testing.assert_close(a, b, atol=5e-6, rtol=1e-5)


def test_a_gradient_of_zero_changes_nothing_however_small_epsilon_is() -> None:
    model = nn.Linear(3, 1)
    before = [value.detach().clone() for value in model.parameters()]
    for value in model.parameters():
        value.grad = torch.zeros_like(value)
    Adam(model).step(Settings(rate=0.1, epsilon=1e-44))
    assert all(value.equal(old) for value, old in zip(model.parameters(), before, strict=True))


@pytest.mark.parametrize("plain", [False, True])
def test_when_all_rows_are_read_rows_equal_the_whole(plain: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if plain:
        monkeypatch.setattr(accelerate, "optimizer_step", lambda *passed: None)
    found = []
    for sparse in (True, False):
        model, averaged = Table(), Table()
        optimizer = Adam(model, averaged, ["M"] if sparse else [])
        norms = steps(model, optimizer, sparse, True)
        found.append([torch.tensor(norms), *model.parameters(), *averaged.parameters()])
    for a, b in zip(*found, strict=True):
        torch.testing.assert_close(a, b, atol=5e-6, rtol=1e-5)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_rows_that_are_not_read_stay_and_their_average_is_that_of_every_step(dtype: torch.dtype) -> None:
    """The average catches up exactly, as if it had been taken in each of the steps in which the row stood still."""
    model, averaged, start = (Table().to(dtype) for _ in range(3))
    optimizer = Adam(model, averaged, ["M"])
    settings = SETTINGS._replace(weight_decay=0.0)
    average = None
    for t, rows in enumerate([[0, 1], [1, 2], [2], [2], [0], [3]]):
        index = torch.tensor(rows)
        model.M.grad = torch.sparse_coo_tensor(
            index.unsqueeze(0), gradient(t, index, dtype), model.M.shape, check_invariants=False
        )
        optimizer.step(settings)
        average = model.M.detach().clone() if average is None else 0.7 * average + 0.3 * model.M.detach()
    optimizer.catch_up(0.7)
    assert model.M[4:].equal(start.M[4:])
    assert optimizer.slots[0].rows.tolist() == [0, 1, 2, 3]
    assert optimizer.slots[0].first[4:].count_nonzero() == 0
    assert average is not None
    torch.testing.assert_close(averaged.M.detach()[:4], average[:4], atol=1e-6, rtol=1e-5)


def test_gradients_and_parameters_that_have_moved_are_found_again() -> None:
    """What the kernels are told is kept as long as all is where it was; the other optimizer asks anew every time."""
    kept, asked, averages = Table(), Table(), (Table(), Table())
    optimizers = Adam(kept, averages[0]), Adam(asked, averages[1])

    def step() -> None:
        optimizers[1].accelerated.clear()
        for optimizer in optimizers:
            optimizer.step(SETTINGS)
        for one, other in ((kept, asked), averages):
            assert all(a.equal(b) for a, b in zip(one.parameters(), other.parameters(), strict=True))

    places = torch.ones(40, 6), torch.ones(6)
    for model in (kept, asked):
        model.M.grad, model.b.grad = (place.clone() for place in places)
    step()
    kept_steps = [*optimizers[0].accelerated]
    for model in (kept, asked):  # other numbers at the same places
        assert model.M.grad is not None
        model.M.grad.mul_(-3)
    step()
    if library.library() is not None:
        assert [*optimizers[0].accelerated] == kept_steps != []
    for model in (kept, asked):  # another gradient, ...
        model.M.grad = torch.full((40, 6), 0.5)
    step()
    for model in (kept, asked):  # ... none, ...
        model.b.grad = None
    step()
    for model in (kept, asked):  # ... a parameter that lies elsewhere, ...
        model.M.data = model.M.data.clone()
    step()
    for average in averages:  # ... and an average that does, for other processes
        average.share_memory()
    step()
    copied = copy.deepcopy(optimizers[0])
    assert not copied.accelerated


def test_batches_of_two_sizes_keep_two_accelerated_steps() -> None:
    """The planned steps of two batch sizes alternate between two sets of gradients."""
    model, averaged = Table(), Table()
    optimizer = Adam(model, averaged)
    gradients = [(torch.full((40, 6), value), torch.full((6,), value)) for value in (1.0, 2.0)]
    seen = []
    for model.M.grad, model.b.grad in [*gradients, *gradients]:
        optimizer.step(SETTINGS)
        seen.append([*optimizer.accelerated])
    if library.library() is not None:
        assert len(seen[1]) == 2
        assert seen[1] == seen[2] == seen[3]
    optimizer.clear()
    assert not optimizer.accelerated


def test_what_the_kernels_are_told_of_dense_gradients_stays_beside_sparse_ones() -> None:
    model = Table()
    optimizer, found, b = Adam(model, sparse=["M"]), [], torch.ones(6)
    for row in (3, 5):
        model.M.grad = torch.sparse_coo_tensor(
            torch.tensor([[row]]), torch.ones(1, 6), model.M.shape, check_invariants=False
        )
        model.b.grad = b
        optimizer.step(SETTINGS)
        found.append([*optimizer.accelerated])
    if library.library() is None:
        assert found == [[], []]
    else:
        assert found[0] == found[1]
        assert [step.values for step in found[0]] == [[model.b]]


def test_a_copy_of_all_that_trains_keeps_its_average() -> None:
    """It is the average of the copied model."""
    trained = Table(), Table()
    model, averaged, optimizer = copy.deepcopy((*trained, Adam(*trained)))
    assert steps(model, optimizer, sparse=False, every_row=True)
    assert averaged.M.equal(model.M) == (SETTINGS.ema == 0)
    assert not averaged.M.equal(trained[1].M)


def test_a_row_that_stands_there_twice_counts_twice() -> None:
    found = []
    for rows in ([3, 3], [3]):
        model = Table()
        values = torch.ones(len(rows), 6) * (1.0 if len(rows) == 2 else 2.0)
        model.M.grad = torch.sparse_coo_tensor(torch.tensor([rows]), values, model.M.shape, check_invariants=False)
        found.append((Adam(model, None, ["M"]).step(SETTINGS), model.M.detach().clone()))
    assert found[0][0] == found[1][0]
    assert found[0][1].equal(found[1][1])


def test_kernels_are_used_where_there_is_a_compiler() -> None:
    """So that the comparisons above compare something."""
    assert library.serves(torch.zeros(3)) == (library.library() is not None)
    assert not library.serves(torch.zeros(3, dtype=torch.float64))
    assert not library.serves(torch.zeros(3, 4).t())
