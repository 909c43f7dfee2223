"""Data of every kind, with a small finished run on each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memgen.cli.main import main
from tests.own.tables import SMALL, table_rows, write_photos, write_table


@pytest.fixture(scope="session")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Data of every kind and a small finished run on each, to be read only."""
    home = tmp_path_factory.mktemp("own")
    chance = np.random.RandomState(2)
    write_table(home / "table.csv", table_rows())
    write_photos(home / "photos")
    np.save(home / "array.npy", chance.randn(30, 3) + np.array([0, 5, 500]))
    np.savez(home / "scans.npz", x=chance.randint(0, 256, (30, 4, 4), np.uint8), labels=np.arange(30) % 3)
    for name in ("table.csv", "photos", "array.npy", "scans.npz"):
        assert main(["train", "--data", str(home / name), "--out", str(home / "runs" / name), *SMALL]) == 0
    return home
