"""A Starlette application around the models: the routes, and the answer to each."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route

from memgen.errors import MemgenError
from memgen.web import answers, queries, tables
from memgen.web.models import Served, numbered
from memgen.web.runs import Runs
from memgen.web.safety import Access, Guard
from memgen.web.work import BusyError, Check, Job, OutdatedError, Report, Workers

POLL = 1.0
"""Seconds between two checks of the runs for new epochs."""
MOST_STREAMS = 16
"""Largest number of pages that follow the runs at a time."""
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
REPORT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox allow-popups"

ANSWERS: dict[str, tuple[type[queries.OfModel], Callable[..., dict[str, Any]]]] = {
    "samples": (queries.Samples, answers.samples),
    "decode": (queries.Decode, answers.decode),
    "morph": (queries.Morph, answers.morph),
    "map": (queries.OfModel, answers.latent_map),
    "examples": (queries.Examples, answers.examples),
    "encode": (queries.Row, answers.encode),
    "look": (queries.Look, answers.look),
    "slots": (queries.Slots, answers.slots),
    "nearest": (queries.OfSlot, answers.nearest),
    "pattern": (queries.Pattern, answers.pattern),
    "complete": (queries.Complete, answers.complete),
    "fill": (queries.Table, tables.fill),
    "score": (queries.Table, tables.score),
    "rows": (queries.Rows, tables.rows),
}
"""name -> type of the query, and the function (served, model, query) that answers it."""
FAILURES: dict[Any, tuple[int, str]] = {
    MemgenError: (400, ""),
    OutdatedError: (409, "outdated: a newer request has taken its place"),
    BusyError: (429, "busy; try again in a moment"),
    ClientDisconnect: (413, "the request is too large or was cut off"),
    404: (404, "there is nothing at this address"),
    405: (405, "this address is not asked in this way"),
}
"""What ended a request -> status, and the message; "" for that of the error."""


def static_files() -> dict[str, tuple[bytes, str]]:
    """All files of the page by their address, read once: no request reaches the file system."""
    folder = resources.files("memgen") / "web" / "static"
    files = {}
    for entry in folder.iterdir():
        kind = TYPES.get(Path(entry.name).suffix)
        if kind is not None:
            files[f"/{entry.name}"] = (entry.read_bytes(), kind)
    files["/"] = files["/index.html"]
    return files


class Page:
    """The handlers of all routes, and the state that they share."""

    def __init__(self, models: Sequence[Served], runs: Runs, workers: Workers) -> None:
        self.models, self.runs, self.workers = list(models), runs, workers
        self.files = static_files()
        self.streams = 0

    @property
    def routes(self) -> list[Route]:
        routes = [Route(path, self.file, methods=["GET"]) for path in self.files]
        routes += [Route("/api/about", self.about, methods=["GET"]), Route("/api/runs", self.follow, methods=["GET"])]
        routes += [Route("/api/values", self.values, methods=["POST"])]
        routes += [Route(f"/api/{name}", self.answering(name), methods=["POST"]) for name in ANSWERS]
        return [*routes, Route("/report/{number:int}", self.report, methods=["GET"])]

    async def file(self, request: Request) -> Response:
        content, kind = self.files[request.url.path]
        return Response(content, media_type=kind)

    async def about(self, request: Request) -> Response:
        return JSONResponse({"models": [served.about for served in self.models]})

    def answering(self, name: str) -> Callable[[Request], Any]:
        """The handler of a query that one of ANSWERS answers."""
        kind, function = ANSWERS[name]

        async def answer(request: Request) -> Response:
            query = queries.read(kind, await request.body())
            served, job = numbered(self.models, query.model), self.job(request)

            def work(check: Check) -> dict[str, Any]:
                with served.view(check) as model:
                    return function(served, model, query)

            return JSONResponse(await self.workers.run(job, request.is_disconnected, work))

        return answer

    async def values(self, request: Request) -> Response:
        query = queries.read(queries.OfPlace, await request.body())
        served, job = numbered(self.models, query.model), self.job(request)

        def work(check: Check, report: Report) -> dict[str, Any]:
            with served.view(check) as model:
                return answers.values(served, model, query, report)

        return StreamingResponse(_server_sent(self.workers.stream(job, work)), media_type="text/event-stream")

    async def follow(self, request: Request) -> Response:
        if self.streams >= MOST_STREAMS:
            raise BusyError
        return StreamingResponse(_server_sent(self._changes()), media_type="text/event-stream")

    async def _changes(self) -> AsyncIterator[tuple[str, Any]]:
        """Every run once, then each run again whenever its metrics have changed."""
        self.streams += 1
        seen: list[tuple[float, int]] | None = None
        try:
            while not self.workers.closed:
                now = await asyncio.to_thread(self.runs.stamps)
                for number, stamp in enumerate(now):
                    if seen is None or number >= len(seen) or seen[number] != stamp:
                        yield "run", await asyncio.to_thread(self.runs.describe, number)
                seen = list(now)
                yield "listed", len(now)
                await asyncio.sleep(POLL)
        finally:
            self.streams -= 1

    async def report(self, request: Request) -> Response:
        content = await asyncio.to_thread(self.runs.report, request.path_params["number"])
        return Response(content, media_type="text/html", headers={"content-security-policy": REPORT_POLICY})

    def job(self, request: Request) -> Job:
        """The work of a request, from the headers with its client, topic and turn."""
        client, topic = (request.headers.get(f"x-memgen-{name}", "") for name in ("client", "topic"))
        turn = request.headers.get("x-memgen-turn", "0")
        return self.workers.job(client, topic, int(turn) if turn.isdecimal() and len(turn) < 16 else 0)


async def _server_sent(events: AsyncIterator[tuple[str, Any]]) -> AsyncIterator[str]:
    """Events in the format of server-sent events. An error becomes a last event, "failed"."""
    try:
        async for name, value in events:
            yield f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n"
    except (MemgenError, OutdatedError, BusyError) as error:
        reason = {"error": _line(error) or "the work was cancelled"}
        yield f"event: failed\ndata: {json.dumps(reason)}\n\n"


def _line(error: Exception) -> str:
    return str(error).splitlines()[0][:500] if str(error) else ""


def _failing(status: int, message: str) -> Callable[[Request, Exception], Response]:
    return lambda request, error: JSONResponse({"error": message or _line(error)}, status)


def _broken(request: Request, error: Exception) -> Response:
    print(f"memgen serve: {type(error).__name__}: {_line(error)}", file=sys.stderr)
    return JSONResponse({"error": "something went wrong inside; the terminal says what"}, 500)


def application(models: Sequence[Served], runs: Runs, access: Access, workers: Workers | None = None) -> Guard:
    """The complete application, for a server or a test."""
    handlers = {reason: _failing(*failure) for reason, failure in FAILURES.items()}
    routes = Page(models, runs, workers or Workers()).routes
    return Guard(Starlette(routes=routes, exception_handlers={**handlers, Exception: _broken}), access)
