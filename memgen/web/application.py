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
from memgen.web import asks, pictures, tables
from memgen.web.runs import Runs
from memgen.web.safety import Door, Guard
from memgen.web.shelf import Shown
from memgen.web.work import BusyError, OutdatedError, Ticket, Workers

POLL = 1.0
"""Seconds between two checks of the runs for new epochs."""
MOST_STREAMS = 16
TYPES = {".html": "text/html", ".css": "text/css", ".js": "text/javascript", ".svg": "image/svg+xml"}
REPORT_POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'; sandbox allow-popups"

ANSWERS: dict[str, tuple[type[asks.OfModel], Callable[..., dict[str, Any]]]] = {
    "samples": (asks.Samples, pictures.samples),
    "decode": (asks.Decode, pictures.decode),
    "morph": (asks.Morph, pictures.morph),
    "map": (asks.OfModel, pictures.latent_map),
    "images": (asks.Images, pictures.images),
    "encode": (asks.Encode, pictures.encode),
    "look": (asks.Look, pictures.look),
    "slots": (asks.OfPlace, pictures.slots),
    "nearest": (asks.OfSlot, pictures.nearest),
    "pattern": (asks.Pattern, pictures.pattern),
    "complete": (asks.Complete, pictures.complete),
    "fill": (asks.Fill, tables.fill),
    "rows": (asks.Rows, tables.rows),
}
"""name -> type of the request, and the function (model, request, check) that answers it."""


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

    def __init__(self, shown: Sequence[Shown], runs: Runs, workers: Workers) -> None:
        self.shown, self.runs, self.workers = list(shown), runs, workers
        self.files = static_files()
        self.streams = 0

    async def file(self, request: Request) -> Response:
        content, kind = self.files[request.url.path]
        return Response(content, media_type=kind)

    async def about(self, request: Request) -> Response:
        return JSONResponse({"models": [shown.about for shown in self.shown]})

    async def answer(self, request: Request) -> Response:
        kind, function = ANSWERS[request.path_params["name"]]
        ask = asks.read(kind, await request.body())
        shown, ticket = self.model(ask.model), self.ticket(request)
        result = await self.workers.run(ticket, request.is_disconnected, lambda check: function(shown, ask, check))
        return JSONResponse(result)

    async def values(self, request: Request) -> Response:
        ask = asks.read(asks.OfPlace, await request.body())
        shown, ticket = self.model(ask.model), self.ticket(request)
        events = self.workers.stream(ticket, lambda check, report: pictures.values(shown, ask, check, report))
        return StreamingResponse(_server_sent(events), media_type="text/event-stream")

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

    def model(self, index: int) -> Shown:
        if index >= len(self.shown):
            raise MemgenError(f"there is no model {index}: {len(self.shown)} are served, counted from 0")
        return self.shown[index]

    def ticket(self, request: Request) -> Ticket:
        """The ticket of a request, from the headers with its client, topic and turn."""
        client, topic = (request.headers.get(f"x-memgen-{name}", "") for name in ("client", "topic"))
        turn = request.headers.get("x-memgen-turn", "0")
        return self.workers.ticket(client, topic, int(turn) if turn.isdecimal() and len(turn) < 16 else 0)


async def _server_sent(events: AsyncIterator[tuple[str, Any]]) -> AsyncIterator[str]:
    """Events in the format of server-sent events. An error becomes a last event, "failed"."""
    try:
        async for name, value in events:
            yield f"event: {name}\ndata: {json.dumps(value, allow_nan=False)}\n\n"
    except (MemgenError, OutdatedError, BusyError) as error:
        reason = {"error": _line(error) or "given up"}
        yield f"event: failed\ndata: {json.dumps(reason)}\n\n"


def _line(error: Exception) -> str:
    return str(error).splitlines()[0][:500] if str(error) else ""


def _failed(status: int, words: str = "") -> Callable[[Request, Exception], Response]:
    return lambda request, error: JSONResponse({"error": words or _line(error)}, status)


def _broken(request: Request, error: Exception) -> Response:
    print(f"memgen serve: {type(error).__name__}: {_line(error)}", file=sys.stderr)
    return JSONResponse({"error": "something went wrong inside; the terminal says what"}, 500)


def application(shown: Sequence[Shown], runs: Runs, door: Door, workers: Workers | None = None) -> Guard:
    """The complete application, for a server or a test."""
    page = Page(shown, runs, workers or Workers())
    routes = [Route(path, page.file, methods=["GET"]) for path in page.files]
    routes += [Route("/api/about", page.about, methods=["GET"]), Route("/api/runs", page.follow, methods=["GET"])]
    routes += [Route("/api/values", page.values, methods=["POST"])]
    routes += [Route(f"/api/{name}", _named(page, name), methods=["POST"]) for name in ANSWERS]
    routes += [Route("/report/{number:int}", page.report, methods=["GET"])]
    handlers: dict[Any, Any] = {
        MemgenError: _failed(400),
        OutdatedError: _failed(409, "outdated: a newer request has taken its place"),
        BusyError: _failed(429, "busy; try again in a moment"),
        ClientDisconnect: _failed(413, "the request is too large or was cut off"),
        404: _failed(404, "there is nothing at this address"),
        405: _failed(405, "not in this way"),
        Exception: _broken,
    }
    return Guard(Starlette(routes=routes, exception_handlers=handlers), door)


def _named(page: Page, name: str) -> Callable[[Request], Any]:
    async def answer(request: Request) -> Response:
        request.path_params["name"] = name
        return await page.answer(request)

    return answer
