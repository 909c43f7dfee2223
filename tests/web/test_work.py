"""Work is bounded, in turn, and the same for many clients at once."""

from __future__ import annotations

import asyncio
import os
import resource
from pathlib import Path
from typing import Any

import httpx
import pytest

from memgen.errors import MemgenError
from memgen.training.fit import Epoch
from memgen.web import application, work
from memgen.web.models import Served
from memgen.web.runs import Runs
from tests.web.served import (
    client,
    post,
    run_folder,
)

CLIENTS = 32
SECONDS = float(os.environ.get("MEMGEN_LOAD_SECONDS", "2"))


def test_a_newer_request_outdates_the_older_ones_of_its_client_and_topic() -> None:
    workers = work.Workers(1)
    first, other = workers.job("me", "decode", 1), workers.job("you", "decode", 1)
    first.check()
    second = workers.job("me", "decode", 2)
    with pytest.raises(work.OutdatedError):
        first.check()
    second.check()
    other.check()
    for i in range(3 * work.REMEMBERED):
        workers.job(str(i), "t", 1)
    assert len(workers.latest) == work.REMEMBERED
    workers.close()


def test_an_outdated_request_is_answered_as_such(app: Any) -> None:
    async def go() -> list[int]:
        async with client(app, **{"x-memgen-client": "me", "x-memgen-topic": "t"}) as own:
            late = await own.post("/api/samples", json={"n": 1}, headers={"x-memgen-turn": "2"})
            early = await own.post("/api/samples", json={"n": 1}, headers={"x-memgen-turn": "1"})
            return [late.status_code, early.status_code]

    assert asyncio.run(go()) == [200, 409]


def test_work_has_an_end() -> None:
    job = work.Job(lambda: True)
    job.start()
    job.deadline = 0.0
    with pytest.raises(MemgenError, match="longer than"):
        job.check()


def test_too_many_requests_are_turned_away(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_WAITING", 0)
    assert post(app, "samples", 429)["error"].startswith("busy")


def test_runs_are_told_again_when_they_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, served: list[Served]
) -> None:
    monkeypatch.setattr(application, "POLL", 0.0)
    run = run_folder(tmp_path / "runs" / "one")
    page = application.Page(served, Runs((), tmp_path / "runs"), work.Workers())

    async def go() -> list[int]:
        events, seen = page._changes(), []
        async for name, value in events:
            if name == "run":
                seen.append(len(value["epochs"]))
                if len(seen) == 2:
                    await events.aclose()  # type: ignore[attr-defined]
                    break
                run.log(Epoch(4, 1.0, -1.0, 1e-3, 4.0))
        return seen

    assert asyncio.run(go()) == [3, 4]
    assert page.runs.describe(0)["settings"]["data.name"] == "digits"
    assert page.streams == 0


@pytest.mark.usefixtures("long_loop")
def test_many_clients_at_once_get_what_one_gets(app: Any) -> None:
    """MEMGEN_LOAD_SECONDS says for how long."""
    z = post(app, "samples", n=CLIENTS)["z"]
    changes = [{"place": 0, "slot": 1}]
    alone = [post(app, "look", z=code, changes=changes) for code in z]

    async def ask_for(own: httpx.AsyncClient, i: int, until: float) -> int:
        done = 0
        while asyncio.get_running_loop().time() < until or not done:
            found = await own.post("/api/look", json={"z": z[i], "changes": changes})
            if found.status_code == 429:
                continue
            assert found.json() == alone[i]
            done += 1
        return done

    async def go() -> int:
        async with client(app) as own:
            until = asyncio.get_running_loop().time() + SECONDS
            return sum(await asyncio.gather(*(ask_for(own, i, until) for i in range(CLIENTS))))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asyncio.run(go()) >= CLIENTS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes
