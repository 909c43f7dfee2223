"""The user's own incomplete data: a CSV table, a NumPy array or a folder of images, read, and written back completed.

Missing is NaN, an empty cell, or a pixel whose alpha is 0. What was observed goes out as it came in: cells keep their
very text, arrays their bits, images their grey levels.
"""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Float64
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from memgen.data.arrays import check_numbers, load_arrays, name_of_data
from memgen.data.cells import bare, comma_hint, is_missing, number, read_opening, split
from memgen.data.pictures import PICTURES, open_picture
from memgen.errors import MemgenError
from memgen.storage import write_atomically


@runtime_checkable
class Incomplete(Protocol):
    """Rows with holes, and how they are written once the holes are filled."""

    @property
    def x(self) -> Float64[Tensor, "N D"]:
        """NaN where a value is missing."""
        ...

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        """Only entries that are NaN in x are taken from `completed`."""
        ...


def read_incomplete(
    path: Path, columns: int, shape: tuple[int, ...], levels: int, empty: bool = False, header: str = "auto"
) -> Incomplete:
    """A .csv, .npy, .npz file or a folder of images, for a model with so many columns.

    Bytes of images become v/levels. A column without a single value is refused, unless `empty`. Whether the first line
    of a table is a header is seen from it ("auto") or said ("yes", "no").
    """
    if path.is_dir():
        return read_images(path, columns, shape, levels)
    if not path.exists():
        raise MemgenError(f"there is no file or folder {path}")
    table = partial(read_table, header=header)
    readers: dict[str, Callable[[Path, int], Incomplete]] = {".npy": read_array, ".npz": read_array}
    readers |= {".csv": table, ".tsv": table}
    if path.suffix.lower() not in readers:
        raise MemgenError(f"{path}: the ending must be .csv, .npy or .npz, or it must be a folder of images")
    data = readers[path.suffix.lower()](path, columns)
    if len(data.x) > 1 and not empty:
        refuse_empty_columns(path, data.x)
    return data


def refuse_empty_columns(path: Path, x: Float64[Tensor, "N D"]) -> None:
    nothing = x.isnan().all(0).nonzero().flatten().tolist()
    if nothing:
        more = f" (and {len(nothing) - 1} more)" if len(nothing) > 1 else ""
        raise MemgenError(
            f"{path}: column {nothing[0] + 1}{more} has not one value; if that is meant, say --allow-empty-columns"
        )


def check_width(path: object, found: int, columns: int) -> None:
    if found != columns:
        what = "too few" if found < columns else "too many"
        raise MemgenError(f"{path} has {found} columns, which is {what}: the model has {columns}")


@dataclass(frozen=True)
class Table:
    """A CSV file as its very text, cell by cell."""

    x: Float64[Tensor, "N D"]
    head: str
    """What stands before the first row: a byte-order mark, a line of names."""
    cells: list[list[str]]
    ends: list[str]
    """What stands after each row: the end of its line, and any empty lines."""
    delimiter: str
    named: bool
    """Whether the first line is a header."""

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        lines = [self.head]
        holes = self.x.isnan()
        for texts, hole, values, end in zip(self.cells, holes.tolist(), completed.tolist(), self.ends, strict=True):
            row = [f"{v:.6g}" if h else text for text, h, v in zip(texts, hole, values, strict=True)]
            lines.append(self.delimiter.join(row) + end)
        write_atomically(output, "".join(lines).encode())


def read_table(path: Path, columns: int, header: str = "auto") -> Table:
    head, body, delimiter, named = read_opening(path, header)
    lines = body.splitlines(keepends=True)
    if named:
        head += lines.pop(0)
    cells: list[list[str]] = []
    ends: list[str] = []
    rows: list[list[float]] = []
    for place, line in enumerate(lines, 2 if named else 1):
        body = line.rstrip("\r\n")
        if not body and columns > 1:  # an empty line is no row
            head, ends = (head, [*ends[:-1], ends[-1] + line]) if ends else (head + line, ends)
            continue
        texts = split(body, delimiter)
        check_width(f"{path}, line {place},", len(texts), columns)
        rows.append([_value(path, place, i, cell) for i, cell in enumerate(texts, 1)])
        cells.append(texts)
        ends.append(line[len(body) :])
    if not rows:
        raise MemgenError(f"{path} has no rows")
    return Table(torch.tensor(rows, dtype=torch.float64), head, cells, ends, delimiter, named)


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
    """A NumPy array (N, columns) or (N, height, width)."""

    x: Float64[Tensor, "N D"]
    values: NDArray[Any]
    others: dict[str, NDArray[Any]]
    """The other arrays of an .npz, kept as they are."""
    name: str = "x"

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        out, holes = self.values.copy(), np.isnan(self.values)
        out[holes] = completed.numpy().reshape(out.shape)[holes]  # all else keeps its bits
        content = io.BytesIO()
        if output.suffix.lower() == ".npz":
            arrays: dict[str, Any] = self.others | {self.name: out}
            np.savez(content, **arrays)
        else:
            np.save(content, out, allow_pickle=False)
        write_atomically(output, content.getvalue())


def read_array(path: Path, columns: int) -> Array:
    others = load_arrays(path)
    name = name_of_data(path, others)
    found = others.pop(name)
    check_numbers(path, found)
    if found.ndim not in (2, 3) or len(found) == 0:
        raise MemgenError(f"{path} has shape {found.shape}; rows must come first: (N, columns) or (N, height, width)")
    rows = found.reshape(len(found), -1).astype(np.float64)
    check_width(path, rows.shape[1], columns)
    if np.isinf(rows).any():
        row, column = np.argwhere(np.isinf(rows))[0]
        raise MemgenError(f"{path} has an infinity at row {row + 1}, column {column + 1}")
    return Array(torch.from_numpy(rows), found, others, name)


@dataclass(frozen=True)
class Images:
    """Grey images of one size; a pixel with alpha 0 is missing."""

    x: Float64[Tensor, "N D"]
    grey: NDArray[np.uint8]
    """(N, height, width)"""
    names: list[str]
    levels: int

    def write(self, output: Path, completed: Float64[Tensor, "N D"]) -> None:
        bytes_ = np.clip(np.round(completed.numpy() * self.levels), 0, 255).astype(np.uint8).reshape(self.grey.shape)
        holes = self.x.isnan().numpy().reshape(self.grey.shape)
        try:
            output.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MemgenError(f"cannot make the folder {output}: {error.strerror}") from None
        for name, image in zip(self.names, np.where(holes, bytes_, self.grey), strict=True):
            content = io.BytesIO()
            Image.fromarray(image).save(content, "PNG")
            write_atomically(output / f"{name}.png", content.getvalue())


def read_images(folder: Path, columns: int, shape: tuple[int, ...], levels: int) -> Images:
    if len(shape) != 2 or math.prod(shape) != columns:
        raise MemgenError(f"this model has {columns} columns that are no images; give it a .csv, .npy or .npz file")
    paths = sorted(path for path in folder.iterdir() if path.suffix.lower() in PICTURES)
    if not paths:
        raise MemgenError(f"there are no images in {folder} (endings: {' '.join(sorted(PICTURES))})")
    names = [path.stem for path in paths]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise MemgenError(f"{folder} has two images named {twice}, which would become one {twice}.png")
    pairs = [read_image(path, (shape[0], shape[1])) for path in paths]
    grey = np.stack([pair[0] for pair in pairs])
    holes = np.stack([pair[1] for pair in pairs])
    x = np.where(holes, np.nan, grey / levels).reshape(len(paths), -1)
    return Images(torch.from_numpy(x), grey, names, levels)


def read_image(path: Path, shape: tuple[int, int]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Grey levels and holes of one image."""
    with open_picture(path) as image:
        width, height = image.size
        if (height, width) != shape:
            raise MemgenError(
                f"{path} is {width} pixels wide and {height} high, the model's images are {shape[1]} wide and "
                f"{shape[0]} high; resize or crop it"
            )
        channels = np.asarray(image.convert("RGBA"))
    holes = channels[..., 3] == 0
    colour = channels[..., :3]
    if bool((colour != colour[..., :1])[~holes].any()):
        raise MemgenError(f"{path} is a colour image; the model has one channel, save it as grey levels")
    return np.where(holes, 0, colour[..., 0]).astype(np.uint8), holes
