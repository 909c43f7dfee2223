"""What tests of the reproduction share: its results, its command line and its jobs."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from reproduction.__main__ import command
from reproduction.__main__ import main as reproduce
from reproduction.job import Job
from reproduction.rows import ROWS

RESULTS = Path(__file__).parents[2] / "results"
KEYS = {
    *("log_likelihood", "elbo", "standard_error", "samples", "examples", "recipe", "recipe_sha256", "weights_sha256"),
    *("commit", "seed", "epochs", "seconds", "hardware", "paper", "difference"),
}


def parsed(*arguments: str) -> SimpleNamespace:
    """The options of a command line of the reproduction."""
    return SimpleNamespace(**command.make_context("reproduction", list(arguments)).params)


def asked(place: Path, *more: str) -> list[str]:
    return [*more, "--results", str(place / "results"), "--runs", str(place / "runs")]


def told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> Any:
    assert reproduce([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def job_of(found: dict[str, Any]) -> Job:
    """The job of a result, from what it says of its recipe."""
    row = ROWS[found["row"]]
    training = next(name for name in row.schedules if row.command(name) == found["recipe"])
    return Job(row, training, found["seed"], found.get("split", 0))
