"""How fast memgen is on this machine: `python -m benchmarks.speed`."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import click

from benchmarks.speed.evaluation import evaluation_section
from benchmarks.speed.growth import growth_section
from benchmarks.speed.limit import Fastest, limit_section, settled
from benchmarks.speed.machine import apart, describe, stolen, ticks
from benchmarks.speed.record import QUICK, Record, Scale
from benchmarks.speed.rows import Rows, rows
from benchmarks.speed.startup import startup_section
from benchmarks.speed.steps import steps_section
from benchmarks.speed.table import table
from memgen.cli.command import Command, examples, run, say
from memgen.cli.options import FILE, Whole
from memgen.cli.output import check_output
from memgen.data.output import write_atomically
from memgen.errors import MemgenError, unknown

SECTIONS = ("steps", "evaluation", "limit", "growth", "startup")
"""In the order in which they run: the limit comes after those that have measured it between their rows."""


def bench(options: SimpleNamespace) -> dict[str, Any]:
    chosen = sections(options.only)
    check_output(options.output, ".json")
    about = describe()
    say(f"{about['cpu']}, {about['vectors']}, {about['cores']} cores, {about['threads']} threads")
    say(f"Python {about['python']}, torch {about['torch']}, memgen {about['memgen']}")
    given = rows()
    say(f"rows: {given.what}")
    fastest = Fastest()
    measures = _sections(_scale(options), given, fastest)
    records: list[Record] = []
    before, about["apart"] = ticks(), [apart()]
    for name in chosen:
        records = settled([*records, *measures[name]()], fastest)
        about["stolen"] = stolen(before, ticks())
        about["apart"].append(apart())
        result = {"machine": about, "rows": given.what, "records": [record.to_dict() for record in records]}
        if options.output is not None:  # after every section: a later one may fail
            write_atomically(options.output, json.dumps(result, indent=1, allow_nan=False).encode() + b"\n")
    for name in chosen:  # not before all are there: they share the limit
        say(f"\n{table([record for record in records if record.section == name])}")
    if about["stolen"] is not None:
        say(f"\nthe host took {about['stolen']:.1%} of this machine's time meanwhile")
    if None not in about["apart"]:
        nanoseconds = ", ".join(f"{1e9 * seconds:.0f}" for seconds in about["apart"])
        say(f"what a thread wrote another saw after {nanoseconds} ns, before and after each section")
    return result


def sections(text: str | None) -> list[str]:
    """The sections that a list with commas names, in their own order; all where nothing is said.

    >>> sections("startup,limit")
    ['limit', 'startup']
    """
    if text is None:
        return list(SECTIONS)
    names = [name.strip() for name in text.split(",") if name.strip()]
    if not names:
        raise MemgenError(f"--only names no section. Choices: {', '.join(SECTIONS)}")
    for name in names:
        if name not in SECTIONS:
            raise unknown("section", name, SECTIONS)
    return [name for name in SECTIONS if name in names]


def _scale(options: SimpleNamespace) -> Scale:
    scale = QUICK if options.quick else Scale()
    n = options.repeats
    return scale if n is None else replace(scale, repeats=n, child_repeats=n, commands=n)


def _sections(scale: Scale, given: Rows, fastest: Fastest) -> dict[str, Callable[[], list[Record]]]:
    """name -> what measures it."""
    return {
        "steps": lambda: steps_section(scale, fastest, given.train, _tell),
        "evaluation": lambda: evaluation_section(scale, fastest, given, _tell),
        "limit": lambda: limit_section(scale, fastest),
        "growth": lambda: growth_section(scale, _tell),
        "startup": lambda: startup_section(scale, _tell),
    }


def _tell(text: str) -> None:
    """What is going on, for those who wait."""
    print(text, file=sys.stderr, flush=True)


@click.command(
    cls=Command,
    epilog=examples(
        "python -m benchmarks.speed --quick",
        "python -m benchmarks.speed --only steps,limit -o speed.json",
        "OMP_NUM_THREADS=1 python -m benchmarks.speed",
    ),
)
@click.option("--only", metavar="SECTIONS", help="steps, evaluation, limit, growth, startup; with commas.")
@click.option("--repeats", type=Whole(1), metavar="N", help="How often everything is measured.")
@click.option("--quick", is_flag=True, help="Smaller and less exact: about a minute.")
@click.option("-o", "output", type=FILE, metavar="FILE.json", help="Write all numbers there.")
def command(**options: Any) -> dict[str, Any]:
    """Measure how fast memgen is on this machine.

    \b
    steps       a training step beside a plain loop, beside pythae (pip install '.[bench]')
                and beside the least time that its matrix products need
    evaluation  log p(x) of an image with 5,000 samples, beside the same
    limit       that least time itself, product by product
    growth      time and memory against slots, width, K and batch
    startup     the time before anything happens
    """
    return bench(SimpleNamespace(**options))


def main(arguments: Sequence[str] | None = None) -> int:
    return run(command, "python -m benchmarks.speed", arguments)


if __name__ == "__main__":
    sys.exit(main())
