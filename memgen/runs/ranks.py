"""Processes that torchrun has started: their ranks, how they wait for each other, and which of them speaks.

torchrun tells every process its RANK and the WORLD_SIZE, and the address of a store that all of them reach.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, cast
from uuid import uuid4

from memgen.errors import MemgenError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store

    from memgen.training.distributed import Ranks

VARIABLES = ("RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")
RENDEZVOUS = 300
"""Seconds until ranks that do not reach each other are an error."""
POLL = 0.02
"""Seconds between looks into the store."""
MEETING = "start all ranks, on machines that reach each other; --timeout says how long to wait"


@dataclass(frozen=True)
class Rank:
    """One of `size` processes that work together."""

    index: int
    size: int


def own_rank() -> Rank | None:
    """The rank of this process; None if it works alone."""
    if not all(os.environ.get(name) for name in VARIABLES):
        return None
    rank, size = os.environ["RANK"], os.environ["WORLD_SIZE"]
    if not (rank.isdecimal() and size.isdecimal() and int(rank) < int(size)):
        raise MemgenError(f"RANK={rank} and WORLD_SIZE={size} are no rank and no number of ranks; torchrun sets both")
    return Rank(int(rank), int(size)) if int(size) > 1 else None


def neighbours() -> int:
    """The number of ranks on this machine, if that is known."""
    number = os.environ.get("LOCAL_WORLD_SIZE", "1")
    return int(number) if number.isdecimal() else 1


def join(device: str, seconds: int) -> Ranks | None:
    """Join the other ranks, to train together; None if this process works alone. A rank uses the GPU of its number on
    this machine."""
    from memgen.training.distributed import Ranks

    rank = own_rank()
    if rank is None:
        return None
    if device.startswith("cuda"):
        choose_gpu(device)
    return Ranks.join(store_of_attempt(rank, store(seconds), seconds), rank.index, rank.size, device, seconds)


def store_of_attempt(rank: Rank, shared: Store, seconds: float) -> Store:
    """A store for the present attempt of these ranks, once all of them are there.

    torchrun keeps one store for all attempts, so what an attempt that was killed has left in it is still there. Rank 0
    names the attempt. Another rank asks for the name with a number that was never used before.
    """
    from torch._C._distributed_c10d import PrefixStore

    number = uuid4().hex
    if rank.index == 0:
        _name_attempt(number, rank.size, shared, seconds)
        return PrefixStore(number, shared)
    shared.set(f"asks/{rank.index}", number)
    try:
        name = shared.get(f"attempt/{number}").decode()
    except RuntimeError:
        raise MemgenError(f"rank {rank.index} has waited {seconds:g} s for rank 0; {MEETING}") from None
    shared.set(f"arrived/{name}/{rank.index}", "")
    return PrefixStore(name, shared)


def _name_attempt(name: str, size: int, shared: Store, seconds: float) -> None:
    """Answer every rank that asks, until all have had the answer."""
    missing, end = list(range(1, size)), time.monotonic() + seconds
    while missing:
        for index in [index for index in missing if _has(shared, f"asks/{index}")]:
            shared.set(f"attempt/{shared.get(f'asks/{index}').decode()}", name)
        missing = [index for index in missing if not _has(shared, f"arrived/{name}/{index}")]
        if missing and time.monotonic() > end:
            raise MemgenError(f"rank 0 has waited {seconds:g} s for rank {_listed(missing)}; {MEETING}")
        time.sleep(POLL)


def _listed(ranks: Sequence[int]) -> str:
    return ", ".join(map(str, ranks[:20])) + (" ..." if len(ranks) > 20 else "")


def choose_gpu(device: str) -> None:
    """Take the GPU whose number is that of the rank on its machine."""
    import torch

    local = os.environ.get("LOCAL_RANK", "0")
    if device != "cuda":
        raise MemgenError(f"--device {device}: with several ranks say --device cuda, and every rank takes its own GPU")
    if not local.isdecimal() or int(local) >= torch.cuda.device_count():
        raise MemgenError(
            f"there is no GPU for rank {local} of this machine, which has {torch.cuda.device_count()}; start fewer "
            "processes, or use --device cpu"
        )
    torch.cuda.set_device(int(local))


def store(seconds: float = RENDEZVOUS) -> Store:
    """The store that all ranks reach."""
    from torch.distributed.rendezvous import rendezvous

    try:
        return cast("Store", next(rendezvous("env://", timeout=timedelta(seconds=seconds)))[0])
    except (RuntimeError, ValueError, OSError):
        place = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise MemgenError(f"this rank has not reached the others at {place} within {seconds:g} s") from None


def wait_for_all(rank: Rank, what: str, seconds: float) -> None:
    """Tell the others that this rank has done `what`. Rank 0 waits until all have."""
    from torch.distributed import DistError

    shared = store()
    shared.set(f"{what}/{rank.index}", "done")
    if rank.index:
        return
    try:
        shared.wait([f"{what}/{index}" for index in range(rank.size)], timedelta(seconds=seconds))
    except (DistError, RuntimeError):
        late = [index for index in range(rank.size) if not _has(shared, f"{what}/{index}")]
        have = "has" if len(late) == 1 else "have"
        raise MemgenError(
            f"rank 0 has waited {seconds:g} s for rank {_listed(late)}, which {have} not finished {what}; the same "
            "command goes on, and --timeout says how long to wait"
        ) from None


def _has(shared: Store, key: str) -> bool:
    return bool(shared.check([key]))


@contextmanager
def only_first_rank_speaks() -> Iterator[None]:
    """All ranks but rank 0 print nothing. Errors are printed after the block, by `may_speak`."""
    rank = own_rank()
    if rank is not None:  # before torch is imported: its C++ parts warn at length of ranks that have gone
        os.environ.setdefault("TORCH_CPP_LOG_LEVEL", "ERROR")
    if rank is None or rank.index == 0:
        yield
        return
    with Path(os.devnull).open("w") as nowhere, redirect_stdout(nowhere), redirect_stderr(nowhere):
        yield


def may_speak() -> bool:
    """Whether this process prints its error: the first rank that asks does."""
    with suppress(Exception):
        if own_rank() is not None:
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            return bool(store(10).add(f"errors/{attempt}", 1) == 1)
    return True
