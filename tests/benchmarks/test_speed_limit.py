"""The speed benchmark: what it counts and how it measures. No test says how fast anything is."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest
import torch

from benchmarks.speed import limit
from benchmarks.speed.clock import Spread, alternate
from benchmarks.speed.growth import bytes_needed
from benchmarks.speed.limit import Fastest, Product, flops, forward_products, outline, products, settled, total
from benchmarks.speed.loop import HandModel
from benchmarks.speed.machine import Ticks, peak_memory, stolen, ticks
from benchmarks.speed.record import Record
from benchmarks.speed.rows import batches, rows, stand_in
from benchmarks.speed.steps import COMPILED, SINGLE, memgen_steps, ways
from memgen.accelerate.program import blas
from memgen.core.model import count_parameters
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe


def matrices(module: torch.nn.Module) -> int:
    """Entries of all matrices: every one of them is multiplied once per row."""
    return sum(parameter.numel() for parameter in module.parameters() if parameter.ndim == 2)


@pytest.mark.parametrize("name", ["mnist-mem-vae", "mnist-vae", "digits-mem-vae"])
@pytest.mark.parametrize(("K", "B"), [(1, 100), (5, 30)])
def test_a_step_has_three_products_per_matrix_and_row_but_one_less_for_x(name: str, K: int, B: int) -> None:
    recipe = Recipe.named(name)
    model = build(recipe)
    first = model.q[0].layers[0].linear.weight.numel()
    expected = 2 * B * (3 * matrices(model.q) - first) + 2 * K * B * 3 * matrices(model.p)
    assert flops(products(recipe, K, B)) == expected
    assert flops(forward_products(recipe, K * B)) == 2 * K * B * matrices(model.p)


def test_higher_levels_of_q_have_k_samples_of_every_row() -> None:
    recipe = Recipe().override(["model.hidden=[[20], [10]]", "model.latent=[5, 3]"])
    model = build(recipe)
    first = model.q[0].layers[0].linear.weight.numel()
    rows_of_x, rows_of_z = 2 * 7, 2 * 4 * 7
    expected = rows_of_x * (3 * matrices(model.q[0]) - first) + rows_of_z * 3 * (
        matrices(model.q[1]) + matrices(model.p)
    )
    assert flops(products(recipe, 4, 7)) == expected


def test_a_million_slots_are_outlined_without_memory() -> None:
    recipe = Recipe.named("mnist-mem-vae").override(["model.slots=[1000000, 0]"])
    before = peak_memory()
    assert count_parameters(outline(recipe)) > 10**9
    assert peak_memory() - before < 10**8
    assert bytes_needed(recipe) > 16 * 10**9


def test_the_loop_by_hand_is_the_same_model() -> None:
    for name, memory in (("mnist-mem-vae", True), ("mnist-vae", False)):
        assert count_parameters(HandModel(memory)) == count_parameters(outline(Recipe.named(name)))


def test_the_limit_only_falls_and_counts_every_product() -> None:
    fastest = Fastest()
    same = [Product("a", 20, 30, 40), Product("b", 20, 30, 40)]
    rounds = [total(same, fastest.measure(same))]
    assert rounds[0] == fastest.seconds(same) == 2 * fastest.seconds(same[:1]) > 0
    rounds.append(total(same, fastest.measure(same)))
    assert fastest.seconds(same) == min(rounds)


def test_all_records_have_the_limit_of_the_whole_run() -> None:
    """Also those that were taken before the machine had its best moment; and no row is faster than the limit."""
    fastest, one, other = Fastest(), Product("a", 20, 30, 40), Product("b", 20, 30, 50)
    fastest.best = {one.shape: 0.5, other.shape: 1.5}
    full = Record("steps", "memgen", {}, "step", Spread(4.0, 3.0, 5.0), products=(one, other))
    single = Record("steps", SINGLE, {}, "step", Spread(3.0, 2.0, 4.0), products=(one,), passes=2.0, whole=(one, other))
    assert [record.limit for record in settled([full, single], fastest)] == [2.0, 1.0]
    fastest.best[one.shape] = 0.25
    later = settled(settled([full, single], fastest), fastest)
    assert [record.limit for record in later] == [1.75, 0.5]
    assert later[1].note.startswith("1.71 of the time")
    quick = replace(full, name="quick", seconds=Spread(1.5, 1.0, 2.0))
    assert [record.best_fraction for record in settled([full, quick], fastest)] == [pytest.approx(1 / 3), 1.0]
    assert settled([replace(full, products=())], fastest)[0].limit is None


def test_the_time_that_a_host_takes_is_read_from_the_kernel(tmp_path: Path) -> None:
    """Waiting (idle, iowait) is no time that anybody could take."""
    path = tmp_path / "stat"
    path.write_text("cpu  100 20 30 9000 500 4 6 40 0 0\ncpu0 1 1 1 1 1 1 1 1 0 0\n")
    assert ticks(path) == Ticks(busy=200, stolen=40)
    assert stolen(ticks(path), ticks(path)) is None


def test_products_are_computed_in_every_layout() -> None:
    fastest = Fastest()
    for left, right, out in fastest._layouts((3, 4, 5)):
        torch.mm(left, right, out=out)
        assert (left.shape, right.shape, out.shape) == ((3, 4), (4, 5), (3, 5))
        torch.testing.assert_close(out, left @ right)


@pytest.mark.skipif(not blas(), reason="there is no C compiler here, or a torch without MKL")
def test_products_are_computed_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever counts as a product's best time has computed it, but for adding up what the threads have."""
    monkeypatch.setattr(limit, "ROWS", 2)
    for left, right, out in Fastest()._layouts((11, 4, 5)):
        out.fill_(torch.nan)
        [run] = limit._together(limit._blocks_of_rows(left, right, out))
        run()
        torch.testing.assert_close(out, left @ right)
    left, right = torch.randn(13, 4), torch.randn(13, 5)
    cut = limit._blocks_of_inner(left, right)
    [run] = limit._together(cut)  # it has run once
    torch.testing.assert_close(torch.stack([own[0][2] for own in cut]).sum(0), left.t() @ right)


def test_blocks_alternate_and_turn_round() -> None:
    order: list[str] = []

    def turn(name: str) -> float:
        order.append(name)
        return float(len(order))

    taken = alternate({name: partial(turn, name) for name in "ab"}, rounds=2, between=lambda: order.append("|"))
    assert "".join(order) == "|ab|ba"
    assert taken == {"a": [2.0, 6.0], "b": [3.0, 5.0]}


@pytest.mark.filterwarnings("ignore:`torch.jit.script_method`:DeprecationWarning")  # torch.compile's own
def test_a_step_can_be_compiled_or_have_one_sample_for_the_way_back() -> None:
    recipe = Recipe.named("mnist-vae").override(["model.hidden=[8]", "model.latent=2", "objective.samples=2"])
    assert list(ways(recipe, compiled=False)) == ["memgen", SINGLE]
    found = ways(recipe, compiled=True)
    compiled = {way: memgen_steps(stand_in(), *other)[0].compiled is not None for way, other in found.items()}
    assert compiled == {"memgen": False, COMPILED: True, SINGLE: False}
    assert found[SINGLE].recipe.objective.estimator == "single"


def test_a_step_trains() -> None:
    recipe = Recipe.named("mnist-vae").override(["model.hidden=[8]", "model.latent=2", "training.batch_size=10"])
    state, steps = memgen_steps(stand_in(), recipe)
    before = state.model.q[0].layers[0].linear.weight.clone()
    assert steps(2) > 0
    assert state.step == 3  # the first is not timed
    assert not before.equal(state.model.q[0].layers[0].linear.weight)


def test_rows_are_repeated_for_a_batch_that_is_larger() -> None:
    feed = batches(torch.arange(6.0).reshape(3, 2), 5)
    assert [len(next(feed)) for _ in range(3)] == [5, 5, 5]
    assert "stand-in" in rows().what or "MNIST" in rows().what
