"""The ledger of looks at test data: nothing that was scored is missing, nothing is entered twice."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from memgen.errors import MemgenError
from reproduction import ledger
from reproduction.job import read_result

RESULTS = Path(__file__).parents[2] / "results"


def result(recipe: str, number: float, *before: str, **other: Any) -> dict[str, Any]:
    return {
        "row": "mnist-vae",
        "recipe": recipe,
        "seed": 0,
        "split": 0,
        "weights_sha256": f"weights of {recipe}",
        "log_likelihood": number,
        "compared": "log_likelihood",
        "samples": 5000,
        "examples": 10_000,
        "before": [{"recipe": name, "weights_sha256": "in half precision"} for name in before],
        "more": {},
        "analyses": {},
    } | other


def test_every_stored_result_has_its_lines() -> None:
    lines = ledger.entries(RESULTS)
    paths = [path for path in RESULTS.glob("*.json") if path.stem not in ("ledger", "remarks", "slots")]
    for path in [*paths, *RESULTS.glob("seeds/*/*.json")]:
        found = read_result(path)
        assert found is not None
        assert ledger.added(found, lines) == [], path.name
        mine = [line for line in lines if line["weights_sha256"] == found["weights_sha256"]]
        assert mine[0]["number"] == pytest.approx(found[found["compared"]], abs=1e-9)
    assert (RESULTS / ledger.PAGE).read_text("utf-8") == ledger.page(lines)


def test_a_training_that_is_extended_says_which_number_was_known() -> None:
    first = ledger.added(result("short", -86.0), [])
    again = ledger.added(result("long", -85.5, "short"), first)
    assert [line["extended_after"] for line in first + again] == [None, -86.0]
    # Another seed, and a training that began with other weights, had no such number.
    assert ledger.added(result("long", -85.5, "short", seed=1), first)[0]["extended_after"] is None
    assert ledger.added(result("long", -85.5, "another"), first)[0]["extended_after"] is None


def test_later_stages_extend_earlier_ones() -> None:
    first = ledger.added(result("mnist-vae", -86.0, stage="main"), [])
    own = result("mnist-vae", -85.5, stage="large", weights_sha256="others")
    own["before"] = [{"recipe": "mnist-vae", "stage": "main"}]
    assert ledger.added(own, first)[0]["extended_after"] == -86.0
    own["before"] = [{"recipe": "mnist-vae", "stage": "unscored"}]
    assert ledger.added(own, first)[0]["extended_after"] is None


def test_a_scoring_is_entered_once_and_its_analyses_too() -> None:
    own = result("short", -86.0)
    lines = ledger.added(own, [])
    assert ledger.added(own, lines) == []
    own["more"] = {"100000": {"samples": 100_000, "examples": 2000, "log_likelihood": -85.9}}
    own["analyses"] = {"svm": {"accuracy": 0.98}, "generation": {}}
    assert [line["what"] for line in ledger.added(own, lines)] == ["log_likelihood", "svm"]
    assert [line["number"] for line in ledger.added(own, lines)] == [-85.9, 98.0]


def test_a_damaged_ledger_is_one_line(tmp_path: Path) -> None:
    (tmp_path / ledger.LEDGER).write_text('{"entries": 1}')
    with pytest.raises(MemgenError, match="damaged"):
        ledger.entries(tmp_path)
