"""Processes that the tests start as ranks, with the variables that torchrun gives them."""

from __future__ import annotations

import multiprocessing
import os
import time
from collections.abc import Callable, Sequence
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import NamedTuple

from torch._C._distributed_c10d import TCPStore

from tests.runs.child import child

# Children are forked from a server process that has imported torch but never used it: a start costs milliseconds.
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["memgen.cli", "sklearn.datasets", "torch.distributed"])
PATIENCE = 240
"""Seconds: far more than any test needs."""


class Ended(NamedTuple):
    """The exit code of every rank, and what all of them said."""

    codes: list[int | None]
    text: str


store: TCPStore | None = None
"""The present store, which must outlive the ranks."""


def rank(variables: dict[str, str], arguments: list[str], log: str) -> None:
    os.environ.update(variables)
    child(arguments, log)


def start(commands: Sequence[list[str]], folder: Path, size: int | None = None) -> list[BaseProcess]:
    """One rank per command line, of `size` in all. As with torchrun, the store is in another process: this one."""
    global store
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    names = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port), "WORLD_SIZE": str(size or len(commands))}
    names |= {"TORCHELASTIC_USE_AGENT_STORE": "True", "LOCAL_WORLD_SIZE": names["WORLD_SIZE"]}
    processes: list[BaseProcess] = []
    for index, command in enumerate(commands):
        log = folder / f"rank-{index}.log"
        log.unlink(missing_ok=True)
        variables = {**names, "RANK": str(index), "LOCAL_RANK": str(index)}
        processes.append(FORK.Process(target=rank, args=(variables, command, str(log))))
        processes[-1].start()
    return processes


def ended(processes: Sequence[BaseProcess], folder: Path) -> Ended:
    for process in processes:
        process.join(PATIENCE)
    logs = [folder / f"rank-{index}.log" for index in range(len(processes))]
    return Ended([process.exitcode for process in processes], "".join(log.read_text() for log in logs if log.exists()))


def run(commands: Sequence[list[str]], folder: Path, size: int | None = None) -> Ended:
    return ended(start(commands, folder, size), folder)


def wait_until(holds: Callable[[], object]) -> None:
    """Wait for what another process does."""
    for _ in range(20 * PATIENCE):
        if holds():
            return
        time.sleep(0.05)
    raise AssertionError("it did not happen")


def spawned(work: Callable[..., None], size: int, *arguments: object) -> None:
    """work(index, size, *arguments) in `size` processes."""
    processes = [FORK.Process(target=work, args=(index, size, *arguments)) for index in range(size)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(PATIENCE)
    assert [process.exitcode for process in processes] == [0] * size
