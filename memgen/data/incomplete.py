"""The user's own incomplete data: a CSV table, a NumPy array or a folder of images, read, and written back completed.

Missing is NaN, an empty cell, or a pixel whose alpha is 0. Observed values are written back unchanged: cells keep
their text, arrays their bits, images their grey levels.
"""

from __future__ import annotations

import io
import math
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64, UInt8
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from memgen.data.arrays import check_numbers, load_arrays, name_of_data
from memgen.data.cells import bare, comma_hint, is_missing, number, read_opening
from memgen.data.columns import Columns
from memgen.data.incomplete_tables import read_incomplete_parquet, read_text_table
from memgen.data.lines import Lines, check_width, read_lines
from memgen.data.output import write_atomically
from memgen.data.own_images import find_images
from memgen.data.own_tables import default_names
from memgen.data.pictures import open_picture
from memgen.errors import MemgenError


@runtime_checkable
class Incomplete(Protocol):
    """Rows with missing values, and how they are written once these are filled in."""

    @property
    def x(self) -> Float64[Tensor, "N D"]:
        """NaN where a value is missing."""
        ...

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        """Only entries that are NaN in x are taken from `completed`."""
        ...


def read_incomplete(
    path: Path,
    columns: int,
    shape: tuple[int, ...],
    levels: int,
    empty: bool = False,
    header: str = "auto",
    schema: Columns | None = None,
) -> Incomplete:
    """A .csv, .npy, .npz or .parquet file or a folder of images, for a model with this number of columns.

    Bytes of images become v/levels. A column without a single value is refused, unless `empty`. `header` says whether
    the first line of a table is a header: "yes", "no", or "auto" to infer it from that line. With a `schema`,
    that of the model, values are read and written in the user's own form.
    """
    if path.is_dir():
        return read_images(path, columns, shape, levels)
    if not path.exists():
        raise MemgenError(f"there is no file or folder {path}")
    readers: dict[str, Callable[[Path, int], Incomplete]] = {
        ".npy": partial(read_array, schema=schema),
        ".npz": partial(read_array, schema=schema),
        ".csv": partial(read_table, header=header),
        ".tsv": partial(read_table, header=header),
    }
    if schema is not None:
        text = partial(read_text_table, columns=schema, header=header)
        readers |= {".csv": lambda path, n: text(path), ".tsv": lambda path, n: text(path)}
        readers[".parquet"] = lambda path, n: read_incomplete_parquet(path, schema)
    if path.suffix.lower() not in readers:
        raise MemgenError(f"{path}: the ending must be one of {' '.join(readers)}, or it must be a folder of images")
    data = readers[path.suffix.lower()](path, columns)
    if len(data.x) > 1 and not empty:
        refuse_empty_columns(path, data.x)
    return data


def refuse_empty_columns(path: Path, x: Float64[Tensor, "N D"]) -> None:
    nothing = x.isnan().all(0).nonzero().flatten().tolist()
    if nothing:
        others = f" (and {len(nothing) - 1} more)" if len(nothing) > 1 else ""
        raise MemgenError(
            f"{path}: column {nothing[0] + 1}{others} has not one value; if that is meant, say --allow-empty-columns"
        )


@dataclass(frozen=True)
class Table:
    """A CSV file of numbers, with the exact text of each cell."""

    x: Float64[Tensor, "N D"]
    lines: Lines

    @property
    def named(self) -> bool:
        return self.lines.named

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        missing = self.x.isnan().tolist()
        cells = [
            [f"{v:.6g}" if absent else text for text, absent, v in zip(texts, row_missing, values, strict=True)]
            for texts, row_missing, values in zip(self.lines.cells, missing, completed.tolist(), strict=True)
        ]
        write_atomically(output, self.lines.text(cells).encode())


def read_table(path: Path, columns: int, header: str = "auto") -> Table:
    lines = read_lines(path, read_opening(path, header), columns)
    rows = [
        [_value(path, place, i, cell) for i, cell in enumerate(texts, 1)]
        for place, texts in zip(lines.numbers, lines.cells, strict=True)
    ]
    return Table(torch.tensor(rows, dtype=torch.float64), lines)


def _value(path: Path, line: int, column: int, cell: str) -> float:
    if is_missing(cell):
        return math.nan
    value = number(cell)
    if value is None or not math.isfinite(value):
        raise MemgenError(
            f"{path}, line {line}, column {column}: {bare(cell)[:40]!r} is not a number{comma_hint(cell)}"
        )
    return value


@dataclass(frozen=True)
class Array:
    """A NumPy array (N, columns), (N, height, width) or (N, height, width, 3)."""

    x: Float64[Tensor, "N D"]
    values: NDArray[Any]
    others: dict[str, NDArray[Any]]
    """The other arrays of an .npz, kept as they are."""
    name: str = "x"
    schema: Columns | None = None
    places: slice | list[int] = field(default_factory=lambda: slice(None))
    """The columns of the array that are those of the model."""

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        out: NDArray[Any] = self.values.copy().reshape(len(self.values), -1)
        filled = completed.numpy() if self.schema is None else np.stack(self.schema.filled(completed.numpy()), 1)
        modelled = out[:, self.places]
        missing = np.isnan(modelled)
        modelled[missing] = filled[missing]  # all else keeps its bits
        out[:, self.places] = modelled
        out = np.reshape(out, self.values.shape)
        content = io.BytesIO()
        if output.suffix.lower() == ".npz":
            arrays: dict[str, Any] = self.others | {self.name: out}
            np.savez(content, **arrays)
        else:
            np.save(content, out, allow_pickle=False)
        write_atomically(output, content.getvalue())


def read_array(path: Path, columns: int, schema: Columns | None = None) -> Array:
    others = load_arrays(path)
    name = name_of_data(path, others)
    values = others.pop(name)
    check_numbers(path, values)
    if values.ndim not in (2, 3, 4) or values.size == 0:
        raise MemgenError(f"{path} has shape {values.shape}; rows must come first: (N, columns) or (N, height, width)")
    rows = values.reshape(len(values), -1).astype(np.float64)
    names = default_names(columns + (len(schema.ignored) if schema is not None else 0))
    check_width(path, rows.shape[1], len(names))
    places = slice(None) if schema is None else [i for i, name in enumerate(names) if name not in schema.ignored]
    rows = rows[:, places]
    if np.isinf(rows).any():
        row, column = np.argwhere(np.isinf(rows))[0]
        raise MemgenError(f"{path} has an infinity at row {row + 1}, column {column + 1}")
    if schema is not None:
        try:
            rows = schema.encode(list(rows.T))
        except MemgenError as error:
            raise MemgenError(f"{path}: {error}") from None
    return Array(torch.from_numpy(rows), values, others, name, schema, places)


@dataclass(frozen=True)
class Images:
    """Images of one size, grey or with colours; a pixel with alpha 0 is missing, in all its channels."""

    x: Float64[Tensor, "N D"]
    pixels: UInt8[NDArray[np.uint8], "N height width *channels"]
    names: list[str]
    """Paths inside the folder, without endings."""
    levels: int

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        bytes_ = np.clip(np.round(completed.numpy() * self.levels), 0, 255).astype(np.uint8).reshape(self.pixels.shape)
        missing = self.x.isnan().numpy().reshape(self.pixels.shape)
        for name, image in zip(self.names, np.where(missing, bytes_, self.pixels), strict=True):
            path = output / f"{name}.png"
            try:
                path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise MemgenError(f"cannot make the folder {path.parent}: {error.strerror}") from None
            content = io.BytesIO()
            Image.fromarray(image).save(content, "PNG")
            write_atomically(path, content.getvalue())


def read_images(folder: Path, columns: int, shape: tuple[int, ...], levels: int) -> Images:
    if not shape or math.prod(shape) != columns:
        raise MemgenError(f"this model has {columns} columns that are no images; give it a .csv, .npy or .npz file")
    paths = find_images(folder)
    names = [path.relative_to(folder).with_suffix("").as_posix() for path in paths]
    if len(set(names)) < len(names):
        twice = next(name for name, times in Counter(names).items() if times > 1)
        raise MemgenError(f"{folder} has two images named {twice}, which would become one {twice}.png")
    pairs = [read_image(path, shape) for path in paths]
    pixels = np.stack([pair[0] for pair in pairs])
    missing = np.stack([pair[1] for pair in pairs]).reshape(*pixels.shape[:3], *(1 for _ in shape[2:]))
    x = np.where(missing, np.nan, pixels / levels).reshape(len(paths), -1)
    return Images(torch.from_numpy(x), pixels, names, levels)


def read_image(path: Path, shape: tuple[int, ...]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Bytes of one image, in one channel or in three, and which pixels are missing."""
    with open_picture(path) as image:
        width, height = image.size
        if (height, width) != shape[:2]:
            raise MemgenError(
                f"{path} is {width} pixels wide and {height} high, the model's images are {shape[1]} wide and "
                f"{shape[0]} high; resize or crop it"
            )
        channels = np.asarray(image.convert("RGBA"))
    missing = channels[..., 3] == 0
    colour = np.where(missing[..., None], np.uint8(0), channels[..., :3])
    if len(shape) == 3:
        return colour, missing
    if bool((colour != colour[..., :1]).any()):
        raise MemgenError(f"{path} is a colour image; the model has one channel, save it as grey levels")
    return colour[..., 0], missing
