"""A bounded pool of worker threads. Work is cancelled when its client has gone or asks something newer."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

import torch

from memgen.errors import MemgenError

THREADS = 4
MOST_WAITING = 64
LONGEST = 60.0
"""Largest computing time of one request, in seconds."""
REMEMBERED = 2048
"""Number of pairs of client and topic whose latest turn is stored."""
PATIENCE = 0.2
"""Seconds between checks whether the client is still connected."""

Result = TypeVar("Result")
Check = Callable[[], None]
"""Called often during work. It raises an exception when the work is to be cancelled."""
Report = Callable[[int, int], None]
"""(done, total)"""


class OutdatedError(Exception):
    """The client has gone, or has sent a newer request on the same topic."""


class BusyError(Exception):
    """Too many requests wait already."""


class Job:
    """The work of one request. It ends when the client disconnects, asks something newer, or time is up."""

    def __init__(self, is_latest: Callable[[], bool]) -> None:
        self.is_latest, self.client_left = is_latest, False
        self.deadline = float("inf")

    def start(self) -> None:
        self.deadline = time.monotonic() + LONGEST
        self.check()

    def check(self) -> None:
        if self.client_left or not self.is_latest():
            raise OutdatedError
        if time.monotonic() > self.deadline:
            raise MemgenError(f"this takes longer than {LONGEST:.0f} s; ask for less")


class Workers:
    """A pool of threads and the latest turn of every client's topics."""

    def __init__(self, threads: int = THREADS) -> None:
        # One thread of torch each: requests are small, and threads that share one operation wait for each other.
        self.pool = ThreadPoolExecutor(threads, "memgen-web", torch.set_num_threads, (1,))
        self.waiting, self.closed = 0, False
        self.latest: OrderedDict[tuple[str, str], int] = OrderedDict()

    def job(self, client: str, topic: str, turn: int) -> Job:
        """For a client's `turn`-th request on a topic, which outdates all earlier ones; topic "" outdates none."""
        if not topic:
            return Job(lambda: not self.closed)
        key = client[:64], topic[:64]
        self.latest[key] = max(turn, self.latest.pop(key, -1))
        while len(self.latest) > REMEMBERED:
            self.latest.popitem(last=False)
        return Job(lambda: not self.closed and self.latest.get(key, turn) <= turn)

    async def run(self, job: Job, gone: Callable[[], Awaitable[bool]], work: Callable[[Check], Result]) -> Result:
        """work(check) in a thread. gone(): whether the client has disconnected."""
        future = self._begin(job, work)
        try:
            while not (await asyncio.wait({future}, timeout=PATIENCE))[0]:
                job.client_left = job.client_left or await gone()
        except asyncio.CancelledError:
            job.client_left = True
            raise
        return await future

    async def stream(self, job: Job, work: Callable[[Check, Report], Any]) -> AsyncIterator[tuple[str, Any]]:
        """("progress", (done, total)) now and then, at last ("result", what work(check, report) returned)."""
        state: list[tuple[int, int]] = [(0, 0)]

        def report(done: int, total: int) -> None:
            state[0] = (done, total)

        future = self._begin(job, lambda check: work(check, report))
        try:
            while not (await asyncio.wait({future}, timeout=PATIENCE))[0]:
                yield "progress", state[0]
            yield "result", await future
        finally:
            job.client_left = True

    def _begin(self, job: Job, work: Callable[[Check], Result]) -> asyncio.Future[Result]:
        if self.waiting >= MOST_WAITING:
            raise BusyError

        def task() -> Result:
            job.start()
            return work(job.check)

        self.waiting += 1
        future = asyncio.get_running_loop().run_in_executor(self.pool, task)
        future.add_done_callback(self._done)
        return future

    def _done(self, future: asyncio.Future[Any]) -> None:
        self.waiting -= 1
        if not future.cancelled():
            future.exception()  # retrieved, so that asyncio does not report it as lost

    def close(self) -> None:
        """Cancel all work, and refuse new work."""
        self.closed = True
        self.pool.shutdown(wait=False, cancel_futures=True)
