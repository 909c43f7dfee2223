"""The speed benchmark: what it counts, what it compares, what it prints. No test says how fast anything is."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.speed import child, growth, limit, startup
from benchmarks.speed.__main__ import main
from benchmarks.speed.clock import Spread, alternate
from benchmarks.speed.evaluation import evaluation_section
from benchmarks.speed.growth import Point, bytes_needed, measure, points
from benchmarks.speed.limit import Fastest, Product, flops, forward_products, outline, products, settled, total
from benchmarks.speed.loop import HandModel
from benchmarks.speed.machine import Ticks, describe, peak_memory, stolen, ticks
from benchmarks.speed.peer import missing
from benchmarks.speed.record import QUICK, Record, Scale
from benchmarks.speed.rows import Rows, batches, rows, stand_in
from benchmarks.speed.steps import COMPILED, SINGLE, memgen_steps, steps_section, ways
from benchmarks.speed.table import table
from memgen.accelerate.program import blas
from memgen.core.model import count_parameters
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe

TINY = Scale(
    repeats=2,
    warm=1,
    steps=1,
    samples=(1, 2),
    compiled=False,
    images=2,
    evaluation_samples=20,
    child_repeats=1,
    commands=1,
    slots=100,
)
GIVEN = Rows(stand_in(), stand_in(), "")
WITHOUT_PYTHAE = "pip install '.[bench]'"


@pytest.fixture(autouse=True)
def one_thread(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Thousands of small products with more threads than free cores would take minutes."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    monkeypatch.setattr(limit, "TRIES", 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def no_pythae(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a machine without it: importing a module that is None in this table fails."""
    monkeypatch.setitem(sys.modules, "pythae", None)
    monkeypatch.setitem(sys.modules, "pythae.models", None)


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
    assert ticks(path) == Ticks(wanted=200, stolen=40)
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


def test_steps_and_evaluation_stay_below_the_limit_and_say_that_pythae_is_missing(no_pythae: None) -> None:
    assert WITHOUT_PYTHAE in (missing() or "")
    fastest = Fastest()
    told: list[str] = []
    found = steps_section(TINY, fastest, GIVEN.train, told.append) + evaluation_section(
        TINY, fastest, GIVEN, told.append
    )
    found = settled(found, fastest)
    fractions = [record.fraction for record in found if record.fraction is not None]
    assert all("of the full backward" in record.note for record in found if record.name == SINGLE)
    # memgen, loop, products in order and warm; the single sample at K > 1; evaluations and their products
    assert len(fractions) == 4 * 2 * 2 + 2 + 2 + 4
    assert all(0 < fraction <= 1 for fraction in fractions)
    assert len(told) == 5
    paired = [record for record in found if record.paired is not None]
    assert len(paired) == len(fractions) - 2 * 2 - 2  # all but the warm products
    # A round has no better moment than the whole run; and most rows do more than their products.
    assert all((record.paired or 0) >= (record.fraction or 1) - 1e-9 for record in paired)
    assert all((record.paired or 9) < 1 for record in paired if record.name == "eager loop")
    notes = [record.note for record in found if record.name == "pythae"]
    assert len(notes) == 2
    assert all(WITHOUT_PYTHAE in note for note in notes)
    own = [record for record in found if record.section == "steps" and record.name == "memgen"]
    assert all(record.faster_than["eager loop"] > 0 for record in own)


def test_pythae_takes_part_where_it_is_installed() -> None:
    pytest.importorskip("pythae")
    fastest = Fastest()
    found = steps_section(TINY, fastest, GIVEN.train, lambda text: None)
    assert len([record for record in found if record.name == "pythae" and record.seconds is not None]) == 4
    scored = evaluation_section(TINY, fastest, GIVEN, lambda text: None)
    assert any(record.name.startswith("pythae") and record.seconds is not None for record in scored)


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


@pytest.mark.parametrize("samples", [None, 5])
def test_a_child_measures_one_point(
    samples: int | None, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(child, "BLOCK_SECONDS", 0.0)
    small = ["model.hidden=[8, 8]", "model.latent=2"]
    spec = {"recipe": "mnist-mem-vae", "set": small, "samples": samples, "warm": 1, "repeats": 2}
    child.main(json.dumps({**spec, "threads": torch.get_num_threads()}))
    found = json.loads(capsys.readouterr().out)
    assert len(found["seconds"]) == 2
    assert min(found["seconds"]) > 0
    assert found["peak_bytes"] >= found["before_bytes"] > 10**7


def test_growth_skips_what_does_not_fit_and_reports_what_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    large = Point("slots", 10**7, ("model.slots=[10000000, 0]",))
    monkeypatch.setattr(growth, "free_memory", lambda: 10**9)
    skipped = measure(large, TINY)
    assert skipped.seconds is None
    assert "skipped: needs about 208" in skipped.note
    failed = measure(Point("samples of an evaluation", 0, samples=0), TINY)
    assert "failed with exit code 1" in failed.note
    assert "samples must be at least 1" in failed.note


def test_every_point_of_growth_is_a_recipe() -> None:
    for scale in (Scale(), QUICK):
        found = list(points(scale))
        assert {point.axis for point in found} >= {"slots", "width", "K", "batch", "samples of an evaluation"}
        for point in found:
            Recipe.named(growth.RECIPE).override(list(point.overrides))


def test_a_command_that_fails_is_not_a_time() -> None:
    with pytest.raises(ValueError, match="ZeroDivisionError"):
        startup.run(["-c", "1 / 0"])


def test_tables_have_the_columns_that_somebody_fills() -> None:
    timed = Record(
        "steps", "memgen", {"K": 1}, "step", Spread(0.02, 0.01, 0.03), 0.01, flops=2e9, faster_than={"b": 1.5}
    )
    text = table([timed, Record("steps", "pythae", {}, "step", note="not here")])
    lines = text.splitlines()
    assert len(lines) == 4
    assert "against b" in lines[1]
    assert "peak memory" not in text
    assert all(word in lines[2] for word in ("20.00 ms", "50%", "100.0", "1.50 x"))
    assert lines[3].endswith("not here")


def test_the_command_prints_tables_and_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    target = tmp_path / "speed.json"
    arguments = ["--quick", "--repeats", "1", "--only", "limit,startup"]
    assert main([*arguments, "--json", "-o", str(target)]) == 0
    captured = capsys.readouterr()
    assert captured.out.count("\n") == 1
    found: dict[str, Any] = json.loads(captured.out)
    assert found == json.loads(target.read_text())
    measured = {name: found["machine"].pop(name) for name in ("stolen", "apart")}
    assert found["machine"] == describe()
    assert measured["stolen"] is None or 0 <= measured["stolen"] <= 1
    assert len(measured["apart"]) == 3  # before and after each section
    assert all(seconds is None or 1e-9 < seconds < 1 for seconds in measured["apart"])
    assert {record["section"] for record in found["records"]} == {"limit", "startup"}
    assert all(record["seconds"]["low"] > 0 for record in found["records"])
    for title in ("limit, time per step or product", "startup, time per command", "memgen --help"):
        assert title in captured.err


def test_without_json_the_tables_are_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--quick", "--repeats", "1", "--only", "limit"]) == 0
    assert "all products of a step  mnist-mem-vae" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["--only", "limits"], "did you mean 'limit'?"),
        (["--only", ","], "names no section"),
        (["-o", "speed.txt"], "ends in .json"),
        (["-o", "nowhere/speed.json"], "no folder"),
        (["--repeats", "0"], "at least 1"),
    ],
)
def test_bad_input_is_one_line(arguments: list[str], word: str, capsys: pytest.CaptureFixture[str]) -> None:
    code = main(arguments)
    captured = capsys.readouterr()
    assert (code, captured.out, captured.err.count("\n")) == (2, "", 1)
    assert word in captured.err
