"""How long the page waits: response times of `memgen serve`, over a real connection to a server of its own.

    python -m benchmarks.web [--model zoo:mnist-mem-vae] [--requests 300] [--json]

Two requests are what a person feels while dragging: `decode`, the image of a point z, and `look` with a silenced slot,
which decodes twice and estimates log p(x) of a changed memory by 100 importance samples (every request has an image of
its own, so that the intact log p(x) is computed, too; while a person silences slots of one image it is remembered,
which is the third row). The target is 30 ms at the 95th percentile on an idle machine.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

TARGET = 30.0
"""Milliseconds, at the 95th percentile."""
WARM_UP = 20

Post = Callable[[str, dict[str, Any]], Any]


@contextmanager
def served(model: str) -> Iterator[Post]:
    """A function that asks a server of its own, over one connection."""
    command = [sys.executable, "-u", "-m", "memgen", "serve", model, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        found = None
        while found is None:
            assert process.stdout is not None
            line = process.stdout.readline()
            if not line:
                raise SystemExit("the server did not start")
            found = re.search(r"http://([\d.]+):(\d+)/#token=(\S+)", line)
        connection = http.client.HTTPConnection(found[1], int(found[2]))
        headers = {"x-memgen-token": found[3], "content-type": "application/json"}

        def post(name: str, body: dict[str, Any]) -> Any:
            connection.request("POST", f"/api/{name}", json.dumps(body), headers)
            answer = connection.getresponse()
            content = answer.read()
            if answer.status != 200:
                raise SystemExit(f"{name}: {content.decode()}")
            return json.loads(content)

        yield post
    finally:
        process.terminate()
        process.wait()


def times(ask: Callable[[int], Any], n: int) -> np.ndarray:
    """Milliseconds of n requests, after some that do not count."""
    found = []
    for i in range(n + WARM_UP):
        clock = time.perf_counter()
        ask(i)
        found.append(1000 * (time.perf_counter() - clock))
    return np.array(found[WARM_UP:])


def measure(model: str, n: int) -> dict[str, dict[str, float]]:
    with served(model) as post:
        z = post("samples", {"n": 50})["z"]
        total = post("images", {"n": 1})["total"]

        def silenced(i: int, image: int) -> Any:
            return post("look", {"z": z[i % 50], "image": image, "changes": [{"place": 0, "slot": i % 5}]})

        asks: dict[str, Callable[[int], Any]] = {
            "decode": lambda i: post("decode", {"z": z[i % 50]}),
            "silence, new image": lambda i: silenced(i, i % total),
            "silence, same image": lambda i: silenced(i, 0),
        }
        return {name: summary(times(ask, n)) for name, ask in asks.items()}


def summary(found: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(found)), "p95": float(np.quantile(found, 0.95)), "largest": float(found.max())}


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
    print(f"{'milliseconds':<22}{'median':>8}{'95 %':>8}{'largest':>9}")
    for name, row in found.items():
        verdict = "" if row["p95"] < TARGET else f"  above the target of {TARGET:.0f}"
        print(f"{name:<22}{row['median']:>8.1f}{row['p95']:>8.1f}{row['largest']:>9.1f}{verdict}")


if __name__ == "__main__":
    main()
