"""What the comparisons on real tables share: options, results that are kept, errors, ranks, wins and losses, output.

A cell is (table, setting, seed, method); its row has the measured numbers. Rows are appended to the file of `--keep` as
they come, and a run with the same file goes on where the last one stopped; use a new file after a change of a method.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from scipy.stats import rankdata
from scipy.stats import t as student

from benchmarks.choices import OURS
from benchmarks.output import Sheet, markdown, plain, surroundings
from benchmarks.tables import TABLES

OUTCOMES = ("better", "worse", "within error", "no value")
LEVEL = 0.95
"""A difference counts as a win when its confidence interval (Student's t) of this level does not hold 0."""

Row = dict[str, Any]
Runs = dict[str, list[np.ndarray]]
"""method -> one array per seed, in the same order for all: the rows of a test set, or a single number."""


class Metric(NamedTuple):
    name: str
    title: str
    higher: bool
    digits: int
    each: str | None = None
    """Where a row keeps one value per test row; the error is then over these, otherwise over the seeds."""
    contest: bool = True
    """Whether wins and losses are counted."""


class Cell(NamedTuple):
    table: str
    setting: str
    seed: int
    method: str


class Estimate(NamedTuple):
    mean: float
    error: float
    values: int
    """How many values the error is over."""


class Verdict(NamedTuple):
    table: str
    setting: str
    metric: str
    peer: str
    difference: float
    error: float
    outcome: str


class Store:
    """Rows by their cell, appended to a file, if there is one, as soon as they are known."""

    def __init__(self, path: Path | None) -> None:
        self.path = path
        self.rows: dict[Cell, Row] = {}
        lines = path.read_text().splitlines() if path and path.is_file() else []
        for line in lines:
            try:
                row = json.loads(line)
            except json.JSONDecodeError:  # the last line of a run that was killed while writing
                continue
            self.rows[cell_of(row)] = row

    def done(self, cell: Cell) -> bool:
        """Failures are tried again."""
        return cell in self.rows and "failure" not in self.rows[cell]

    def add(self, cell: Cell, numbers: Row) -> None:
        self.rows[cell] = {**cell._asdict(), **numbers}
        if self.path:
            # A line break first as well: what a killed run left of its last line stays alone.
            with self.path.open("a") as file:
                file.write("\n" + json.dumps(self.rows[cell]) + "\n")


def cell_of(row: Row) -> Cell:
    return Cell(row["table"], row["setting"], row["seed"], row["method"])


def collect(cells: Sequence[Cell], store: Store, measure: Callable[[Cell], Row]) -> bool:
    """Measure every cell that is not kept yet, with a line each; False after Ctrl-C, with what was measured kept."""
    missing = [cell for cell in cells if not store.done(cell)]
    print(f"{len(cells)} cells, {len(cells) - len(missing)} of them kept from before", flush=True)
    try:
        for i, cell in enumerate(missing, 1):
            clock = time.perf_counter()
            try:
                numbers = measure(cell)
            except Exception as error:  # one method that fails on one table must not end the run
                numbers = {"failure": f"{type(error).__name__}: {error}"}
            store.add(cell, numbers)
            text = numbers.get("failure") or short(numbers)
            print(
                f"{i}/{len(missing)} {' '.join(map(str, cell))}: {text} [{time.perf_counter() - clock:.1f} s]",
                flush=True,
            )
    except KeyboardInterrupt:
        print("interrupted; what was measured is kept" if store.path else "interrupted", flush=True)
        return False
    return True


def short(numbers: Row) -> str:
    return ", ".join(f"{name} {value:.4g}" for name, value in numbers.items() if isinstance(value, float))


def estimate(runs: Sequence[np.ndarray]) -> Estimate:
    """Mean over seeds and its standard error: over seeds, or, with many rows per seed, over rows, averaged over seeds.

    The test sets of several splits overlap, so that averaging them does not make the error smaller here.
    """
    mean = float(np.mean([run.mean() for run in runs]))
    if max(map(len, runs)) > 1:
        errors = [run.std(ddof=1) / math.sqrt(len(run)) for run in runs]
        return Estimate(mean, float(np.mean(errors)), min(map(len, runs)))
    values = np.concatenate(list(runs))
    error = float(values.std(ddof=1)) / math.sqrt(len(values)) if len(values) > 1 else math.nan
    return Estimate(mean, error, len(values))


def gather(rows: Iterable[Row], metric: Metric) -> dict[tuple[str, str], Runs]:
    """(table, setting) -> the runs for this metric of every method that has all seeds which any method has there."""
    by_seed: dict[tuple[str, str], dict[str, dict[int, np.ndarray]]] = {}
    for row in rows:
        value = row.get(metric.each or metric.name)
        if value is not None:
            runs = by_seed.setdefault((row["table"], row["setting"]), {}).setdefault(row["method"], {})
            runs[int(row["seed"])] = np.atleast_1d(np.asarray(value, dtype=np.float64))
    gathered: dict[tuple[str, str], Runs] = {}
    for key, methods in by_seed.items():
        seeds = sorted({seed for runs in methods.values() for seed in runs})
        gathered[key] = {m: [runs[seed] for seed in seeds] for m, runs in methods.items() if len(runs) == len(seeds)}
    return gathered


def in_order(cells: Iterable[tuple[str, str]], settings: Sequence[str]) -> list[tuple[str, str]]:
    names = list(TABLES)
    return sorted(cells, key=lambda key: (names.index(key[0]), settings.index(key[1])))


def best(runs: Runs, metric: Metric) -> str:
    return max(runs, key=lambda method: estimate(runs[method]).mean * (1 if metric.higher else -1))


def verdict(key: tuple[str, str], runs: Runs, metric: Metric) -> Verdict:
    """memgen minus the best of the others, paired by seed (and by test row)."""
    peers = {method: values for method, values in runs.items() if method != OURS}
    if OURS not in runs or not peers:
        return Verdict(*key, metric.name, "", math.nan, math.nan, OUTCOMES[3])
    peer = best(peers, metric)
    pairs = zip(runs[OURS], peers[peer], strict=True)
    mean, error, many = estimate([ours - theirs for ours, theirs in pairs])
    # Never for a single seed, whose error is not known.
    decided = many > 1 and abs(mean) > student.ppf((1 + LEVEL) / 2, many - 1) * error
    outcome = OUTCOMES[int((mean > 0) != metric.higher) if decided else 2]
    return Verdict(*key, metric.name, peer, mean, error, outcome)


def verdicts(rows: Sequence[Row], metrics: Sequence[Metric], settings: Sequence[str]) -> list[Verdict]:
    """One per metric, table and setting, if memgen and another method took part."""
    methods = {row["method"] for row in rows}
    if OURS not in methods or len(methods) == 1:
        return []
    judged = []
    for metric in (metric for metric in metrics if metric.contest):
        cells = gather(rows, metric)
        judged += [verdict(key, cells[key], metric) for key in in_order(cells, settings)]
    return judged


def ranks(runs: Runs, methods: Sequence[str], metric: Metric) -> list[float]:
    """1 is best, ties share, a method without a value is last."""
    sign = -1 if metric.higher else 1
    return list(map(float, rankdata([sign * estimate(runs[m]).mean if m in runs else math.inf for m in methods])))


def form(value: Estimate, digits: int) -> str:
    return f"{value.mean:.{digits}f}" + ("" if math.isnan(value.error) else f" ± {value.error:.{digits}f}")


def result_sheet(rows: Sequence[Row], metric: Metric, methods: Sequence[str], settings: Sequence[str]) -> Sheet:
    """One line per table and setting, one column per method, the best marked; then memgen minus the best other."""
    cells = gather(rows, metric)
    contest = metric.contest and OURS in methods and len(methods) > 1
    lines = []
    for key in in_order(cells, settings):
        runs = cells[key]
        first = best(runs, metric)
        line = [form(estimate(runs[m]), metric.digits) + "*" * (m == first) if m in runs else "-" for m in methods]
        if contest:
            one = verdict(key, runs, metric)
            line.append(f"{one.difference:+.{metric.digits}f} ± {one.error:.{metric.digits}f} {one.outcome}")
        lines.append([*key, *line])
    header = ["table", "setting", *methods, *[f"{OURS} minus the best other"] * contest]
    return Sheet(metric.title, header, lines)


def average_sheets(
    rows: Sequence[Row], metrics: Sequence[Metric], methods: Sequence[str], settings: Sequence[str]
) -> list[Sheet]:
    """Averages over the tables where every method has a value, and average ranks over all tables."""
    means, orders = [], []
    for metric in metrics:
        cells = gather(rows, metric)
        for setting in settings:
            here = [runs for key, runs in cells.items() if key[1] == setting]
            full = [runs for runs in here if set(runs) == set(methods)]
            if full:
                columns = [np.mean([estimate(runs[m]).mean for runs in full]) for m in methods]
                means.append(
                    [metric.name, setting, str(len(full)), *[f"{value:.{metric.digits}f}" for value in columns]]
                )
            if here:
                table = np.mean([ranks(runs, methods, metric) for runs in here], axis=0)
                orders.append([metric.name, setting, str(len(here)), *[f"{value:.2f}" for value in table]])
    header = ["metric", "setting", "tables", *methods]
    return [Sheet("Averages over tables", header, means), Sheet("Average ranks (1 is best)", header, orders)]


def contest_sheet(judged: Sequence[Verdict], metrics: Sequence[Metric], settings: Sequence[str]) -> Sheet:
    """How often memgen was better, worse, or within error of the best other method of the cell, or failed."""
    lines = []
    for metric in metrics:
        for setting in (*settings, "all"):
            mine = [one.outcome for one in judged if one.metric == metric.name and setting in (one.setting, "all")]
            if mine:
                lines.append([metric.name, setting, *[str(mine.count(outcome)) for outcome in OUTCOMES]])
    title = f"{OURS} against the best other method of each cell ({LEVEL:.0%} interval of the paired difference)"
    return Sheet(title, ["metric", "setting", *OUTCOMES], lines)


def sheets(
    rows: Sequence[Row], metrics: Sequence[Metric], methods: Sequence[str], settings: Sequence[str]
) -> list[Sheet]:
    good = [row for row in rows if "failure" not in row]
    present = [method for method in methods if any(row["method"] == method for row in good)]
    contest = contest_sheet(verdicts(good, metrics, settings), metrics, settings)
    results = [result_sheet(good, metric, present, settings) for metric in metrics]
    failed = [[*map(str, cell_of(row)), row["failure"]] for row in rows if "failure" in row]
    failures = Sheet("Failures", [*Cell._fields, "error"], failed)
    return [s for s in (*results, *average_sheets(good, metrics, present, settings), contest, failures) if s.rows]


def finish(options: argparse.Namespace, store: Store, cells: Sequence[Cell], metrics: Sequence[Metric]) -> None:
    """Print the sheets, and write what was asked for."""
    rows = [store.rows[cell] for cell in cells if cell in store.rows]
    methods = list(dict.fromkeys(cell.method for cell in cells))
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    made = sheets(rows, metrics, methods, settings)
    print("\n".join(plain(sheet) for sheet in made))
    if options.markdown:
        options.markdown.write_text("\n".join(markdown(sheet) for sheet in made))
    if options.json:
        each = {metric.each for metric in metrics}
        numbers = [{name: value for name, value in row.items() if name not in each} for row in rows]
        judged = [one._asdict() for one in verdicts([r for r in rows if "failure" not in r], metrics, settings)]
        known = [{name: value if value == value else None for name, value in one.items()} for one in judged]  # no NaN
        options.json.write_text(json.dumps({**surroundings(), "rows": numbers, "verdicts": known}, indent=1))
