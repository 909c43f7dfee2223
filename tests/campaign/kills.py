"""The part of the campaign that kills: trainings, evaluations, imputations and reports, at random moments, and then
looks whether anything was lost."""

from __future__ import annotations

import json
import multiprocessing
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import numpy as np

from memgen.data.output import is_scrap
from memgen.runs.run import CHECKPOINT, METRICS, WEIGHTS
from memgen.runs.storage import load_tensors
from tests.campaign.corpus import settings
from tests.campaign.inputs import PRELOAD
from tests.runs.child import child

FORK = multiprocessing.get_context("forkserver")
PATIENCE = 180
"""Seconds for a command that is not killed."""
SMALL = (
    "training.evaluate_rows=20",
    "training.batch_size=20",
    "model.hidden=[8]",
    "model.latent=2",
    "training.ema=0.9",
    "training.evaluate_every=2",
    "training.epochs=4",
)
LOCAL = "objective.local_reconstruction=[0.1]"
PRODUCT = ("model.slots=[64]", "model.attention=product", "model.top=4", LOCAL)
EVERY_STEP = ("--resume", "--checkpoint-every", "0")


class Damage(AssertionError):
    """Something was lost, or an end differs."""


@dataclass(frozen=True)
class Scenario:
    """A command that is killed and given again until it ends by itself; `end` must then be what it always is."""

    name: str
    arguments: Callable[[Path], list[str]]
    end: Callable[[Path], Any]
    made: Callable[[Path], Iterator[Path]]
    """The files that must be whole at any moment, as far as they exist."""
    prepare: Callable[[Path], None] = lambda folder: None


def training(*more: str, table: str = "table.csv", options: Sequence[str] = ()) -> Callable[[Path], list[str]]:
    """A training that saves after every step."""

    def arguments(folder: Path) -> list[str]:
        data = ["--data", str(folder / table), "--out", str(folder / "run"), *options]
        return ["train", *data, *settings(*more, *SMALL), *EVERY_STEP]

    return arguments


def run_files(folder: Path) -> Iterator[Path]:
    yield from (folder / "run" / name for name in (WEIGHTS, CHECKPOINT))


def run_end(folder: Path) -> dict[str, Any]:
    """Weights to the bit, and the metrics of all epochs."""
    tensors, _ = load_tensors(folder / "run" / WEIGHTS)
    lines = [json.loads(line) for line in (folder / "run" / METRICS).read_text().splitlines()]
    bits = {name: value.contiguous().numpy().tobytes() for name, value in tensors.items()}
    return {**bits, "metrics": [{key: value for key, value in line.items() if key != "seconds"} for line in lines]}


def whole_table(folder: Path) -> None:
    incomplete_table(folder, every=1000)


def incomplete_table(folder: Path, every: int = 5) -> None:
    """A value is missing in every so many rows."""
    pairs = enumerate(np.random.default_rng(0).normal(size=(50, 2)), 1)
    rows = [f"{x:.4f},{y:.4f},{'ab'[i % 2]}" if i % every else f",{y:.4f},b" for i, (x, y) in pairs]
    (folder / "table.csv").write_text("x,y,kind\n" + "\n".join(rows) + "\n")


def finished_run(folder: Path) -> None:
    incomplete_table(folder)
    carry_out(training("model.slots=[4]")(folder), folder / "log")


def scores(folder: Path) -> Iterator[Path]:
    yield from (path for path in (folder / "run" / "likelihood").glob("*") if not is_scrap(path.name))


def score_end(folder: Path) -> list[bytes]:
    return [load_tensors(path)[0]["log_p"].numpy().tobytes() for path in sorted(scores(folder))]


def shard_files(folder: Path) -> Iterator[Path]:
    yield from (path for path in (folder / "run" / "shards").rglob("*.safetensors") if not is_scrap(path.name))


def shard_end(folder: Path) -> list[bytes]:
    return [load_tensors(path)[0]["log_p"].numpy().tobytes() for path in sorted(shard_files(folder))]


def stored_rows(folder: Path) -> None:
    np.save(folder / "table.npy", np.random.default_rng(0).normal(size=(50, 3)))


def report_end(folder: Path) -> bool:
    text = (folder / "report.html").read_text()
    return text.lstrip().lower().startswith("<!doctype html>") and text.rstrip().endswith("</html>")


SCENARIOS = (
    Scenario("train, dense memory", training("model.slots=[9]", LOCAL), run_end, run_files, whole_table),
    Scenario("train, product keys", training(*PRODUCT), run_end, run_files, whole_table),
    Scenario("train, incomplete table", training("model.slots=[4]"), run_end, run_files, incomplete_table),
    Scenario(
        "train, rows in the file",
        training("model.slots=[4]", table="table.npy", options=("--stream",)),
        run_end,
        run_files,
        stored_rows,
    ),
    Scenario(
        "evaluate",
        lambda folder: ["evaluate", str(folder / "run"), "--samples", "20000"],
        score_end,
        scores,
        finished_run,
    ),
    Scenario(
        "evaluate, one shard",
        lambda folder: [
            *("evaluate", str(folder / "run"), "--samples", "5000", "--split", "train", "--shard", "1/2"),
        ],
        shard_end,
        shard_files,
        finished_run,
    ),
    Scenario(
        "score",
        lambda folder: [
            *("score", str(folder / "run"), "--input", str(folder / "table.csv"), "--samples", "5000"),
            *("-o", str(folder / "scores.csv"), "--overwrite"),
        ],
        lambda folder: (folder / "scores.csv").read_bytes(),
        lambda folder: iter(()),
        finished_run,
    ),
    Scenario(
        "impute",
        lambda folder: [
            *("impute", str(folder / "run"), "--input", str(folder / "table.csv"), "--steps", "60"),
            *("--output", str(folder / "whole.csv"), "--overwrite"),
        ],
        lambda folder: (folder / "whole.csv").read_bytes(),
        lambda folder: iter(()),
        finished_run,
    ),
    Scenario(
        "report",
        lambda folder: [
            *("report", str(folder / "run"), "-o", str(folder / "report.html"), "--samples", "5", "--limit", "2"),
        ],
        report_end,
        lambda folder: iter(()),
        finished_run,
    ),
)


def start(arguments: list[str], log: Path) -> BaseProcess:
    FORK.set_forkserver_preload([*PRELOAD, "sklearn.datasets"])
    process = FORK.Process(target=child, args=(arguments, str(log)))
    process.start()
    return process


def carry_out(arguments: list[str], log: Path) -> None:
    process = start(arguments, log)
    process.join(PATIENCE)
    if process.exitcode != 0:
        process.kill()
        raise Damage(f"{' '.join(arguments)}: exit code {process.exitcode}: {log.read_text()[-2000:]}")


@dataclass
class Kills:
    """What came of the kills so far."""

    kills: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    """Ends after kills, that were the same as the undisturbed one."""
    in_write: int = 0
    """Kills that left a file half written, under the name that only such files have."""
    damages: list[str] = field(default_factory=list)


@dataclass
class Victim:
    """One scenario in a folder of its own, with the end that it ought to have."""

    scenario: Scenario
    base: Path
    chance: random.Random

    def __post_init__(self) -> None:
        self.base.mkdir(parents=True)
        self.clean, self.folder = self.base / "clean", self.base / "folder"
        self.clean.mkdir()
        self.scenario.prepare(self.clean)
        self._renew()
        before = time.monotonic()
        carry_out(self.scenario.arguments(self.folder), self.base / "log")
        self.duration = time.monotonic() - before
        self.reference = self.scenario.end(self.folder)
        self._renew()

    def _renew(self) -> None:
        """The folder as it was before the command was first given."""
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.copytree(self.clean, self.folder)

    def kill_once(self, tally: Kills) -> None:
        """Give the command, kill it at a random moment, and look at what is there."""
        process = start(self.scenario.arguments(self.folder), self.base / "log")
        process.join(self.chance.uniform(0.02, 1.05 * self.duration))
        process.kill()
        process.join()
        if process.exitcode == -signal.SIGKILL:
            tally.kills[self.scenario.name] += 1
            tally.in_write += any(is_scrap(path.name) for path in self.folder.rglob("*"))
            for path in self.scenario.made(self.folder):
                if path.exists():
                    load_tensors(path)
        else:
            self.compare(process.exitcode, tally)

    def finish(self, tally: Kills) -> None:
        """Give the command once more, and let it end."""
        process = start(self.scenario.arguments(self.folder), self.base / "log")
        process.join(PATIENCE)
        self.compare(process.exitcode, tally)

    def compare(self, code: int | None, tally: Kills) -> None:
        log = (self.base / "log").read_text()
        if code != 0 or "Traceback" in log:
            raise Damage(f"{self.scenario.name}: exit code {code}: {log[-2000:]}")
        if self.scenario.end(self.folder) != self.reference:
            raise Damage(f"{self.scenario.name}: the end differs from that of a command that was not killed")
        tally.ends[self.scenario.name] += 1
        self._renew()


def victims(base: Path, seed: object) -> list[Victim]:
    """Every scenario, carried out once, undisturbed."""
    base.mkdir(parents=True)
    carry_out(["recipes"], base / "log")  # the first one waits for the server of processes
    return [Victim(s, base / str(i), random.Random(f"{seed}/{i}")) for i, s in enumerate(SCENARIOS)]


def run_kills(targets: list[Victim], kills: int, tally: Kills) -> None:
    """So many kills more, over all scenarios in turn; every one is let to its end at last."""
    goal, i = tally.kills.total() + kills, 0
    while tally.kills.total() < goal:
        _guarded(targets[i % len(targets)].kill_once, tally)
        i += 1
    for target in targets:
        _guarded(target.finish, tally)


def _guarded(act: Callable[[Kills], None], tally: Kills) -> None:
    try:
        act(tally)
    except (Damage, OSError, ValueError) as error:
        tally.damages.append(str(error))
