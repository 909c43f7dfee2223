"""Small finished runs on the digits. They are trained once; every file of tests has copies of its own."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from memgen.cli.main import main
from tests.checks import unchecked
from tests.command import QUICK

RECIPES = {
    "mem": ["digits-mem-vae", *QUICK],
    "vae": ["digits-vae", *QUICK],
    "gauss": [
        *("digits-mem-vae", "--set", "model.likelihood=gaussian", "--set", "model.sigma_floor=0.05"),
        *(*QUICK, "--set", "training.epochs=40"),
    ],
}


class Trained:
    """Runs by name, each trained when it is first asked for."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def copy(self, name: str, to: Path) -> Path:
        if not (self.folder / name).exists():
            with unchecked():
                assert main(["train", *RECIPES[name], "--out", str(self.folder / name)]) == 0
        return Path(shutil.copytree(self.folder / name, to / name))


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(tmp_path_factory.mktemp("trained"))


@pytest.fixture(scope="module")
def run(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small finished run; a test that changes files makes a copy."""
    return trained.copy("mem", tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def runs(trained: Trained, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A run with memory, one without, and one with a Gaussian likelihood."""
    folder = tmp_path_factory.mktemp("runs")
    return {name: trained.copy(name, folder) for name in RECIPES}
