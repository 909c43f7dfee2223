"""SECURITY.md names the test that holds each promise."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
NAMED = re.compile(r"`(tests/[\w/]+\.py)::(test_\w+)`")


def names_in(path: Path) -> set[str]:
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef)}


def test_every_test_that_a_promise_names_exists() -> None:
    named = NAMED.findall((ROOT / "SECURITY.md").read_text())
    assert len(named) > 20
    for file, test in named:
        assert test in names_in(ROOT / file), f"SECURITY.md names {file}::{test}, which does not exist"


def test_every_promise_names_a_test() -> None:
    """What an untrusted file cannot do, and what is never lost."""
    text = (ROOT / "SECURITY.md").read_text()
    cannot = text.split("## What an untrusted file cannot do")[1].split("## What it can do")[0]
    promises = [*cannot.split("\n\n**")[1:], text.split("## What is never lost")[1]]
    assert len(promises) == 7
    assert all(NAMED.search(promise) for promise in promises)
