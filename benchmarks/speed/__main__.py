"""How fast memgen is on this machine: `python -m benchmarks.speed`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.speed.evaluation import evaluation_section
from benchmarks.speed.growth import growth_section
from benchmarks.speed.limit import Fastest, limit_section, settled
from benchmarks.speed.machine import apart, describe, stolen, ticks
from benchmarks.speed.record import QUICK, Record, Scale
from benchmarks.speed.rows import Rows, rows
from benchmarks.speed.startup import startup_section
from benchmarks.speed.steps import steps_section
from benchmarks.speed.table import table
from memgen.data.output import write_atomically
from memgen.errors import MemgenError, unknown
from memgen.runs.finite import finite

SECTIONS = ("steps", "evaluation", "limit", "growth", "startup")
"""In the order in which they run: the limit comes after those that have measured it between their rows."""


def bench(options: argparse.Namespace) -> dict[str, Any]:
    chosen = sections(options.only)
    check_output(options.output)
    about = describe()
    say(options, f"{about['cpu']}, {about['vectors']}, {about['cores']} cores, {about['threads']} threads")
    say(options, f"Python {about['python']}, torch {about['torch']}, memgen {about['memgen']}")
    given = rows()
    say(options, f"rows: {given.what}")
    fastest = Fastest()
    run = _sections(_scale(options), given, fastest)
    records: list[Record] = []
    before, about["apart"] = ticks(), [apart()]
    for name in chosen:
        records = settled([*records, *run[name]()], fastest)
        about["stolen"] = stolen(before, ticks())
        about["apart"].append(apart())
        result = {"machine": about, "rows": given.what, "records": [record.to_dict() for record in records]}
        if options.output is not None:  # after every section: a later one may fail
            write_atomically(options.output, json.dumps(result, indent=1, allow_nan=False).encode() + b"\n")
    for name in chosen:  # not before all are there: they share the limit
        say(options, f"\n{table([record for record in records if record.section == name])}")
    if about["stolen"] is not None:
        say(options, f"\nthe host took {about['stolen']:.1%} of this machine's time meanwhile")
    if None not in about["apart"]:
        found = ", ".join(f"{1e9 * seconds:.0f}" for seconds in about["apart"])
        say(options, f"what a thread wrote another saw after {found} ns, before and after each section")
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


def _scale(options: argparse.Namespace) -> Scale:
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


def say(options: argparse.Namespace, text: str) -> None:
    """A line for people: on stdout, or with --json on stderr."""
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def check_output(path: Path | None) -> None:
    """Before minutes of work."""
    if path is not None and path.suffix != ".json":
        raise MemgenError(f"{path}: give it a name that ends in .json")
    if path is not None and not path.parent.is_dir():
        raise MemgenError(f"there is no folder {path.parent} to write {path.name} into")


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line."""

    def error(self, message: str) -> NoReturn:
        raise MemgenError(message)


ABOUT = """Measure how fast memgen is on this machine.

steps       a training step beside a loop written by hand, beside pythae (pip install 'memgen[bench]')
            and beside the least time that its matrix products need
evaluation  log p(x) of an image with 5,000 samples, beside the same
limit       that least time itself, product by product
growth      time and memory against slots, width, K and batch
startup     the time before anything happens

examples:
  python -m benchmarks.speed --quick
  python -m benchmarks.speed --only steps,limit -o speed.json
  OMP_NUM_THREADS=1 python -m benchmarks.speed"""


def parser() -> Parser:
    command = Parser(
        "python -m benchmarks.speed", description=ABOUT, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    command.add_argument("--only", metavar="SECTIONS", help="steps, evaluation, limit, growth, startup; with commas")
    command.add_argument("--repeats", type=_repeats, metavar="N", help="how often everything is measured")
    command.add_argument("--quick", action="store_true", help="smaller and less exact: about a minute")
    command.add_argument("-o", dest="output", type=Path, metavar="FILE.json", help="write all numbers there")
    command.add_argument("--json", action="store_true", help="print one JSON object, everything else on stderr")
    return command


def _repeats(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, not {text}")
    return int(text)


def main(arguments: Sequence[str] | None = None) -> int:
    try:
        options = parser().parse_args(arguments)
        result = bench(options)
    except MemgenError as error:
        print(f"python -m benchmarks.speed: {error}", file=sys.stderr)
        return 2
    if options.json:
        print(json.dumps(finite(result), allow_nan=False))
    return 0


if __name__ == "__main__":
    sys.exit(main())
