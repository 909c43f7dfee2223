"""Every shape in a signature of memgen is checked while the tests run."""

from jaxtyping import install_import_hook

install_import_hook("memgen", "beartype.beartype")

import os  # noqa: E402
import random  # noqa: E402
import zlib  # noqa: E402
from collections.abc import Iterator  # noqa: E402
from pathlib import Path  # noqa: E402

import numpy as np  # noqa: E402
import pytest  # noqa: E402
import torch  # noqa: E402

from tests.checks import unchecked  # noqa: E402

SIDE_BY_SIDE = "PYTEST_XDIST_WORKER" in os.environ
# Threads of two processes that wait for each other by spinning would take many times as long.
torch.set_num_threads(1 if SIDE_BY_SIDE else 2)
if SIDE_BY_SIDE:
    os.environ["OMP_NUM_THREADS"] = "1"  # for the commands that tests start

needs_data = pytest.mark.skipif(
    not os.environ.get("MEMGEN_DATA"), reason="the published data files are needed: set MEMGEN_DATA to their folder"
)


def seed_everything(name: str) -> None:
    seed = zlib.crc32(name.encode())
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    torch.manual_seed(seed)


@pytest.fixture(autouse=True, scope="module")
def seeded_module(request: pytest.FixtureRequest) -> None:
    """What the fixtures of a module draw depends on its name alone, not on the tests that ran before."""
    seed_everything(request.node.name)


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest, seeded_module: None) -> None:
    """What a test draws depends on its name alone; one that is about seeds sets its own."""
    seed_everything(request.node.name)


@pytest.fixture
def long_loop() -> Iterator[None]:
    """For a test whose shapes shorter tests check."""
    with unchecked():
        yield


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder to work in."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Path:
    """No test reads or writes the user's cache. The C library is compiled once for all tests."""
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("MEMGEN_CACHE", str(folder))
    base = tmp_path_factory.getbasetemp()
    compiled = (base.parent if SIDE_BY_SIDE else base) / "compiled"
    compiled.mkdir(mode=0o700, exist_ok=True)
    (folder / "native").symlink_to(compiled)
    return folder
