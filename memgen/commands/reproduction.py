"""`memgen reproduce`, `memgen zoo`"""

from __future__ import annotations

import argparse
import os
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from memgen import zoo as models
from memgen.commands.common import say
from memgen.errors import MemgenError
from memgen.reproduce import pairs
from memgen.reproduce.jobs import Job, Place, read_result, state
from memgen.reproduce.jobs import reproduce as do
from memgen.reproduce.page import duration, number, write_page
from memgen.reproduce.rows import FREY, ROWS, SPLITS, SWEEP, expand
from memgen.reproduce.shipping import ship, verify
from memgen.reproduce.sweep import sweep
from memgen.session import choose_device


def reproduce(options: argparse.Namespace) -> dict[str, Any]:
    place = Place(options.results, options.runs, choose_device(options.device))
    ways = [way for way in ("status", "verify", "ship") if getattr(options, way)]
    if len(ways) > 1:
        raise MemgenError(f"--{ways[0]} and --{ways[1]} are two things to do; ask for one")
    if options.limit is not None and not options.verify:
        raise MemgenError("--limit goes with --verify")
    if ways:
        return {"status": status, "verify": verify_rows, "ship": ship_rows}[ways[0]](options, place)
    return run_all(options, place)


def run_all(options: argparse.Namespace, place: Place) -> dict[str, Any]:
    """One job after the other, until all are done or the time is up."""
    todo = jobs(options)
    done: list[str] = []
    clock = time.monotonic()
    with budget(options.budget) as spent:
        try:
            for job in todo:
                say(options, f"{SWEEP if job is None else job.name}:")
                if job is None:
                    sweep(place)
                else:
                    tell(options, do(job, place))
                    pairs.update(job, place)
                done.append(SWEEP if job is None else job.name)
                write_page(place.results)
        except KeyboardInterrupt as interrupt:
            if (place.results / "figures").exists() or any(place.results.glob("*.json")):
                write_page(place.results)
            if not spent():
                raise KeyboardInterrupt(f"{interrupt or 'interrupted'}; the same command goes on") from None
            say(options, f"the budget is used up ({interrupt}); the same command goes on")
    left = [SWEEP if job is None else job.name for job in todo[len(done) :]]
    return {"done": done, "left": left, "seconds": time.monotonic() - clock}


def jobs(options: argparse.Namespace) -> list[Job | None]:
    """What is asked for, in order; None stands for the sweep of slots."""
    found: list[Job | None] = []
    for name in expand(options.rows):
        if name == SWEEP:
            found.append(None)
            continue
        row = ROWS[name]
        schedule = options.schedule or row.schedule
        if schedule not in row.schedules:
            raise MemgenError(f"{name} has no {schedule} schedule; it has {', '.join(row.schedules)}")
        splits = range(SPLITS) if row.table == FREY and options.splits else (0,)
        found += [Job(row, schedule, options.seed, split) for split in splits]
    return found


@contextmanager
def budget(seconds: float | None) -> Iterator[Any]:
    """The clock presses Ctrl-C when the time is up, so everything that survives the one survives the other; yields a
    function that says whether it was the clock.
    """
    rung = False

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal rung
        rung = True
        os.kill(os.getpid(), signal.SIGINT)

    before = signal.signal(signal.SIGALRM, ring)
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield lambda: rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tell(options: argparse.Namespace, found: dict[str, Any]) -> None:
    quantity = found["compared"]
    error = found["standard_error" if quantity == "log_likelihood" else "elbo_standard_error"]
    say(
        options,
        f"  {number(found[quantity], error)} nats (paper {found['paper']:g}, difference {found['difference']:+.2f}), "
        f"{found['epochs']:,} epochs in {duration(found['seconds'])}",
    )


def status(options: argparse.Namespace, place: Place) -> dict[str, Any]:
    """Paper, ours, difference, time and state of every row, and of its other seeds and splits where they are begun."""
    lines = []
    width = max(map(len, ROWS))
    say(options, f"{'row':<{width}} {'paper':>9} {'ours':>17} {'ours - paper':>16} {'training':>9}  state")
    for name in [name for name in expand(options.rows) if name in ROWS]:
        job = Job(ROWS[name], options.schedule or ROWS[name].schedule, options.seed)
        found = read_result(job.result(place))
        said = state(job, place)
        ours = difference = seconds = ""
        if found is not None:
            error = found["difference_standard_error"]
            ours = number(found[found["compared"]], error)
            difference = number(found["difference"], error, sign=True)
            seconds = duration(found["seconds"])
        say(
            options,
            f"{name:<{width}} {ROWS[name].paper:>9.2f} {ours:>17} {difference:>16} {seconds:>9}  {said}",
        )
        lines.append({"row": name, "paper": ROWS[name].paper, "state": said, "result": found})
    return {"rows": lines}


def verify_rows(options: argparse.Namespace, place: Place) -> dict[str, Any]:
    found = []
    for name in shipped(options.rows):
        found.append(verify(name, options.limit, place.device))
        own = found[-1]
        say(
            options,
            f"{name}: {own['log_likelihood']:.3f} nats on {own['examples']:,} examples, K = {own['samples']:,}; "
            f"measured before: {own['expected']:.3f}, difference {own['difference']:+.4f}; good",
        )
    return {"verified": found}


def shipped(asked: list[str]) -> list[str]:
    """Rows whose weights are in the zoo."""
    if not asked:
        raise MemgenError(f"which row? In the zoo are: {', '.join(models.names()) or 'none yet'}")
    for name in asked:
        models.resolve(models.PREFIX + name)
    return list(asked)


def ship_rows(options: argparse.Namespace, place: Place) -> dict[str, Any]:
    if not options.rows:
        raise MemgenError("which row? memgen reproduce --ship ROW")
    found = []
    for name in expand(options.rows):
        found.append(ship(name, place))
        own = found[-1]
        precision = "half" if own["half_precision"] else "full"
        say(options, f"{name}: {own['bytes']:,} bytes, {precision} precision ({own['change']:+.4f} nats in half)")
    return {"shipped": found}


def zoo(options: argparse.Namespace) -> dict[str, Any]:
    """The models that come with the package, and their numbers."""
    rows = []
    for name in models.names():
        told = models.result(name)
        rows.append(told | {"name": name})
        say(options, f"{models.PREFIX + name:<24} {told['model']}, {told['table']}")
        ours = number(told["log_likelihood"], told["standard_error"])
        how = f"K = {told['samples']:,}, {told['examples']:,} test examples of {told['data']}, {told['scale']}"
        say(options, f"{'':<24} log p(x) {ours} nats, {how}")
        say(options, f"{'':<24} {told['parameters']:,} parameters, {told['recipe']}, {told['epochs']:,} epochs")
    if not rows:
        say(options, "the zoo is empty")
    return {"models": rows}
