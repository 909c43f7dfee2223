"""How long the page waits: response times of `memgen serve`, over a real connection to a server of its own.

    python -m benchmarks.web [--model zoo:mnist-mem-vae] [--requests 300] [--json]

Two requests are what a person feels while dragging: `decode`, the image of a point z, and `look` with a silenced slot,
which decodes z with the intact and with the changed memory and estimates log p(x) of both by 50 importance samples.
The target is 30 ms at the 95th percentile on an idle machine. `cpu` is the computing time of the server per request,
which other programs on the machine hardly change.
"""

from __future__ import annotations

import argparse
import http.client
import json
import math
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

TARGET = 30.0
"""Milliseconds, at the 95th percentile."""
WARM_UP = 20


class Server:
    """A server of its own, which is asked over one connection."""

    def __init__(self, process: subprocess.Popen[str], host: str, port: int, token: str) -> None:
        self.process, self.connection = process, http.client.HTTPConnection(host, port)
        self.headers = {"x-memgen-token": token, "content-type": "application/json"}

    def post(self, name: str, body: dict[str, Any]) -> Any:
        self.connection.request("POST", f"/api/{name}", json.dumps(body), self.headers)
        answer = self.connection.getresponse()
        content = answer.read()
        if answer.status != 200:
            raise SystemExit(f"{name}: {content.decode()}")
        return json.loads(content)

    def cpu(self) -> float:
        """Seconds of computing time so far; NaN where /proc does not tell it."""
        path = Path(f"/proc/{self.process.pid}/stat")
        if not path.exists():
            return math.nan
        user, system = path.read_text().rpartition(")")[2].split()[11:13]
        return (int(user) + int(system)) / os.sysconf("SC_CLK_TCK")


@contextmanager
def served(model: str) -> Iterator[Server]:
    command = [sys.executable, "-u", "-m", "memgen", "serve", model, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        yield Server(process, *address(process))
    finally:
        process.terminate()
        process.wait()


def address(process: subprocess.Popen[str]) -> tuple[str, int, str]:
    """Host, port and token that the server prints."""
    assert process.stdout is not None
    for line in process.stdout:
        if match := re.search(r"http://([\d.]+):(\d+)/#token=(\S+)", line):
            return match[1], int(match[2]), match[3]
    raise SystemExit("the server did not start")


def times(ask: Callable[[int], Any], n: int, server: Server) -> dict[str, float]:
    """Milliseconds of n requests, after some that do not count."""
    for i in range(WARM_UP):
        ask(i)
    seconds, cpu = [], server.cpu()
    for i in range(WARM_UP, WARM_UP + n):
        clock = time.perf_counter()
        ask(i)
        seconds.append(time.perf_counter() - clock)
    response = 1000 * np.array(seconds)
    return {
        "median": float(np.median(response)),
        "p95": float(np.quantile(response, 0.95)),
        "largest": float(response.max()),
        "cpu": 1000 * (server.cpu() - cpu) / n,
    }


def measure(model: str, n: int) -> dict[str, dict[str, float]]:
    with served(model) as server:
        post = server.post
        z = post("samples", {"n": 50})["z"]
        total = post("examples", {"n": 1})["total"]

        def silenced(i: int) -> Any:
            return post("look", {"z": z[i % 50], "row": i % total, "changes": [{"place": 0, "slot": i % 5}]})

        return {
            "decode": times(lambda i: post("decode", {"z": z[i % 50]}), n, server),
            "silence a slot": times(silenced, n, server),
        }


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.web", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--model", default="zoo:mnist-mem-vae")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.model, options.requests)
    about = {"model": options.model, "requests": options.requests, "cores": os.cpu_count(), "load": os.getloadavg()[0]}
    if options.json:
        print(json.dumps(about | {"milliseconds": found}))
        return
    print(f"{options.model}, {options.requests} requests each, {platform.machine()}, {os.cpu_count()} cores, "
          f"load {about['load']:.1f} before")  # fmt: skip
    print(f"{'milliseconds':<18}{'median':>8}{'95 %':>8}{'largest':>9}{'cpu':>7}")
    for name, row in found.items():
        verdict = "" if row["p95"] < TARGET else f"  above the target of {TARGET:.0f}"
        numbers = f"{row['median']:>8.1f}{row['p95']:>8.1f}{row['largest']:>9.1f}{row['cpu']:>7.1f}"
        print(f"{name:<18}{numbers}{verdict}")


if __name__ == "__main__":
    main()
