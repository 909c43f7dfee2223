"""One thread, and a process where pythae is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest
import torch

from benchmarks.speed import limit


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
