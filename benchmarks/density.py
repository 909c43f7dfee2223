"""Test log-likelihood of real tables: memgen beside a Gaussian, mixtures of Gaussians and kernel density estimates.

    python -m benchmarks.density --tables choosing [--methods gauss,mixture,kernel,memgen] [--seeds 5] [--keep FILE]
                                 [--json FILE] [--markdown FILE]

The continuous columns (numbers with more than 20 distinct values) of every table with at least two of them; 80 % of the
rows train, 20 % test, five seeded splits, the same for all methods. Nats per row in the table's own units, higher is
better; ± is the standard error over the test rows, averaged over the splits.

One floor on the scale for all, 0.01 of each column's standard deviation in the training rows, because a density on
rounded numbers can be made as large as one likes by ever narrower peaks:

- gauss: GaussianMixture with one component, full covariance, 0.01² added to its diagonal.
- mixture: GaussianMixture, full covariance, the same floor, one to ten components by BIC.
- kernel: KernelDensity, Gaussian, bandwidth by five-fold cross-validation out of 26 from 0.01 to 3.16, log-spaced.
- memgen: MemDensity with every column of kind real, sigma_floor 0.01.

scikit-learn's get columns standardised by the training rows, and the logarithm of the Jacobian is added back.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import warnings
from collections.abc import Callable

import numpy as np
import pandas as pd
from sklearn.exceptions import ConvergenceWarning
from sklearn.mixture import GaussianMixture
from sklearn.model_selection import GridSearchCV
from sklearn.neighbors import KernelDensity

from benchmarks.choices import installed_methods, installed_tables
from benchmarks.output import options_for
from benchmarks.reporting import (
    Cell,
    Metric,
    Row,
    Store,
    collect,
    finish,
)
from benchmarks.tables import continuous_columns, load

MODULE = "memgen.estimators.table"
FLOOR = 0.01
COMPONENTS = range(1, 11)
BANDWIDTHS = np.logspace(np.log10(FLOOR), 0.5, 26)
SPLIT = "80/20"
METRICS = (
    Metric("log_p", "Test log-likelihood, nats per row (higher is better)", higher=True, digits=2, each="rows"),
    Metric("seconds", "Seconds of fit and score", higher=False, digits=2, contest=False),
)


def split(table: str, seed: int) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Training and test rows of the continuous columns, in random order."""
    x = load(table).x
    rows = np.random.default_rng(seed).permutation(len(x))
    x = x[continuous_columns(x)].iloc[rows].reset_index(drop=True)
    many = round(0.8 * len(x))
    return x[:many], x[many:]


Density = Callable[[np.ndarray, np.ndarray, int], np.ndarray]
"""Standardised training rows, standardised test rows, seed -> log-density of the test rows."""


def fitted(components: int, train: np.ndarray, seed: int) -> GaussianMixture:
    return GaussianMixture(components, reg_covar=FLOOR**2, random_state=seed, max_iter=200).fit(train)


def gauss(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    return np.asarray(fitted(1, train, seed).score_samples(test))


def mixture(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    models = [fitted(components, train, seed) for components in COMPONENTS if components <= len(train)]
    return np.asarray(min(models, key=lambda model: float(model.bic(train))).score_samples(test))


def kernel(train: np.ndarray, test: np.ndarray, seed: int) -> np.ndarray:
    search = GridSearchCV(KernelDensity(), {"bandwidth": BANDWIDTHS}, cv=5).fit(train)
    return np.asarray(search.best_estimator_.score_samples(test))


def standardised(density: Density, train: pd.DataFrame, test: pd.DataFrame, seed: int) -> np.ndarray:
    """log p(x) = log p((x - m) / s) - Σ log s."""
    centre, scale = train.mean(), train.std(ddof=0)
    inside = density(((train - centre) / scale).to_numpy(), ((test - centre) / scale).to_numpy(), seed)
    return np.asarray(inside - np.log(scale).sum())


def memgen(train: pd.DataFrame, test: pd.DataFrame, seed: int) -> np.ndarray:
    density = importlib.import_module(MODULE).MemDensity(
        random_state=seed, sigma_floor=FLOOR, kinds=dict.fromkeys(train, "real")
    )
    return np.asarray(density.fit(train).score_samples(test))


METHODS: dict[str, Callable[[pd.DataFrame, pd.DataFrame, int], np.ndarray]] = {
    "gauss": lambda train, test, seed: standardised(gauss, train, test, seed),
    "mixture": lambda train, test, seed: standardised(mixture, train, test, seed),
    "kernel": lambda train, test, seed: standardised(kernel, train, test, seed),
    "memgen": memgen,
}


def measure(cell: Cell) -> Row:
    """The log-densities of the test rows of one split, by one method."""
    train, test = split(cell.table, cell.seed)
    clock = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # BIC still chooses among what was found
        rows = METHODS[cell.method](train, test, cell.seed)
    seconds = time.perf_counter() - clock
    if not np.isfinite(rows).all():
        raise ValueError(f"{int((~np.isfinite(rows)).sum())} test rows have no finite log-density")
    return {"log_p": float(rows.mean()), "seconds": seconds, "columns": train.shape[1], "rows": rows.round(6).tolist()}


def main(arguments: list[str] | None = None) -> int:
    options: argparse.Namespace = options_for(__doc__, list(METHODS), list(METHODS)).parse_args(arguments)
    methods = installed_methods(options.methods, METHODS, MODULE)
    wide = [table for table in installed_tables(options.tables) if len(continuous_columns(load(table).x)) > 1]
    cells = [Cell(table, SPLIT, seed, method) for table in wide for seed in range(options.seeds) for method in methods]
    store = Store(options.keep)
    done = collect(cells, store, measure)
    finish(options, store, cells, METRICS)
    return 0 if done else 130


if __name__ == "__main__":
    sys.exit(main())
