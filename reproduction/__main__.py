"""The command line of the reproduction: `python -m reproduction`."""

from __future__ import annotations

import fcntl
import signal
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import FrameType, SimpleNamespace
from typing import Any

import click

from memgen.cli.command import Command, examples, run, say
from memgen.cli.options import FILE, Whole, compile_option, device_option
from memgen.data import source
from memgen.data.sets.frey_faces import SPLITS
from memgen.errors import FailedError, MemgenError
from memgen.report.figures.base import make_folder
from memgen.runs import zoo as models
from memgen.runs.session import choose_device
from reproduction import ledger, pairs
from reproduction.duration import Duration
from reproduction.job import SEED, Job, Place, read_result
from reproduction.jobs import current, missing, state
from reproduction.jobs import reproduce as do
from reproduction.page import write_page
from reproduction.rows import FREY, ROWS, SWEEP, all_schedules, expand
from reproduction.shipping import ship, verify
from reproduction.sweep import sweep, swept
from reproduction.text import duration, number, trained_for

WAYS = {"status": ("seed", "schedule", "splits"), "verify": ("limit",), "ship": ("seed", "schedule")}
"""Other things to do than to run rows, and the options that go with them."""
DEFAULTS = {"budget": None, "seed": SEED, "schedule": None, "splits": False, "limit": None}


def reproduce(options: SimpleNamespace) -> dict[str, Any]:
    choose_device(options.device)
    place = Place(options.results, options.runs, options.device, options.compiled)
    ways = [way for way in WAYS if getattr(options, way)]
    if len(ways) > 1:
        raise MemgenError(f"--{ways[0]} and --{ways[1]} are two things to do; ask for one")
    allowed = WAYS[ways[0]] if ways else ("budget", "seed", "schedule", "splits")
    for name, default in DEFAULTS.items():
        if name not in allowed and getattr(options, name) != default:
            raise MemgenError(f"--{name} does not go with --{ways[0]}" if ways else f"--{name} goes with --verify")
    if ways:
        return {"status": status, "verify": verify_rows, "ship": ship_rows}[ways[0]](options, place)
    return run_all(options, place)


def run_all(options: SimpleNamespace, place: Place) -> dict[str, Any]:
    """One job after the other, until all are done or the time is up. A row that fails does not stop the others."""
    todo = jobs(options)
    make_folder(place.results)  # now, and not after hours of training
    for name in {job.recipe.data.name for job in todo.values() if job is not None}:
        source(name).require()
    done: list[str] = []
    failed: dict[str, MemgenError] = {}
    clock = time.monotonic()
    with budget(options.budget) as spent:
        try:
            for name, job in todo.items():
                if spent():
                    break
                try:
                    run_one(options, name, job, place)
                    done.append(name)
                except MemgenError as error:
                    failed[name] = error
                    say(f"  failed: {error}")
        except KeyboardInterrupt as interrupt:
            why = str(interrupt) or "interrupted"
            if not spent():
                raise KeyboardInterrupt(f"{why}; or with the same command as before") from None
            say(why)
    if spent():
        say("the budget is used up; the same command goes on")
    if failed:
        kind = FailedError if any(isinstance(error, FailedError) for error in failed.values()) else MemgenError
        raise kind("; ".join(f"{name}: {why}" for name, why in failed.items()))
    left = [name for name in todo if name not in done]
    return {"done": done, "left": left, "seconds": time.monotonic() - clock}


def run_one(options: SimpleNamespace, name: str, job: Job | None, place: Place) -> None:
    """A row, or the sweep of slots; whatever happens, the page says what is there."""
    try:
        if job is None:
            say(f"{name}:")
            sweep(place)
            return
        before = read_result(job.result(place))
        whole = before is not None and current(job, before) and not missing(job, before)
        say(f"{name}: done before, {job.result(place)}" if whole else f"{name}:")
        tell(do(job, place))
    finally:
        if place.results.is_dir():
            with alone(place):
                if job is not None:
                    pairs.update(job, place)
                    ledger.update(job, place)
                write_page(place.results)


@contextmanager
def alone(place: Place) -> Iterator[None]:
    """Two processes may work side by side on different rows; what they share is written by one at a time."""
    make_folder(place.runs)
    with (place.runs / ".lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def jobs(options: SimpleNamespace) -> dict[str, Job | None]:
    """What is asked for, in order, by name; None stands for the sweep of slots. The group of Frey faces is about the
    difference over five splits, so it has them all; a single row has them if that is said.
    """
    chosen: dict[str, Job | None] = {}
    asked = {*options.rows}
    single = options.status or options.ship
    every = options.splits or (not single and {"frey", "all"} & {*(options.rows or ["all"])})
    for name in expand(options.rows):
        if name == SWEEP:
            if options.seed == SEED and options.schedule is None:
                chosen[SWEEP] = None
            elif name in asked:
                raise MemgenError(f"--seed and --schedule do not go with {SWEEP}")
            continue
        row = ROWS[name]
        schedule = options.schedule or row.schedule
        if schedule not in row.schedules:
            if name not in asked:  # but a group of which it is one
                continue
            raise MemgenError(f"{name} has no {schedule} schedule; it has {', '.join(row.schedules)}")
        splits = range(SPLITS) if row.table == FREY and every else (0,)
        for split in splits:
            job = Job(row, schedule, options.seed, split)
            chosen[job.name] = job
    if not chosen:
        raise MemgenError(f"none of {', '.join(options.rows)} has a {options.schedule} schedule")
    return chosen


@contextmanager
def budget(seconds: float | None) -> Iterator[Callable[[], bool]]:
    """The clock presses Ctrl-C when the time is up, so everything that survives the one survives the other; yields a
    function that says whether the time is up.
    """
    rung = False

    def ring(number: int, frame: FrameType | None) -> None:
        nonlocal rung
        rung = True
        handler = signal.getsignal(signal.SIGINT)  # in a script's background it may be none that one can call
        (handler if callable(handler) else signal.default_int_handler)(signal.SIGINT, frame)

    before = signal.signal(signal.SIGALRM, ring)
    if seconds is not None:
        signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield lambda: rung
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def tell(result: dict[str, Any]) -> None:
    epochs, seconds = trained_for(result)
    say(
        f"  {number(result[result['compared']], result['difference_standard_error'])} nats (paper {result['paper']:g}, "
        f"difference {result['difference']:+.2f}), {epochs} epochs in {seconds}",
    )


def status(options: SimpleNamespace, place: Place) -> dict[str, Any]:
    """Paper, ours, difference, time and state of every row; and how many other seeds and schedules it has."""
    lines: list[dict[str, Any]] = []
    asked = jobs(options)
    width = max(map(len, asked))
    say(f"{'row':<{width}} {'paper':>9} {'ours':>17} {'ours - paper':>12} {'training':>9}  state")
    for name, job in asked.items():
        if job is None:
            progress = "not done" if swept(place.results) is None else "done"
            say(f"{name:<{width}} {'':>9} {'':>17} {'':>12} {'':>9}  {progress}")
            lines.append({"row": name, "state": progress})
            continue
        result, progress = read_result(job.result(place)), state(job, place)
        ours = difference = seconds = ""
        if result is not None:
            ours = number(result[result["compared"]], result["difference_standard_error"])
            difference = number(result["difference"], sign=True)
            seconds = duration(result["seconds"] + sum(leg["seconds"] for leg in result["before"]))
        others = len(list((place.results / "seeds" / job.row.name).glob("*.json"))) if job.main else 0
        text = f"{progress}; {others} more in {place.results / 'seeds' / job.row.name}" if others else progress
        say(f"{name:<{width}} {job.row.paper:>9.2f} {ours:>17} {difference:>12} {seconds:>9}  {text}")
        lines.append({"row": job.row.name, "job": name, "paper": job.row.paper, "state": progress, "result": result})
    return {"rows": lines}


def verify_rows(options: SimpleNamespace, place: Place) -> dict[str, Any]:
    if not options.rows:
        raise MemgenError(f"which row? In the zoo are: {', '.join(models.names()) or 'none yet'}")
    for name in options.rows:
        models.resolve(models.PREFIX + name)
    verified = []
    for name in options.rows:
        result = verify(name, options.limit, choose_device(place.device))
        verified.append(result)
        say(
            f"{name}: {result['log_likelihood']:.3f} nats on {result['examples']:,} examples, "
            f"K = {result['samples']:,}; measured before: {result['expected']:.3f}, "
            f"difference {result['difference']:+.4f}; good",
        )
    return {"verified": verified}


def ship_rows(options: SimpleNamespace, place: Place) -> dict[str, Any]:
    if not options.rows:
        raise MemgenError("which row? python -m reproduction --ship ROW")
    shipped = []
    for name, job in jobs(options).items():
        if job is None:
            raise MemgenError(f"{name} is no row with weights to ship")
        model = ship(job, place)
        shipped.append(model)
        precision = "half" if model["half_precision"] else "full"
        size = f"{model['bytes']:,} bytes, {precision} precision"
        say(f"{model['name']}: {size} ({model['change']:+.4f} nats in half)")
    return {"shipped": shipped}


@click.command(
    cls=Command,
    epilog=examples(
        "python -m reproduction --status",
        "python -m reproduction mnist-mem-vae --budget 150m",
        "python -m reproduction table2 frey",
        "python -m reproduction mnist-vae --schedule paper        3,000 epochs, as in the paper",
        "python -m reproduction frey                              four rows, and their difference over five splits",
        "python -m reproduction --verify mnist-mem-vae --limit 100",
        "OMP_NUM_THREADS=1 python -m reproduction ...             two of these side by side use two cores best",
    ),
)
@click.argument("rows", nargs=-1, metavar="[ROW]...")
@click.option("--budget", type=Duration(), metavar="TIME", help="Stop after this time, as in 150m or 2h.")
@click.option("--seed", type=Whole(0), default=0, help="Of the training (default 0).")
@click.option(
    "--schedule",
    type=click.Choice(all_schedules()),
    help="Of the training (default: that of the row's own result).",
)
@click.option("--splits", is_flag=True, help="Rows of Frey faces: all five splits, as the group frey has them.")
@click.option("--status", is_flag=True, help="Show how far every row is.")
@click.option("--verify", is_flag=True, help="Score shipped weights again, and compare.")
@click.option("--limit", type=Whole(1), metavar="N", help="With --verify: the first 100 or 1000 examples.")
@click.option("--ship", is_flag=True, help="Put the weights of rows into the zoo.")
@click.option(
    "--results",
    type=FILE,
    default=Path("results"),
    metavar="FOLDER",
    help="For numbers and figures (default results).",
)
@click.option(
    "--runs", type=FILE, default=Path("runs/reproduce"), metavar="FOLDER", help="For runs (default runs/reproduce)."
)
@compile_option
@device_option
def command(**options: Any) -> dict[str, Any]:
    """Train, score and analyse the paper's rows again, one after the other.

    ROW is a recipe's name, table1, table2, frey, analysis, slots or all.

    Numbers and figures go to results/, as one JSON file a row and the page REPRODUCTION.md; what is done is not done
    again, and Ctrl-C or the end of the budget lose nothing: the same command goes on.
    """
    return reproduce(SimpleNamespace(**options))


def main(arguments: Sequence[str] | None = None) -> int:
    return run(command, "python -m reproduction", arguments)


if __name__ == "__main__":
    sys.exit(main())
