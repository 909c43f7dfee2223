"""The speed benchmark: what it compares and what it prints."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.speed import child, growth, startup
from benchmarks.speed.__main__ import main
from benchmarks.speed.clock import Spread
from benchmarks.speed.evaluation import evaluation_section
from benchmarks.speed.growth import Point, measure, points
from benchmarks.speed.limit import Fastest, settled
from benchmarks.speed.machine import describe
from benchmarks.speed.peer import missing
from benchmarks.speed.record import QUICK, Record, Scale
from benchmarks.speed.rows import Rows, stand_in
from benchmarks.speed.steps import SINGLE, steps_section
from benchmarks.speed.table import table
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


def test_tables_have_the_columns_that_have_values() -> None:
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
