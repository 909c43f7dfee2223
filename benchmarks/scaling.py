"""Where do several processes pay? Steps of one and of two processes, and a model that predicts larger clusters.

    python -m benchmarks.scaling                                     the table, on an idle machine with two cores
    python -m benchmarks.scaling --json docs/scaling.json --docs docs/distributed.md

A step of N processes takes

    t(N) = a + b * rows / N + sums * (N - 1) * latency + bytes * 2 (N - 1) / N / bandwidth

a and b are measured in one process with all and with half of the rows, sums and bytes are counted, and latency and
bandwidth are those of sums over two processes. The sums go around a ring, as gloo sends them. t(2) is also measured,
which tests the model; larger N are predictions. All processes have one thread.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import sys
import tempfile
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch._C._distributed_c10d import FileStore
from torch.multiprocessing.spawn import start_processes

from memgen.data.dataset import Dataset
from memgen.recipes.settings import Recipe
from memgen.training.distributed import Ranks
from memgen.training.losses import step_loss
from memgen.training.prepare import Prepared, prepare
from memgen.training.state import State, begin
from memgen.training.trial import least, step_of

CASES: dict[str, tuple[str, Sequence[str]]] = {
    "K = 1": ("mnist-mem-vae", ()),
    "K = 5": ("mnist-mem-iwae-5", ()),
    "K = 50": ("mnist-mem-iwae-50", ()),
    "wide, K = 1": ("mnist-mem-vae", ("model.hidden=[2000, 2000]", "training.batch_size=1000")),
}
"""Name -> recipe, and changes of its settings."""
SIZES = (2, 4, 8, 16)
LARGE = 4 << 20
"""Numbers of a large sum."""
BEGIN, END = "<!-- benchmarks/scaling.py writes from here -->", "<!-- to here -->"


class Network(NamedTuple):
    latency: float
    """Seconds of the sum of one number over two processes."""
    bandwidth: float
    """Bytes per second of a large sum over two processes."""


ASSUMED = Network(1e-4, 1.25e9)
"""Of a cluster: 10 Gbit/s, and 0.1 ms for a sum over two machines. No such cluster was measured."""


class Steps(NamedTuple):
    """Seconds of a step, without the update of the weights, and what it exchanges."""

    alone: float
    """One process, by the path that it takes: accelerated where memgen accelerates the model."""
    plain: float
    """One process, by autograd, which several processes use."""
    half: float
    """The same with half of the rows."""
    two: float
    """Two processes."""
    rows: int
    sums: int
    bytes: int

    def predicted(self, processes: int, network: Network) -> float:
        """t(N)

        >>> steps = Steps(alone=4.0, plain=4.0, half=2.0, two=2.0, rows=100, sums=0, bytes=0)
        >>> steps.predicted(4, ASSUMED)
        1.0
        """
        divided = min(self.plain, 2 * (self.plain - self.half))
        hops = processes - 1
        exchange = self.sums * hops * network.latency + self.bytes * 2 * hops / processes / network.bandwidth
        return self.plain - divided + divided / processes + exchange


def measure(name: str, ranks: Ranks, repeats: int) -> Steps:
    """The steps of a case. All ranks call it."""
    ready, state = begun(name, ranks)
    rows = ready.sizes[0][0]
    before = replace(ranks.traffic)
    two = least(ranks, step_of(ready, state), repeats)
    sums = (ranks.traffic.sums - before.sums) // (repeats + 1) - 1  # without the one with which a repetition begins
    size = (ranks.traffic.bytes - before.bytes) // (repeats + 1)
    solo = replace(state, ranks=None)
    by_autograd = replace(solo, compiled=partial(step_loss, state.model, ready.recipe.stage(0)))
    halved = replace(ready, sizes=((rows // 2,),))
    alone, plain, half = (
        least(ranks, step_of(*way) if ranks.writes else lambda: None, repeats)
        for way in ((ready, solo), (ready, by_autograd), (halved, by_autograd))
    )
    return Steps(alone, plain, half, two, rows, sums, size)


def begun(name: str, ranks: Ranks) -> tuple[Prepared, State]:
    """A model before its first step, on random rows."""
    recipe, changes = CASES[name]
    settings = Recipe.named(recipe, "paper").override(changes)
    x = (torch.rand(2 * settings.training.batch_size, 784, generator=torch.Generator().manual_seed(0)) < 0.2).float()
    ready = prepare(settings, Dataset("random rows", x))
    return ready, begin(ready.model, ready.recipe, ranks=ranks)


def network(ranks: Ranks, repeats: int) -> Network:
    """Latency and bandwidth of sums over the ranks of this machine."""
    small, large = torch.zeros(1), torch.zeros(LARGE)
    latency = least(ranks, lambda: ranks.total(small), 10 * repeats)
    return Network(latency, large.nbytes / (least(ranks, lambda: ranks.total(large), repeats) - latency))


def work(index: int, folder: str, names: Sequence[str], repeats: int) -> None:
    """What one of two processes does."""
    torch.set_num_threads(1)
    ranks = Ranks.join(FileStore(f"{folder}/store", 2), index, 2, "cpu", 600)
    here = network(ranks, repeats)
    steps = {name: measure(name, ranks, repeats)._asdict() for name in names}
    if ranks.writes:
        Path(folder, "result.json").write_text(json.dumps({"network": here._asdict(), "steps": steps}))
    ranks.leave()


def results(names: Sequence[str], repeats: int) -> dict[str, Any]:
    load, cores = os.getloadavg()[0], os.cpu_count()
    with tempfile.TemporaryDirectory() as folder:
        start_processes(work, (folder, list(names), repeats), nprocs=2, start_method="spawn")
        measured: dict[str, Any] = json.loads(Path(folder, "result.json").read_text())
    machine = {"cores": cores, "load": round(load, 1), "processor": platform.processor() or platform.machine()}
    command = f"python -m benchmarks.scaling --repeats {repeats}"
    return {"command": command, "torch": torch.__version__, "machine": machine, **measured}


def section(result: Mapping[str, Any]) -> str:
    """The part of docs/distributed.md with the numbers."""
    here, machine = Network(**result["network"]), result["machine"]
    cases = {name: Steps(**steps) for name, steps in result["steps"].items()}
    measured = (
        f"Measured by `{result['command']}` with {machine['cores']} cores and torch {result['torch']}; the load of the "
        f"machine at the start was {machine['load']}. A sum over two processes takes {1e3 * here.latency:.2g} ms, and "
        f"large sums go at {here.bandwidth / 1e9:.2g} GB/s. Times of a step are in ms, without the update of the "
        "weights. One process is accelerated and has one thread, as each of several has, which use autograd."
    )
    predicted = (
        "**Predicted, not measured**: how many times faster a step is than in one process, on N machines with the "
        f"cores of this one, {ASSUMED.bandwidth * 8e-9:g} Gbit/s and {1e3 * ASSUMED.latency:g} ms for a sum over two "
        "of them. Below 1 it does not pay."
    )
    header = ("", "one process", "one, by autograd", "two processes", "two, by the formula", "sums", "MB")
    times = [
        (name, *map(_ms, (s.alone, s.plain, s.two, s.predicted(2, here))), str(s.sums), f"{s.bytes / 1e6:.2g}")
        for name, s in cases.items()
    ]
    gains = [(name, *(f"{s.alone / s.predicted(n, ASSUMED):.2f}" for n in SIZES)) for name, s in cases.items()]
    tables = _table(header, times), _table(("", *(f"N = {n}" for n in SIZES)), gains)
    return "\n\n".join([_wrapped(measured), tables[0], _wrapped(predicted), tables[1]])


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_on_hyphens=False)


def _ms(seconds: float) -> str:
    return f"{1e3 * seconds:,.1f}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    return "\n".join(f"| {' | '.join(line)} |" for line in (header, ["---"] * len(header), *rows))


def written(document: str, result: Mapping[str, Any]) -> str:
    """The document with the section of these results."""
    before, _, rest = document.partition(BEGIN)
    return f"{before}{BEGIN}\n\n{section(result)}\n\n{END}{rest.partition(END)[2]}"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cases", nargs="+", choices=list(CASES), default=list(CASES))
    parser.add_argument("--repeats", type=int, default=20, help="steps of each kind; the least time counts")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--docs", type=Path, help="write the tables into this document")
    parser.add_argument("--read", type=Path, help="do not measure: take the numbers of this file")
    options = parser.parse_args(arguments)
    measured = json.loads(options.read.read_text()) if options.read else results(options.cases, options.repeats)
    print(section(measured))
    if options.json:
        options.json.write_text(json.dumps(measured, indent=1) + "\n")
    if options.docs:
        options.docs.write_text(written(options.docs.read_text(), measured))
    return 0


if __name__ == "__main__":
    sys.exit(main())
