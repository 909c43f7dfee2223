"""`memgen serve`: the application behind a socket, and the address to open."""

from __future__ import annotations

import contextlib
import secrets
import socket
import webbrowser
from collections.abc import Callable, Sequence
from pathlib import Path
from types import FrameType

import uvicorn

from memgen.errors import MemgenError
from memgen.web.application import application
from memgen.web.models import load
from memgen.web.queries import MOST_MODELS
from memgen.web.runs import Runs
from memgen.web.safety import LOOPBACK, Access, Guard, is_address
from memgen.web.work import Workers

PORT = 8765
GRACE = 3
"""Seconds for open requests to end after Ctrl-C."""
MOST_CONNECTIONS = 256
WAITING = 128
"""Largest number of connections that wait to be accepted."""
EVERYWHERE = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104
"""Address that only a server can use -> address to open in the browser."""


def serve(
    models: Sequence[str] = (),
    *,
    runs: Path | None = None,
    host: str = "127.0.0.1",
    port: int = PORT,
    open_browser: bool = False,
    allow_remote: bool = False,
    say: Callable[[str], None] = print,
) -> None:
    """Serve the page until Ctrl-C. `models`: run folders, model files or zoo:NAME, by default a MEM-VAE and a VAE;
    `runs`: a folder of runs whose curves are shown."""
    check(models, runs, host, allow_remote)
    served = load(models)
    workers, access = Workers(), Access(secrets.token_urlsafe(18), host not in LOOPBACK)
    bound = listen(host, port)
    address = f"http://{_name(host)}:{bound.getsockname()[1]}/#token={access.token}"
    say(f"serving {', '.join(one.name for one in served)}")
    if access.remote:
        say("warning: other machines on your network can reach this page if they know the address; it is not encrypted")
    say(f"open {address}")
    say("Ctrl-C stops it")
    if open_browser:
        webbrowser.open(address)
    for one in served:
        workers.pool.submit(getattr, one, "examples")  # read the data while the page opens
    folders = tuple(Path(path) for path in models if Path(path).is_dir())
    run(application(served, Runs(folders, runs), access, workers), workers, bound)
    say("stopped")


def check(models: Sequence[str], runs: Path | None, host: str, allow_remote: bool) -> None:
    """Refuse wrong arguments before any model is read."""
    if host not in LOOPBACK and not allow_remote:
        raise MemgenError(f"--host {host} lets other machines in; say --allow-remote if that is meant")
    if host not in LOOPBACK and not is_address(host):
        raise MemgenError(f"--host {host}: give the address in numbers, as in 0.0.0.0")
    if len(models) > MOST_MODELS:
        raise MemgenError(f"the page shows up to {MOST_MODELS} models")
    if runs is not None and not runs.is_dir():
        raise MemgenError(f"there is no folder {runs}, in which runs could be")


def _name(host: str) -> str:
    """
    >>> _name("0.0.0.0"), _name("::")
    ('127.0.0.1', '[::1]')
    """
    name = EVERYWHERE.get(host, host)
    return f"[{name}]" if ":" in name else name


def listen(host: str, port: int) -> socket.socket:
    """The listening socket, opened before the address is printed, because the port may be taken."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With the protocol named, asyncio sends answers at once; otherwise they wait 40 ms for an acknowledgement.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(WAITING)  # early connections wait instead of being refused
    except (OSError, OverflowError) as error:
        listener.close()
        reason = getattr(error, "strerror", None) or str(error)
        raise MemgenError(f"cannot listen at {host}, port {port}: {reason}; choose another --port, 0 for any") from None
    return listener


def run(app: Guard, workers: Workers, bound: socket.socket) -> None:
    """Serve until Ctrl-C."""
    config = uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        ws="none",
        lifespan="off",
        timeout_graceful_shutdown=GRACE,
        limit_concurrency=MOST_CONNECTIONS,
    )
    web = uvicorn.Server(config)
    stop = web.handle_exit

    def end(signal: int, frame: FrameType | None) -> None:
        workers.close()  # so that no open stream keeps the server alive
        stop(signal, frame)

    web.handle_exit = end  # type: ignore[method-assign, assignment]
    with contextlib.suppress(KeyboardInterrupt):  # which uvicorn hands on after it has stopped
        web.run(sockets=[bound])
