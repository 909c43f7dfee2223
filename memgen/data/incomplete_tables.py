"""Incomplete tables of a model that knows its columns: read by their names, and written back in the user's values."""

from __future__ import annotations

import csv
import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from torch import Tensor

from memgen.data.cells import bare, read_opening, split_rows
from memgen.data.columns import Column, Columns
from memgen.data.lines import Lines, read_lines
from memgen.data.output import write_atomically
from memgen.data.own_tables import (
    LABELS,
    check_columns,
    default_names,
    names_of_parquet,
    read_parquet_table,
    values_of_parquet,
)
from memgen.data.parsing import parse
from memgen.data.texts import as_texts, quoted
from memgen.errors import MemgenError


def find_columns(columns: Columns, names: tuple[str, ...]) -> list[int]:
    """The position in a table of each column of a schema. The table may also have columns that the training ignored,
    and one of labels."""
    places = {name: i for i, name in reversed(list(enumerate(names)))}  # the first of each name
    check_columns(columns, names, [name for name in names if name.lower() in LABELS])
    return [places[name] for name in columns.names]


def places_without_names(columns: Columns, plain: tuple[str, ...]) -> list[int]:
    """The positions of the columns in a table without a header; `plain`: the names that its columns then have."""
    if not columns.ignored:
        return list(range(len(columns)))
    if {*columns.names, *columns.ignored} != set(plain):
        raise MemgenError("the model ignores some columns of its table, so it needs the header that names them")
    return find_columns(columns, plain)


@dataclass(frozen=True)
class TextTable:
    """A CSV file, with the exact text of each cell and the schema of its columns."""

    x: Float64[Tensor, "N D"]
    lines: Lines
    columns: Columns
    places: list[int]
    """The position of each column's cell in a line."""

    @property
    def named(self) -> bool:
        return self.lines.named

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        cells = [list(row) for row in self.lines.cells]
        missing = self.x.isnan().tolist()
        for row, row_missing, texts in zip(cells, missing, as_texts(self.columns, completed.numpy()), strict=True):
            for place, absent, text in zip(self.places, row_missing, texts, strict=True):
                if absent:
                    row[place] = quoted(text, self.lines.delimiter)
        write_atomically(output, self.lines.text(cells).encode())


def read_text_table(path: Path, columns: Columns, header: str = "auto") -> TextTable:
    opening = read_opening(path, header)
    first = tuple(_content(cell, opening.delimiter) for cell in next(split_rows(opening.body, opening.delimiter))[0])
    if opening.named:  # as read_csv has it
        first = tuple(name or other for name, other in zip(first, default_names(len(first)), strict=True))
    if header == "auto" and set(columns.names) <= set(first):
        opening = opening._replace(named=True)
    plain = default_names(len(columns) + len(columns.ignored))
    by_name = opening.named and {*columns.names, *columns.ignored} != set(plain)
    try:
        places = find_columns(columns, first) if by_name else places_without_names(columns, plain)
        lines = read_lines(path, opening, len(first) if by_name else len(plain))
        texts = [[_content(row[place], lines.delimiter) for row in lines.cells] for place in places]
        x = columns.encode([_values(column, cells) for column, cells in zip(columns, texts, strict=True)])
    except MemgenError as error:
        raise error if str(path) in str(error) else MemgenError(f"{path}: {error}") from None
    return TextTable(torch.from_numpy(x), lines, columns, places)


def _content(cell: str, delimiter: str) -> str:
    """The text of a cell, without the quotes around it."""
    if '"' not in cell:
        return cell.strip()
    cells = next(csv.reader([cell], delimiter=delimiter, skipinitialspace=True), [""])
    return cells[0].strip() if len(cells) == 1 else bare(cell)


def _values(column: Column, cells: list[str]) -> NDArray[Any]:
    if column.levels and isinstance(column.levels[0], bool):
        cells = [{"true": "1", "false": "0"}.get(cell.lower(), cell) for cell in cells]
    return parse(column.name, cells, column.reading).values


@dataclass(frozen=True)
class ParquetTable:
    """A parquet file; columns keep their types, but whole numbers become fractions where one is filled in."""

    x: Float64[Tensor, "N D"]
    table: Any
    columns: Columns

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        import pyarrow.parquet

        table, missing = self.table, self.x.isnan().numpy()
        for i, (column, values) in enumerate(zip(self.columns, self.columns.filled(completed.numpy()), strict=True)):
            if missing[:, i].any():
                place = table.column_names.index(column.name)
                table = table.set_column(place, column.name, _filled(table.column(place), missing[:, i], values))
        content = io.BytesIO()
        pyarrow.parquet.write_table(table, content)
        write_atomically(output, content.getvalue())


def _filled(column: Any, missing: NDArray[np.bool_], values: NDArray[Any]) -> Any:
    import pyarrow

    kind = column.type.value_type if pyarrow.types.is_dictionary(column.type) else column.type
    items = [value.item() if isinstance(value, np.generic) else value for value in values]
    merged = [
        new if absent else old for old, absent, new in zip(column.to_pylist(), missing.tolist(), items, strict=True)
    ]
    if pyarrow.types.is_boolean(kind):
        merged = [bool(item) for item in merged]
    elif pyarrow.types.is_integer(kind) and all(float(item).is_integer() for item in merged):
        merged = [int(item) for item in merged]
    elif pyarrow.types.is_integer(kind) or pyarrow.types.is_decimal(kind):
        merged, kind = [float(item) for item in merged], pyarrow.float64()
    return pyarrow.array(merged, kind)


def read_incomplete_parquet(path: Path, columns: Columns) -> ParquetTable:
    table = read_parquet_table(path)
    try:
        find_columns(columns, tuple(names_of_parquet(table)))
        x = columns.encode([values_of_parquet(name, table.column(name)) for name in columns.names])
    except MemgenError as error:
        raise MemgenError(f"{path}: {error}") from None
    return ParquetTable(torch.from_numpy(x), table, columns)
