"""The user's own tables: CSV, parquet and NumPy files as named columns of values, before a schema is inferred."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from memgen.data.arrays import ALWAYS_EXPANDED, EXPANSION
from memgen.data.columns import Columns, check_names
from memgen.data.kinds import AUTO, DATED, LEVELLED
from memgen.data.parsing import Reading
from memgen.data.values import Coded, some
from memgen.errors import MemgenError, reason, unknown

LABELS = ("labels", "label")
"""The name of the column that gives the classes of the rows, in any case."""


@dataclass(frozen=True)
class RawTable:
    """Columns of equal length, with the values as read."""

    names: tuple[str, ...]
    values: tuple[NDArray[Any] | Coded, ...]
    named: bool
    """Whether the names are the user's."""
    labels: NDArray[Any] | Coded | None = None
    """One class per row, where there are classes."""
    formats: tuple[str, ...] = ()
    """How the cells of each column are written (see written.py); () if they have no text."""
    ignored: tuple[str, ...] = ()
    """Columns of the file that are not read."""
    problems: tuple[tuple[str, str], ...] = ()
    """Columns that cannot be read, and why; they have no values."""

    def __len__(self) -> int:
        return len(self.values[0])


@dataclass(frozen=True)
class Expected:
    """What the columns must be: the kinds that the user gave, or the schema of a model."""

    kinds: Mapping[str, str]
    columns: Columns | None = None
    ignore: tuple[str, ...] = ()
    """Columns that are not read."""
    locale: str = "auto"
    """How numbers and dates are written."""

    def reading(self, name: str, place: int, named: bool) -> Reading:
        """How the cells of a column are to be read."""
        if self.columns is None:
            return Reading(FORMS.get(self.kinds.get(name, AUTO), "number"), self.locale)
        place = self._places.get(name, len(self.columns)) if named else place
        if place >= len(self.columns):
            return Reading()
        return self.columns.columns[place].reading

    @cached_property
    def _places(self) -> dict[str, int]:
        return {} if self.columns is None else {name: i for i, name in enumerate(self.columns.names)}


FORMS = {AUTO: "any", "code": "text", **dict.fromkeys(LEVELLED, "levels"), **dict.fromkeys(DATED, "date")}
"""kind -> the form of its cells; all other kinds have numbers."""


def default_names(columns: int) -> tuple[str, ...]:
    """
    >>> default_names(2)
    ('column 1', 'column 2')
    """
    return tuple(f"column {i}" for i in range(1, columns + 1))


def take_labels(table: RawTable, expected: Expected) -> RawTable:
    """The table without the column that gives the classes, unless it has a kind, or a schema counts it as a column."""
    known = expected.kinds if expected.columns is None else expected.columns.names
    places = [i for i, name in enumerate(table.names) if name.lower() in LABELS and name not in known]
    if not places or not table.named:
        return table
    if len(places) > 1:
        one, other = (table.names[i] for i in places[:2])
        raise MemgenError(f"two columns give labels: {one!r} and {other!r}; rename one")
    if len(table.names) == 1:
        raise MemgenError(f"there is no column but {table.names[0]!r}")
    keep = [i for i in range(len(table.names)) if i != places[0]]
    return replace(
        table,
        names=tuple(table.names[i] for i in keep),
        values=tuple(table.values[i] for i in keep),
        labels=table.values[places[0]],
        formats=tuple(table.formats[i] for i in keep) if table.formats else (),
    )


def check_ignored(ignore: Collection[str], names: Sequence[str]) -> None:
    """Refuse names of columns that are not there, and to ignore all."""
    for name in ignore:
        if name not in names:
            raise unknown("column to ignore:", name, names)
    if len(set(ignore)) == len(names):
        raise MemgenError("all columns are ignored, and nothing is left to model")


def leave_out(table: RawTable, expected: Expected) -> RawTable:
    """The table without the columns to ignore, which it must have."""
    if expected.columns is None:
        check_ignored(expected.ignore, table.names)
    return without(table, expected.ignore)


def without(table: RawTable, ignored: Collection[str]) -> RawTable:
    """The table without these columns."""
    keep = [i for i, name in enumerate(table.names) if name not in ignored]
    if len(keep) == len(table.names):
        return table
    return replace(
        table,
        names=tuple(table.names[i] for i in keep),
        values=tuple(table.values[i] for i in keep),
        formats=tuple(table.formats[i] for i in keep) if table.formats else (),
        ignored=tuple(name for name in table.names if name in ignored),
    )


def arrange(table: RawTable, columns: Columns) -> RawTable:
    """The columns in the order of a schema: by name, or by place where the table has no names of its own."""
    if not table.named:
        table = without(table, columns.ignored)
        if len(table.names) != len(columns):
            raise MemgenError(f"the table has {len(table.names)} columns, the model has {len(columns)}")
        return replace(table, names=columns.names)
    place = {name: i for i, name in enumerate(table.names)}
    check_columns(columns, table.names)
    return replace(table, names=columns.names, values=tuple(table.values[place[name]] for name in columns.names))


def check_columns(columns: Columns, names: Sequence[str], allowed: Collection[str] = ()) -> None:
    """Refuse a table that lacks columns of the model, or has others that are not ignored; all are named at once."""
    lacking = [repr(name) for name in columns.names if name not in names]
    if lacking:
        what = "column" if len(lacking) == 1 else "columns"
        raise MemgenError(
            f"there is no {what} {some(lacking, 20)}, which the model has; columns: {some(list(names), 20)}"
        )
    known = {*columns.names, *columns.ignored, *allowed}
    extra = [repr(name) for name in names if name not in known]
    if extra:
        raise MemgenError(
            f"the model has no column {some(extra, 20)}; drop {'it' if len(extra) == 1 else 'them'}, or train with "
            "--ignore, which lets columns pass"
        )


# ---- parquet


def read_parquet(path: Path) -> RawTable:
    """Columns of numbers, text and truth values; the index that pandas may have written is left out."""
    return table_of_arrow(path, read_parquet_table(path))


def table_of_arrow(path: Path, table: Any) -> RawTable:
    names = names_of_parquet(table)
    if not names or table.num_rows == 0:
        raise MemgenError(f"{path} has no rows")
    check_names(names)
    return RawTable(tuple(names), tuple(values_of_parquet(name, table.column(name)) for name in names), True)


def names_of_parquet(table: Any) -> list[str]:
    return [name for name in table.column_names if not re.fullmatch(r"__index_level_\d+__", name)]


def read_parquet_table(path: Path) -> Any:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise MemgenError(
            f"{path}: parquet files need pyarrow; in a clone of memgen: pip install '.[tables]'"
        ) from None
    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            _check_cells(file.metadata, path.stat().st_size)
            table = file.read()
        table.validate(full=True)  # a place in a dictionary that it does not have, text that is no Unicode
        return table
    except MemoryError:
        raise
    except Exception as error:  # pyarrow raises errors of many types for damaged files
        raise MemgenError(f"cannot read {path} as a parquet file: {reason(error)}") from None


def _check_cells(metadata: Any, size: int) -> None:
    """Refuse a small file whose metadata state too many cells."""
    rows = sum(max(0, metadata.row_group(i).num_rows) for i in range(metadata.num_row_groups))
    cells = rows * metadata.num_columns
    if cells * BYTES_OF_A_CELL > max(ALWAYS_EXPANDED, EXPANSION * size):
        raise MemgenError(
            f"it would expand from {size:,} bytes to {cells:,} cells, which is more than {EXPANSION} times as much; "
            "save it as an array of numbers (.npy)"
        )


BYTES_OF_A_CELL = 8


def values_of_parquet(name: str, column: Any) -> NDArray[Any]:
    from pyarrow import types

    kind = column.type
    if types.is_dictionary(kind):
        kind = kind.value_type
        column = column.cast(kind)
    if types.is_decimal(kind):
        column = column.cast("float64")
    elif types.is_timestamp(kind) or types.is_date(kind):
        dates: NDArray[Any] = column.cast("timestamp[s]", safe=False).to_numpy()
        return dates.astype("datetime64[s]")
    elif not (
        types.is_boolean(kind)
        or types.is_integer(kind)
        or types.is_floating(kind)
        or types.is_string(kind)
        or types.is_large_string(kind)
        or types.is_null(kind)
    ):
        raise MemgenError(f"column {name!r} holds values of type {kind}; make numbers or text of them, or drop it")
    values: NDArray[Any] = column.to_numpy()
    return values


# ---- arrays


def table_of_array(values: NDArray[Any], labels: NDArray[Any] | None) -> RawTable:
    return RawTable(default_names(values.shape[1]), tuple(values.T), False, labels)
