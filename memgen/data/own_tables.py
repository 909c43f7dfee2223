"""The user's own tables: CSV, parquet and NumPy files as named columns of values, before a schema is inferred."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from memgen.data.arrays import ALWAYS_EXPANDED, EXPANSION
from memgen.data.cells import comma_hint, is_missing
from memgen.data.columns import Columns, check_names
from memgen.data.kinds import AUTO, LEVELLED
from memgen.data.values import Coded, shorten, some
from memgen.errors import MemgenError, reason

LABELS = ("labels", "label")
"""The name of the column that gives the classes of the rows, in any case."""
NEARLY_ALL = 0.9
"""If more than this fraction of the distinct texts of a column are numbers, the others are mistakes."""
MANY = 20


@dataclass(frozen=True)
class RawTable:
    """Columns of equal length, with the values as read."""

    names: tuple[str, ...]
    values: tuple[NDArray[Any] | Coded, ...]
    named: bool
    """Whether the names are the user's."""
    labels: NDArray[Any] | Coded | None = None
    """One class per row, where there are classes."""

    def __len__(self) -> int:
        return len(self.values[0])


@dataclass(frozen=True)
class Expected:
    """What the columns must be: the kinds that the user gave, or the schema of a model."""

    kinds: Mapping[str, str]
    columns: Columns | None = None

    def form(self, name: str, place: int, named: bool) -> str:
        """Whether a column of cells must be "number" or "text", has "levels" of either, or may be "any"."""
        if self.columns is None:
            kind = self.kinds.get(name, AUTO)
            return "any" if kind == AUTO else "levels" if kind in LEVELLED else "number"
        place = self._places.get(name, len(self.columns)) if named else place
        if place >= len(self.columns):
            return "any"
        levels = self.columns.columns[place].levels
        return "text" if levels and isinstance(levels[0], str) else "number"

    @cached_property
    def _places(self) -> dict[str, int]:
        return {} if self.columns is None else {name: i for i, name in enumerate(self.columns.names)}


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
    )


def arrange(table: RawTable, columns: Columns) -> RawTable:
    """The columns in the order of a schema: by name, or by place where the table has no names of its own."""
    if not table.named:
        if len(table.names) != len(columns):
            raise MemgenError(f"the table has {len(table.names)} columns, the model has {len(columns)}")
        return replace(table, names=columns.names)
    place = {name: i for i, name in enumerate(table.names)}
    lacking = [name for name in columns.names if name not in place]
    if lacking:
        raise MemgenError(f"there is no column {lacking[0]!r}, which the model has; columns: {some(table.names, 20)}")
    known = set(columns.names)
    extra = [name for name in table.names if name not in known]
    if extra:
        raise MemgenError(f"the model has no column {extra[0]!r}; drop it")
    return replace(table, names=columns.names, values=tuple(table.values[place[name]] for name in columns.names))


# ---- text


def parse(name: str, cells: Sequence[str], form: str = "any", rows: Sequence[int] | None = None) -> NDArray[Any]:
    """The cells of a column as numbers, if every one that is not missing is a number, else as text. `rows`: in which
    row each cell stands, if they are not in order.

    >>> parse("age", ["3", "", "4.5"])
    array([3. , nan, 4.5])
    >>> parse("town", ["Bern", "?", " Basel"])
    array(['Bern', None, 'Basel'], dtype=object)
    """
    if form in ("any", "number") and (numbers := plain_numbers(cells)) is not None:
        return numbers
    known = {cell: read_cell(cell) for cell in set(cells)}  # few of them, often
    strange = {cell for cell, value in known.items() if isinstance(value, str)}
    padded = form == "levels" and any(re.match(r"0\d", cell) for cell in known)  # as postcodes are
    if form == "text" or padded or (strange and not _should_be_numbers(known, strange, form)):
        texts = {cell: None if is_missing(cell) else cell.strip() for cell in known}
        return np.array([texts[cell] for cell in cells], dtype=object)
    if strange:
        places = range(1, len(cells) + 1) if rows is None else rows
        row, cell = next((i, cell) for i, cell in zip(places, cells, strict=True) if cell in strange)
        levels = ", or say that the kind of the column is categorical" if form == "any" else ""
        advice = comma_hint(cell) or f"; leave the cell empty if the value is missing{levels}"
        raise MemgenError(f"column {name!r}, row {row}: {shorten(cell.strip(), 40)!r} is not a number{advice}")
    return np.array([known[cell] for cell in cells], dtype=np.float64)


def plain_numbers(cells: Sequence[str]) -> NDArray[np.float64] | None:
    """The cells as numbers, if all of them are: the quick way for most columns of most tables."""
    try:
        return None if "_" in "".join(cells) else np.fromiter(map(float, cells), np.float64, len(cells))
    except ValueError:
        return None


def read_cell(cell: str) -> float | str | None:
    """A number, a text, or None if it is missing. Python's 1_000 is no number in a table.

    >>> [read_cell(cell) for cell in (" 3.50", "n/a", "Bern ", "1_000")]
    [3.5, None, 'Bern', '1_000']
    """
    try:
        if "_" not in cell:
            return float(cell)
    except ValueError:
        pass
    return None if is_missing(cell) else cell.strip()


def _should_be_numbers(known: Mapping[str, float | str | None], strange: set[str], form: str) -> bool:
    """Whether the user gave a kind of numbers, or all but a few cells are numbers, or all have decimal commas."""
    if form in ("levels", "text"):
        return False
    present = sum(value is not None for value in known.values())
    nearly = present > MANY and len(strange) < (1 - NEARLY_ALL) * present
    return form == "number" or nearly or all(comma_hint(cell) for cell in strange)


# ---- parquet


def read_parquet(path: Path) -> RawTable:
    """Columns of numbers, text and truth values; the index that pandas may have written is left out."""
    table = read_parquet_table(path)
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
