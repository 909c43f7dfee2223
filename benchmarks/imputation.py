"""Missing cells of real tables: memgen beside scikit-learn's imputers, under the same masks.

    python -m benchmarks.imputation --tables choosing [--methods mean,knn,ridge,trees,memgen] [--mechanisms mcar30]
                                    [--seeds 5] [--keep FILE] [--json FILE] [--markdown FILE]

An imputer is fitted to the incomplete table and completes it; the target is no column of it. Mechanisms:

- mcar10, mcar30, mcar50: every cell is missing with that probability, independently of everything.
- mnar30: cells hide themselves. High cells (numbers: above the column's median, or not below it if nothing is above;
  categorical: a random half of the levels, rounded down, at least one) are missing five times as often as low ones,
  with the two probabilities chosen so that 30 % of the column is missing: low 0.3 / (1 + 4f) where f is the fraction of
  high cells. Where the high ones would need more than 0.9, they get 0.9 and the low ones the rest.

Then a random cell comes back in every row and column that would have none left.

Methods: `mean` (the mode for a categorical column); `knn` (KNNImputer, five neighbours); `ridge` and `trees`
(IterativeImputer, ten rounds, with BayesianRidge or ten ExtraTrees); `memgen` (MemImputer). scikit-learn's get
standardised numbers and one indicator per level, and the largest indicator is the answer. For `ridge` and `trees` the
last level has no indicator and is what the others leave of 1: with all of them, each is one minus the rest, the rounds
never leave the values they start from, and nearly every level they give is the mode. `ridge-full` and `trees-full`,
only when asked for, have all of them: worse for levels, now and then better for numbers, because then a missing level
cannot drift with the rounds. All with their defaults otherwise.

Metrics: nrmse, the root mean square over all missing numeric cells of (imputed - true) / (the column's standard
deviation in the complete table); accuracy on the missing categorical cells; classifier, the accuracy of a logistic
regression (standardised numbers, indicators) that predicts the target from the completed table, in five stratified
folds that all methods share; seconds of fit and transform. ± is the standard error over seeds. A seed makes the masks,
the folds and the randomness of the method.
"""

from __future__ import annotations

import argparse
import importlib
import sys
import time
import warnings
import zlib
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_numeric_dtype
from sklearn.ensemble import ExtraTreesRegressor
from sklearn.exceptions import ConvergenceWarning
from sklearn.experimental import enable_iterative_imputer  # noqa: F401
from sklearn.impute import IterativeImputer, KNNImputer
from sklearn.linear_model import BayesianRidge, LogisticRegression
from sklearn.model_selection import StratifiedKFold, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from benchmarks.choices import installed_methods, installed_tables, names_of
from benchmarks.output import options_for
from benchmarks.reporting import (
    Cell,
    Metric,
    Row,
    Store,
    collect,
    finish,
)
from benchmarks.tables import categorical_columns, load, numeric_columns

MODULE = "memgen.estimators.table"
RATIO, RATE, MOST = 5.0, 0.3, 0.9
METRICS = (
    Metric("nrmse", "Normalised RMSE of missing numbers (lower is better)", higher=False, digits=3),
    Metric("accuracy", "Accuracy on missing categorical cells (higher is better)", higher=True, digits=3),
    Metric("classifier", "Accuracy of a classifier on the completed table (higher is better)", higher=True, digits=3),
    Metric("seconds", "Seconds of fit and transform", higher=False, digits=2, contest=False),
)


def mcar(rate: float, x: pd.DataFrame, rng: np.random.Generator) -> np.ndarray:
    return np.asarray(rng.random(x.shape) < rate)


def mnar(x: pd.DataFrame, rng: np.random.Generator) -> np.ndarray:
    """Cells hide themselves; see the text above."""
    high = np.column_stack([high_cells(x[name], rng) for name in x])
    low_rate, high_rate = np.vectorize(rates)(high.mean(0))
    return np.asarray(rng.random(x.shape) < np.where(high, high_rate, low_rate))


def high_cells(column: pd.Series, rng: np.random.Generator) -> np.ndarray:
    if not is_numeric_dtype(column):
        levels = np.unique(column.astype(str))
        return np.asarray(column.isin(rng.choice(levels, max(1, len(levels) // 2), replace=False)))
    above = np.asarray(column > column.median())
    return above if above.any() else np.asarray(column >= column.median())


def rates(fraction: float) -> tuple[float, float]:
    """Probabilities to be missing of low and high cells, which make RATE together."""
    low = RATE / (1 + (RATIO - 1) * fraction)
    return (low, RATIO * low) if RATIO * low <= MOST else ((RATE - MOST * fraction) / (1 - fraction), MOST)


MECHANISMS: dict[str, Callable[[pd.DataFrame, np.random.Generator], np.ndarray]] = {
    "mcar10": lambda x, rng: mcar(0.1, x, rng),
    "mcar30": lambda x, rng: mcar(0.3, x, rng),
    "mcar50": lambda x, rng: mcar(0.5, x, rng),
    "mnar30": mnar,
}


def keep_one(missing: np.ndarray, rng: np.random.Generator) -> np.ndarray:
    """A random cell comes back in every row, and then in every column, that has none left."""
    kept = missing.copy()
    for view in (kept, kept.T):
        for i in np.flatnonzero(view.all(1)):
            view[i, rng.integers(view.shape[1])] = False
    return kept


def missing_cells(table: str, mechanism: str, seed: int) -> np.ndarray:
    """The same for every method: a function of its arguments."""
    rng = np.random.default_rng([seed, zlib.crc32(f"{table} {mechanism}".encode())])
    return keep_one(MECHANISMS[mechanism](load(table).x, rng), rng)


class Encoder(NamedTuple):
    """Standardised numbers and one indicator per level, there and back; a missing cell is NaN in all of its columns."""

    centre: pd.Series
    scale: pd.Series
    levels: dict[str, np.ndarray]
    left_out: int
    """1: the last level has no indicator of its own."""

    @classmethod
    def of(cls, x: pd.DataFrame, left_out: int = 0) -> Encoder:
        """What is observed of a table says what is standard, and which levels there are."""
        numbers = x[numeric_columns(x)]
        levels = {name: np.unique(x[name].dropna().astype(str)) for name in categorical_columns(x)}
        return cls(numbers.mean(), numbers.std(ddof=0).replace(0, 1), levels, left_out)

    def encode(self, x: pd.DataFrame) -> np.ndarray:
        parts = [((x[self.centre.index] - self.centre) / self.scale).to_numpy(dtype=np.float64)]
        for name, levels in self.levels.items():
            shown = levels[: len(levels) - self.left_out]
            indicators = (x[name].to_numpy(dtype=object)[:, None] == shown).astype(np.float64)
            parts.append(np.where(x[name].isna().to_numpy()[:, None], np.nan, indicators))
        return np.hstack(parts)

    def decode(self, codes: np.ndarray) -> pd.DataFrame:
        """The columns come out with the numbers first."""
        many = len(self.centre)
        table = pd.DataFrame(codes[:, :many], columns=self.centre.index) * self.scale + self.centre
        for name, levels in self.levels.items():
            start, many = many, many + len(levels) - self.left_out
            indicators = codes[:, start:many]
            if self.left_out:
                indicators = np.column_stack([indicators, 1 - indicators.sum(1)])
            table[name] = levels[indicators.argmax(1)].astype(object)
        return table


def by_codes(imputer: Any, x: pd.DataFrame, left_out: int) -> pd.DataFrame:
    encoder = Encoder.of(x, left_out)
    return encoder.decode(imputer.fit_transform(encoder.encode(x)))[list(x)]


def mean(x: pd.DataFrame, seed: int) -> pd.DataFrame:
    """Mean or mode; of several modes the first in order."""
    return x.fillna({name: x[name].mean() if is_numeric_dtype(x[name]) else x[name].mode()[0] for name in x})


def knn(x: pd.DataFrame, seed: int) -> pd.DataFrame:
    return by_codes(KNNImputer(), x, left_out=0)


def ridge(x: pd.DataFrame, seed: int, left_out: int = 1) -> pd.DataFrame:
    return by_codes(IterativeImputer(BayesianRidge(), max_iter=10, random_state=seed), x, left_out)


def trees(x: pd.DataFrame, seed: int, left_out: int = 1) -> pd.DataFrame:
    forest = ExtraTreesRegressor(n_estimators=10, random_state=seed)
    return by_codes(IterativeImputer(forest, max_iter=10, random_state=seed), x, left_out)


def memgen(x: pd.DataFrame, seed: int) -> pd.DataFrame:
    imputer = importlib.import_module(MODULE).MemImputer(random_state=seed)
    return pd.DataFrame(imputer.fit_transform(x), index=x.index, columns=x.columns)


METHODS: dict[str, Callable[[pd.DataFrame, int], pd.DataFrame]] = {
    "mean": mean,
    "knn": knn,
    "ridge": ridge,
    "trees": trees,
    "memgen": memgen,
    "ridge-full": partial(ridge, left_out=0),
    "trees-full": partial(trees, left_out=0),
}
USUAL = ("mean", "knn", "ridge", "trees", "memgen")


def nrmse(truth: pd.DataFrame, completed: pd.DataFrame, missing: np.ndarray) -> float | None:
    """sqrt(mean over missing numeric cells of ((found - truth) / sd of the column)²); None if there are none."""
    names = numeric_columns(truth)
    errors = ((completed[names].astype("float64") - truth[names]) / truth[names].std(ddof=0)).to_numpy()
    squares = errors[missing[:, truth.columns.isin(names)]] ** 2
    return float(np.sqrt(squares.mean())) if len(squares) else None


def accuracy(truth: pd.DataFrame, completed: pd.DataFrame, missing: np.ndarray) -> float | None:
    """The fraction of missing categorical cells that are right; None if there are none."""
    names = categorical_columns(truth)
    hits = (completed[names].astype(str) == truth[names]).to_numpy()[missing[:, truth.columns.isin(names)]]
    return float(hits.mean()) if len(hits) else None


def classifier(truth: pd.DataFrame, completed: pd.DataFrame, y: np.ndarray | None, seed: int) -> float | None:
    """Accuracy in five folds; the indicators are those of the complete table, for all methods alike."""
    if y is None:
        return None
    folds = StratifiedKFold(5, shuffle=True, random_state=seed)
    model = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    return float(cross_val_score(model, Encoder.of(truth).encode(completed), y, cv=folds).mean())


def impute(x: pd.DataFrame, missing: np.ndarray, method: str, seed: int) -> tuple[pd.DataFrame, float, int]:
    """The completed table, with every observed cell as it was; seconds; how many warnings of no convergence."""
    incomplete = x.mask(missing)
    clock = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        filled = METHODS[method](incomplete, seed)
    seconds = time.perf_counter() - clock
    others = [one for one in caught if not issubclass(one.category, ConvergenceWarning)]
    for one in others:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)
    if filled.isna().any(axis=None):
        raise ValueError(f"{int(filled.isna().to_numpy().sum())} cells are still missing")
    return x.where(~missing, filled).astype(x.dtypes), seconds, len(caught) - len(others)


def measure(cell: Cell) -> Row:
    """All metrics of one method on one table under one mask."""
    x, y = load(cell.table)
    missing = missing_cells(cell.table, cell.setting, cell.seed)
    completed, seconds, unconverged = impute(x, missing, cell.method, cell.seed)
    return {
        "nrmse": nrmse(x, completed, missing),
        "accuracy": accuracy(x, completed, missing),
        "classifier": classifier(x, completed, y, cell.seed),
        "seconds": seconds,
        "missing": float(missing.mean()),
        "unconverged": unconverged,
    }


def main(arguments: list[str] | None = None) -> int:
    parser = options_for(__doc__, list(METHODS), USUAL)
    parser.add_argument("--mechanisms", default=",".join(MECHANISMS), help=f"of {', '.join(MECHANISMS)}")
    options: argparse.Namespace = parser.parse_args(arguments)
    mechanisms = names_of(options.mechanisms, MECHANISMS, "mechanisms")
    methods = installed_methods(options.methods, METHODS, MODULE)
    tables = installed_tables(options.tables)
    grid = [(table, mechanism, seed) for table in tables for mechanism in mechanisms for seed in range(options.seeds)]
    cells = [Cell(*place, method) for place in grid for method in methods]
    store = Store(options.keep)
    done = collect(cells, store, measure)
    finish(options, store, cells, METRICS)
    unconverged = sum(bool(store.rows[cell].get("unconverged")) for cell in cells if cell in store.rows)
    print(f"\n{unconverged} runs of IterativeImputer had not converged after their rounds (scikit-learn's warning)")
    return 0 if done else 130


if __name__ == "__main__":
    sys.exit(main())
