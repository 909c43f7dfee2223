"""Which settings should be the defaults of the estimators? Test log-likelihood and seconds on the tables for choosing.

    python -m benchmarks.defaults [--methods now,steps-2,...] [--seeds 5] [--keep FILE] [--json FILE] [--markdown FILE]

A cell is one fit of MemDensity with the changed settings of its name (CHOICES), on the splits of benchmarks.density:
the continuous columns, 80% of the rows train and 20% test. With --keep every cell is written when it is done, and the
same command goes on after an interruption, so that hours of trials can be divided at will. `epochs` is the number of
epochs trained, as a fraction of the limit: 1 means that early stopping did not end the training.

Only the tables CHOOSING of benchmarks.tables may be named here: defaults are not chosen on the tables of the reports.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import pandas as pd

from benchmarks.choices import installed_tables, names_of
from benchmarks.density import FLOOR, SPLIT, split
from benchmarks.output import options_for
from benchmarks.reporting import Cell, Metric, Row, Store, collect, finish
from benchmarks.tables import CHOOSING, continuous_columns, load
from memgen import MemDensity
from memgen.recipes.auto import auto_recipe

METRICS = (
    Metric("log_p", "Test log-likelihood, nats per row (higher is better)", higher=True, digits=2, each="rows"),
    Metric("seconds", "Seconds of fit", higher=False, digits=1, contest=False),
    Metric("epochs", "Epochs trained, as a fraction of the limit", higher=False, digits=2, contest=False),
)


def steps(train: pd.DataFrame, factor: float) -> dict[str, Any]:
    """The epochs of `auto`, times a factor."""
    columns = train.shape[1]
    return {"epochs": round(factor * auto_recipe(round(0.9 * len(train)), columns, columns).epochs)}


CHOICES: dict[str, Callable[[pd.DataFrame], dict[str, Any]]] = {
    "now": lambda train: {},
    "steps-half": lambda train: steps(train, 0.5),
    "steps-2": lambda train: steps(train, 2),
    "steps-4": lambda train: steps(train, 4),
    "no-memory": lambda train: {"slots": []},
    "no-memory-steps-2": lambda train: {"slots": [], **steps(train, 2)},
    # A rate that does not fall towards a fixed end lets the validation rows decide when to stop.
    "constant-rate-4": lambda train: {"schedule": "constant", "n_iter_no_change": 20, **steps(train, 4)},
    "low-constant-rate-4": lambda train: {
        "schedule": "constant",
        "rate": 2e-3,
        "n_iter_no_change": 20,
        **steps(train, 4),
    },
}
"""Name -> the changed keywords of MemDensity for these training rows."""


def measure(cell: Cell) -> Row:
    """One fit, scored on the test rows of its split."""
    train, test = split(cell.table, cell.seed)
    settings = CHOICES[cell.method](train)
    density = MemDensity(random_state=cell.seed, sigma_floor=FLOOR, kinds=dict.fromkeys(train, "real"), **settings)
    clock = time.perf_counter()
    density.fit(train)
    seconds = time.perf_counter() - clock
    rows = density.score_samples(test)
    fraction = density.n_iter_ / density.recipe_.epochs
    return {"log_p": float(rows.mean()), "seconds": seconds, "epochs": fraction, "rows": rows.round(6).tolist()}


def main(arguments: list[str] | None = None) -> int:
    options = options_for(__doc__, list(CHOICES), list(CHOICES)).parse_args(arguments)
    tables = installed_tables(options.tables)
    if others := sorted(set(tables) - set(CHOOSING)):
        raise SystemExit(f"--tables {options.tables}: defaults are chosen on {', '.join(CHOOSING)}, not {others[0]}")
    methods = names_of(options.methods, CHOICES, "methods")
    wide = [table for table in tables if len(continuous_columns(load(table).x)) > 1]
    cells = [Cell(table, SPLIT, seed, method) for table in wide for seed in range(options.seeds) for method in methods]
    store = Store(options.keep)
    done = collect(cells, store, measure)
    finish(options, store, cells, METRICS)
    return 0 if done else 130


if __name__ == "__main__":
    sys.exit(main())
