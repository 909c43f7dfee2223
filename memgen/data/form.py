"""What a model must know of its data to read new rows and to write rows; it is saved with the weights."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memgen.core.likelihoods import Described
from memgen.data.columns import Columns
from memgen.data.dataset import Dataset
from memgen.data.documents import parse_json
from memgen.errors import MemgenError

MOST_LEVELS = 1 << 16
"""The largest divisor of a byte."""


@dataclass(frozen=True)
class Form:
    """The form of rows: images, a table with its schema, or columns without a schema.

    >>> form = Form((28, 28, 3), classes=("cat", "dog"))
    >>> Form.from_json(form.to_json()) == form
    True
    """

    shape: tuple[int, ...] = ()
    """Height and width of an image, and 3 where it has colours; () for a table."""
    columns: Columns | None = None
    """The schema of a table."""
    levels: int = 255
    """What a byte of an image is divided by."""
    classes: tuple[str, ...] = ()
    """The name of each label, where they have names."""

    @staticmethod
    def of(data: Dataset) -> Form:
        """The form of the user's own data."""
        return Form(data.shape, data.columns, data.levels, data.classes)

    @property
    def kinds(self) -> tuple[Described, ...]:
        """What the likelihood of a table is built from, for every column."""
        return () if self.columns is None else self.columns.modelled

    def to_dict(self) -> dict[str, Any]:
        columns = None if self.columns is None else json.loads(self.columns.to_json())
        return {
            "shape": list(self.shape),
            "columns": columns,
            "levels": self.levels,
            "classes": list(self.classes),
        }

    def to_json(self) -> str:
        return json.dumps(self.to_dict(), ensure_ascii=False, allow_nan=False)

    @staticmethod
    def from_json(text: str, where: object = "the form") -> Form:
        """A form as `to_json` wrote it; anything else is an error that names `where` it came from."""
        value = parse_json(text, where, "description of data")
        return Form.from_dict(value, where)

    @staticmethod
    def from_dict(record: Any, where: object = "the form") -> Form:
        if not isinstance(record, dict) or record.keys() != {"shape", "columns", "levels", "classes"}:
            raise MemgenError(f"{where} is no description of data: it must have shape, columns, levels and classes")
        shape, columns, levels, classes = (record[key] for key in ("shape", "columns", "levels", "classes"))
        if not _whole_numbers(shape) or len(shape) not in (0, 2, 3):
            raise MemgenError(f"{where}: the shape must be height and width of an image, and its channels, or []")
        if (
            not _whole_numbers([levels])
            or levels > MOST_LEVELS
            or not isinstance(classes, list)
            or not all(type(c) is str for c in classes)
        ):
            raise MemgenError(f"{where}: levels must be a whole number, and classes a list of names")
        if shape and columns is not None:
            raise MemgenError(f"{where}: rows are images or a table, not both")
        schema = None if columns is None else Columns.from_dict(columns, where)
        return Form(tuple(shape), schema, levels, tuple(classes))


def _whole_numbers(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value > 0 for value in values)


@dataclass(frozen=True)
class Origin:
    """The user's own data that a run was trained on: their path, fingerprint, number of rows and form.

    >>> origin = Origin(Path("/data/table.csv"), "0a1b", 120, Form())
    >>> Origin.from_json(origin.to_json()) == origin
    True
    """

    path: Path
    fingerprint: str
    rows: int
    form: Form

    def to_json(self) -> str:
        about = {"path": str(self.path), "fingerprint": self.fingerprint, "rows": self.rows}
        return json.dumps(about | {"form": self.form.to_dict()}, ensure_ascii=False, allow_nan=False, indent=1) + "\n"

    @staticmethod
    def from_json(text: str, where: object = "the origin") -> Origin:
        record = parse_json(text, where, "description of data")
        kinds = {"path": str, "fingerprint": str, "rows": int, "form": dict}
        if not isinstance(record, dict) or any(type(record.get(key)) is not kind for key, kind in kinds.items()):
            raise MemgenError(f"{where} is no description of data: it must have path, fingerprint, rows and form")
        return Origin(
            Path(record["path"]), record["fingerprint"], record["rows"], Form.from_dict(record["form"], where)
        )
