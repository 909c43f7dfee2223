"""Conversions between the values of a table and the arrays of scikit-learn and pandas."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy.typing import NDArray

from memgen.errors import MemgenError
from memgen.runs.progress import Progress

AUTO = "auto"


def joined(columns: list[NDArray[Any]]) -> Shaped[NDArray[Any], "N D"]:
    """One array: of numbers, or of objects where a column is text or has dates."""
    text = any(column.dtype.kind in "OM" for column in columns)
    return np.stack([column.astype(object if text else np.float64) for column in columns], 1)


def framed(columns: list[NDArray[Any]], names: Sequence[str]) -> Any:
    """A DataFrame with these columns."""
    try:
        import pandas as pd
    except ImportError:
        raise MemgenError("this estimator was fitted on a DataFrame, and rows of one need pandas: install it") from None
    return pd.DataFrame(dict(zip(names, columns, strict=True)))


def where_missing(missing: NDArray[np.bool_], new: NDArray[Any], old: NDArray[Any]) -> NDArray[Any]:
    """The new value where the old one is missing."""
    if new.dtype.kind == "M":
        return np.where(missing, new, old)
    if new.dtype == object or old.dtype == object:
        if new.dtype != object:
            old = np.where(missing, np.nan, old).astype(np.float64)
            return np.where(missing, new.astype(np.float64), old)
        return np.where(missing, new, old.astype(object))
    return np.where(missing, new.astype(np.float64), old.astype(np.float64)) if missing.any() else old


def modelled(
    values: Sequence[NDArray[Any]], names: Sequence[str], ignored: Collection[str]
) -> tuple[list[NDArray[Any]], list[str]]:
    """The columns that are not ignored, and their names."""
    keep = [i for i, name in enumerate(names) if name not in ignored]
    return [values[i] for i in keep], [names[i] for i in keep]


@contextmanager
def shown(verbose: Any, what: str, total: int) -> Iterator[Callable[[int], None]]:
    """A function that is called with the number of further rows that are done; with `verbose` it shows progress."""
    done = 0

    def tick(rows: int) -> None:
        nonlocal done
        done += rows
        if progress is not None:
            progress.to(done)

    with Progress(what, total, "row") if verbose else nullcontext() as progress:
        yield tick


def is_auto(value: Any) -> bool:
    return isinstance(value, str) and value == AUTO


def plain(value: Any) -> Any:
    """NumPy's numbers and tuples as values of TOML and JSON."""
    if isinstance(value, (np.generic, np.ndarray)):
        return value.tolist()
    return [plain(entry) for entry in value] if isinstance(value, (list, tuple)) else value


def as_text(value: Any) -> Any:
    text = plain(value)
    if text is value:
        raise MemgenError(f"the setting {value!r} has no text, so it cannot be saved")
    return text


def checked(column: NDArray[Any]) -> NDArray[Any]:
    """Raise the TypeError that scikit-learn requires for objects that are neither numbers nor text."""
    if column.dtype == object:
        for value in column:
            if isinstance(value, (dict, list, tuple, set)):
                raise TypeError(f"argument must be a string or a number, not {type(value).__name__!r}")
    return column


def column_of(series: Any) -> NDArray[Any]:
    """A column of a DataFrame: numbers and truth values as they are, all else as objects."""
    kind = getattr(series.dtype, "kind", "O")
    plain = isinstance(series.dtype, np.dtype) and kind in "biufMmc"
    return np.asarray(series) if plain else np.asarray(series.astype(object), dtype=object)
