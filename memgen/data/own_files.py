"""The user's files by their endings: tables, arrays, images, and folders of either."""

from __future__ import annotations

import zipfile
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memgen.data.arrays import check_members, check_numbers, load_arrays, name_of_data
from memgen.data.columns import check_names
from memgen.data.csv_files import read_csv
from memgen.data.feather import read_feather_table
from memgen.data.idx import is_idx, labels_beside, read_idx
from memgen.data.own_images import RawImages, find_images, has_images, images_of_array, read_folder
from memgen.data.own_tables import (
    Expected,
    RawTable,
    default_names,
    leave_out,
    read_parquet,
    table_of_array,
    table_of_arrow,
    take_labels,
)
from memgen.data.values import Coded
from memgen.errors import MemgenError, reason

Report = Callable[[int, int], None]
INSTALL = "in a clone of memgen: pip install '.[tables]'"


def read_path(
    path: Path, size: tuple[int, int] | None, header: str, expected: Expected, report: Report
) -> RawTable | RawImages:
    """The rows of a file, or of all files of a folder."""
    ending = path.suffix.lower()
    if path.is_dir() and not has_images(path) and (paths := tables_in(path)):
        return take_labels(joined(paths, [read_table(one, header, expected) for one in paths]), expected)
    if path.is_dir():
        return read_folder(path, size, report)
    if ending in TABLES:
        return take_labels(read_table(path, header, expected), expected)
    if ending in ARRAYS or is_idx(path):
        data = read_array(path, size)
        return leave_out(data, expected) if isinstance(data, RawTable) else data
    raise MemgenError(
        f"{path}: the ending must be one of {' '.join(ENDINGS)} or that of an idx file, or it must be a folder of "
        "images or of tables"
    )


def files_in(folder: Path) -> list[Path]:
    """The files of a folder that are read, in order."""
    return find_images(folder) if has_images(folder) or not (tables := tables_in(folder)) else tables


# ---- tables


def read_table(path: Path, header: str, expected: Expected) -> RawTable:
    try:
        table = TABLES[path.suffix.lower()](path, header, expected)
        return table if path.suffix.lower() in (".csv", ".tsv") else leave_out(table, expected)
    except MemgenError as error:
        raise error if str(path) in str(error) else MemgenError(f"{path}: {error}") from None


def read_excel(path: Path, header: str, expected: Expected) -> RawTable:
    """The first sheet, whose first row has names, unless `header` is no."""
    try:
        import openpyxl  # noqa: F401
        import pandas as pd
    except ImportError:
        raise MemgenError(f"{path}: Excel files need pandas and openpyxl: pip install pandas openpyxl") from None
    try:
        with zipfile.ZipFile(path) as archive:
            check_members(archive.infolist(), path.stat().st_size)
        frame = pd.read_excel(path, header=None if header == "no" else 0)
    except MemoryError:
        raise
    except Exception as error:  # openpyxl raises errors of many types for damaged files
        raise MemgenError(f"cannot read {path} as an Excel file: {reason(error)}") from None
    if not len(frame) or not len(frame.columns):
        raise MemgenError(f"{path} has no rows")
    names = default_names(frame.shape[1]) if header == "no" else tuple(str(name) for name in frame.columns)
    check_names(names)
    values = tuple(np.asarray(frame.iloc[:, i]) for i in range(len(names)))
    return RawTable(names, values, header != "no")


TABLES: dict[str, Callable[[Path, str, Expected], RawTable]] = {
    ".csv": read_csv,
    ".tsv": read_csv,
    ".parquet": lambda path, header, expected: read_parquet(path),
    ".feather": lambda path, header, expected: table_of_arrow(path, read_feather_table(path)),
    ".xlsx": read_excel,
}
"""Ending of a table -> what reads it."""
ARRAYS = (".npy", ".npz")
ENDINGS = (*TABLES, *ARRAYS)


def tables_in(folder: Path) -> list[Path]:
    """The tables of a folder, in the order of their names; hidden ones are left out."""
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in TABLES and path.is_file())
    return [path for path in paths if not path.name.startswith(".")]


def joined(paths: Sequence[Path], tables: Sequence[RawTable]) -> RawTable:
    """The rows of all tables, which must have the same columns."""
    first = tables[0]
    for path, table in zip(paths, tables, strict=True):
        if set(table.names) != set(first.names) or table.named != first.named:
            other = sorted({*table.names} ^ {*first.names})
            raise MemgenError(
                f"{path} has other columns than {paths[0]}"
                + (f": {other[0]!r} is in one of them only" if other else "")
            )
    order = [[table.names.index(name) for name in first.names] for table in tables]
    values = [
        concatenated([table.values[place[i]] for table, place in zip(tables, order, strict=True)])
        for i in range(len(first.names))
    ]
    formats = [
        {table.formats[place[i]] if table.formats else "" for table, place in zip(tables, order, strict=True)}
        for i in range(len(first.names))
    ]
    problems = {name: f"{path}: {text}" for path, t in zip(paths, tables, strict=True) for name, text in t.problems}
    return replace(
        first,
        values=tuple(values),
        formats=tuple(each.pop() if len(each) == 1 else "" for each in formats),
        problems=tuple(problems.items()),
    )


def concatenated(parts: Sequence[NDArray[Any] | Coded]) -> NDArray[Any]:
    """One column of several; numbers and dates stay so if all parts are such."""
    arrays = [part.decoded() if isinstance(part, Coded) else part for part in parts]
    kinds = {"number" if array.dtype.kind in "iuf" else array.dtype.kind for array in arrays}
    return np.concatenate(arrays if len(kinds) == 1 else [array.astype(object) for array in arrays])


# ---- arrays


def read_array(path: Path, size: tuple[int, int] | None) -> RawTable | RawImages:
    values, name, classes = _idx_arrays(path) if is_idx(path) else _numpy_arrays(path)
    check_numbers(path, values)
    if values.ndim not in (2, 3, 4) or values.size == 0:
        raise MemgenError(
            f"{path} has shape {values.shape}; it must be (N, columns), or for images (N, height, width) or "
            "(N, height, width, 3)"
        )
    if classes is not None and classes.shape != (len(values),):
        raise MemgenError(
            f"{path} has {len(values)} rows, and {name} has shape {classes.shape}; it must be ({len(values)},)"
        )
    return table_of_array(values, classes) if values.ndim == 2 else images_of_array(path, values, classes, size)


def _numpy_arrays(path: Path) -> tuple[NDArray[Any], str, NDArray[Any] | None]:
    arrays = load_arrays(path)
    name = next((name for name in ("labels", "y") if name in arrays and len(arrays) > 1), "")
    classes = arrays.pop(name) if name else None
    return arrays[name_of_data(path, arrays)], name, classes


def _idx_arrays(path: Path) -> tuple[NDArray[Any], str, NDArray[Any] | None]:
    beside = labels_beside(path)
    return read_idx(path), "" if beside is None else beside.name, None if beside is None else read_idx(beside)
