"""What both comparisons on tables print and write, and the options that both have."""

from __future__ import annotations

import argparse
import os
import platform
import sys
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.tables import TABLES


class Sheet(NamedTuple):
    title: str
    header: list[str]
    rows: list[list[str]]


def plain(sheet: Sheet) -> str:
    widths = [max(map(len, column)) for column in zip(sheet.header, *sheet.rows, strict=True)]
    lines = [
        [text.ljust(width) for text, width in zip(line, widths, strict=True)] for line in (sheet.header, *sheet.rows)
    ]
    return "\n".join([f"\n{sheet.title}", *("  ".join(line).rstrip() for line in lines)])


def markdown(sheet: Sheet) -> str:
    """The best of a line is bold."""
    rows = [
        [f"**{text[:-1]}**" if text.endswith("*") else text.replace("|", "/") for text in line] for line in sheet.rows
    ]
    lines = [f"| {' | '.join(line)} |" for line in (sheet.header, ["---"] * len(sheet.header), *rows)]
    return "\n".join([f"### {sheet.title}\n", *lines, ""])


def surroundings() -> dict[str, Any]:
    """What the numbers depend on beside the code."""
    packages = (
        "memgen-torch",
        "scikit-learn",
        "numpy",
        "pandas",
        *sorted({table.package for table in TABLES.values()}),
    )
    versions = {}
    for name in dict.fromkeys(packages):
        try:
            versions[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            versions[name] = "absent"
    threads = os.environ.get("OMP_NUM_THREADS", "not set")
    command = [Path(sys.argv[0]).name, *sys.argv[1:]]
    return {"command": command, "python": platform.python_version(), "OMP_NUM_THREADS": threads, "versions": versions}


def options_for(description: str | None, methods: Sequence[str], usual: Sequence[str]) -> argparse.ArgumentParser:
    """The options that both comparisons have; the usual methods are run when none are named."""
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tables", default="choosing", help="choosing, reporting, or names with commas between them")
    parser.add_argument("--methods", default=",".join(usual), help=f"of {', '.join(methods)}")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--keep", type=Path, help="file of results, one per line; a run with the same file goes on")
    parser.add_argument("--json", type=Path, help="write all numbers here")
    parser.add_argument("--markdown", type=Path, help="write the tables here")
    return parser
