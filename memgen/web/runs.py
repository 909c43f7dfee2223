"""Runs in a folder: their curves and settings, as they are now. A request names a run by its number only."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from memgen.errors import MemgenError
from memgen.runs.finite import finite
from memgen.runs.run import METRICS, RECIPE, Run

MOST_RUNS = 100
MOST_POINTS = 2000
"""Largest number of epochs of a curve that is sent. Longer curves are thinned out evenly."""
REPORT = "report.html"
LARGEST_REPORT = 64_000_000


@dataclass
class Runs:
    """Run folders: those that were named, and those inside a folder, which is searched again at every call."""

    named: tuple[Path, ...] = ()
    inside: Path | None = None
    order: list[Path] = field(default_factory=list)
    """All runs seen so far. The number of a run is its index in this list."""

    def look(self) -> list[Path]:
        for path in self._run_folders():
            if path not in self.order and len(self.order) < MOST_RUNS:
                self.order.append(path)
        return self.order

    def _run_folders(self) -> Iterator[Path]:
        yield from (path for path in self.named if (path / RECIPE).is_file())
        if self.inside is not None and self.inside.is_dir():
            yield from sorted(path.parent for path in self.inside.glob(f"*/{RECIPE}"))

    def stamps(self) -> list[tuple[float, int]]:
        """Time and size of the metrics of every run, which change when its training goes on."""
        return [_stamp(path / METRICS) for path in self.look()]

    def describe(self, number: int) -> dict[str, Any]:
        """Name, settings, curves."""
        path = self.order[number]
        about: dict[str, Any] = {"number": number, "name": path.absolute().name, "error": None}
        try:
            run = Run.open(path)
            lines = run.metrics()
            recipe = run.recipe.to_dict()
        except (MemgenError, OSError) as error:
            return about | {"error": str(error).replace(str(path), path.name), "settings": {}, "epochs": []}
        about["settings"] = flat(recipe)
        about["epochs"] = finite(thinned(lines))
        return about | {"report": (path / REPORT).is_file(), "about": str(recipe.get("about", ""))}

    def report(self, number: int) -> bytes:
        if not 0 <= number < len(self.order) or not (path := self.order[number] / REPORT).is_file():
            raise MemgenError("this run has no report; make one with memgen report RUN -o RUN/report.html")
        if path.stat().st_size > LARGEST_REPORT:
            raise MemgenError("this report is too large for the page; open it from its folder")
        return path.read_bytes()


def flat(recipe: dict[str, Any]) -> dict[str, Any]:
    """The settings of all sections by dotted names. Of the path of the user's data only the last part is kept.

    >>> flat({"about": "a", "data": {"name": "/home/me/x.csv"}, "stage": [{"epochs": 3}]})
    {'data.name': 'x.csv', 'stage': [{'epochs': 3}]}
    """
    settings: dict[str, Any] = {}
    for section, table in recipe.items():
        entries = {f"{section}.{key}": value for key, value in table.items()} if isinstance(table, dict) else {}
        settings |= entries if isinstance(table, dict) or section == "about" else {section: table}
    return settings | ({"data.name": Path(settings["data.name"]).name} if "data.name" in settings else {})


def _stamp(path: Path) -> tuple[float, int]:
    try:
        status = path.stat()
    except OSError:
        return 0.0, 0
    return status.st_mtime, status.st_size


def thinned(lines: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """At most `MOST_POINTS` lines, evenly spaced, with the last one included.

    >>> len(thinned([{"epoch": i} for i in range(5000)])), thinned([{"epoch": i} for i in range(5000)])[-1]
    (2000, {'epoch': 4999})
    """
    n = len(lines)
    if n <= MOST_POINTS:
        return lines
    return [lines[round(i * (n - 1) / (MOST_POINTS - 1))] for i in range(MOST_POINTS)]
