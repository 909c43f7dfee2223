"""torchrun: it restarts what was killed, and two network namespaces train like two hosts."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from memgen.runs.run import Run
from memgen.runs.storage import load_tensors
from tests.distributed import ranks
from tests.distributed.test_ranks import command

TORCHRUN = [sys.executable, "-m", "torch.distributed.run"]
ROOT = Path(__file__).parents[2]
KILLED = [str(ROOT / "tests" / "distributed" / "dying_rank.py"), "10"]
RESUMED = command("run", "--resume", "--checkpoint-every", "0")
HOSTS = ("memgen-a", "memgen-b")
"""Network namespaces, which the test makes and removes."""


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return load_tensors(folder / "weights.safetensors")[0]


def same_bits(one: Path, other: Path) -> bool:
    first, second = weights(one), weights(other)
    return first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run of two ranks whom nothing happens to."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    result = ranks.run([command(str(folder / "run"))] * 2, folder)
    assert result.codes == [0, 0], result
    return folder / "run"


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}


def test_a_killed_rank_is_restarted_and_the_end_is_the_same(uninterrupted: Path, tmp_path: Path) -> None:
    launch = [*TORCHRUN, "--standalone", "--nproc-per-node", "2", "--max-restarts", "1", *KILLED]
    done = subprocess.run(
        [*launch, *RESUMED],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        check=False,
        timeout=ranks.PATIENCE,
    )
    assert done.returncode == 0, done.stderr
    assert "going on with run after 1 of 3 epochs and" in done.stdout
    assert len(Run.open(tmp_path / "run").metrics()) == 3
    assert same_bits(tmp_path / "run", uninterrupted)


def ip(*words: str) -> bool:
    return subprocess.run(["ip", *words], capture_output=True, check=False).returncode == 0


@pytest.fixture
def hosts() -> Iterator[None]:
    """Two network namespaces with a cable between them."""
    a, b = HOSTS
    if shutil.which("ip") is None or os.geteuid() != 0:
        pytest.skip("two hosts need network namespaces: the program ip (iproute2), and root")
    try:
        made = ip("netns", "add", a) and ip("netns", "add", b)
        made = made and ip("link", "add", a, "netns", a, "type", "veth", "peer", "name", b, "netns", b)
        for i, host in enumerate(HOSTS):
            made = made and ip("-n", host, "addr", "add", f"10.77.0.{i + 1}/24", "dev", host)
            made = made and ip("-n", host, "link", "set", host, "up") and ip("-n", host, "link", "set", "lo", "up")
        if not made:
            pytest.skip("this machine does not permit network namespaces with a pair of virtual Ethernet devices")
        yield
    finally:
        ip("netns", "del", a)
        ip("netns", "del", b)


@pytest.mark.usefixtures("hosts")
def test_two_hosts_train_as_two_processes_of_one(uninterrupted: Path, tmp_path: Path) -> None:
    """They share no folder: the second one reads nothing of the run and writes nothing. Its rank is killed once."""
    processes = []
    for i, host in enumerate(HOSTS):
        folder = tmp_path / host
        folder.mkdir()
        where = ["--nnodes", "2", "--node-rank", str(i), "--master-addr", "10.77.0.1", "--master-port", "29400"]
        line = ["ip", "netns", "exec", host, *TORCHRUN, *where, "--nproc-per-node", "1", "--max-restarts", "1", *KILLED]
        with (folder / "log").open("w") as log:
            variables = {**environment(), "GLOO_SOCKET_IFNAME": host}
            processes.append(subprocess.Popen([*line, *RESUMED], cwd=folder, env=variables, stdout=log, stderr=log))
    codes = [process.wait(ranks.PATIENCE) for process in processes]
    assert codes == [0, 0], [(tmp_path / host / "log").read_text() for host in HOSTS]
    assert "going on with run after 1 of 3 epochs" in (tmp_path / HOSTS[0] / "log").read_text()
    assert sorted(entry.name for entry in (tmp_path / HOSTS[1]).iterdir()) == ["log"]
    assert same_bits(tmp_path / HOSTS[0] / "run", uninterrupted)
