"""A figure with its caption and its numbers, and the style of all figures."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from matplotlib import rc_context
from matplotlib.figure import Figure as Canvas

from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from memgen.runs.finite import as_json

# Okabe and Ito's palette, which people with any kind of colour vision can tell apart.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
INK, FAINT = "#222222", "#999999"
MAP = "viridis"
STYLE: Any = {
    "font.size": 9,
    "font.family": "DejaVu Sans",
    "axes.edgecolor": FAINT,
    "axes.labelcolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 9,
    "axes.titlelocation": "left",
    "xtick.color": INK,
    "ytick.color": INK,
    "text.color": INK,
    "legend.frameon": False,
    "figure.dpi": 100,
    "savefig.dpi": 160,
    "svg.hashsalt": "memgen",
}


@dataclass(frozen=True)
class Figure:
    """A figure, its caption, and its numbers: a table (CSV) or any other values (JSON)."""

    name: str
    """The name of its files, without the ending."""
    caption: str
    canvas: Canvas = field(repr=False)
    table: Sequence[dict[str, Any]] | None = field(default=None, repr=False)
    values: Any = field(default=None, repr=False)

    @cached_property
    def png(self) -> bytes:
        return _rendered(self.canvas, "png")

    def write(self, folder: Path) -> list[Path]:
        """NAME.png, NAME.pdf, and NAME.csv or NAME.json."""
        files = {f"{self.name}.png": self.png, f"{self.name}.pdf": _rendered(self.canvas, "pdf")}
        if self.table is not None:
            files[f"{self.name}.csv"] = as_csv(self.table)
        if self.values is not None:
            files[f"{self.name}.json"] = as_json(self.values)
        make_folder(folder)
        for name, content in files.items():
            write_atomically(folder / name, content)
        return [folder / name for name in files]


def make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MemgenError(f"cannot make the folder {folder}: {error.strerror}") from None


def _rendered(canvas: Canvas, kind: str) -> bytes:
    content = io.BytesIO()
    with rc_context(STYLE):
        # Without a date inside, the same numbers make the same file.
        canvas.savefig(content, format=kind, metadata={"CreationDate": None} if kind == "pdf" else None)
    return content.getvalue()


def as_csv(table: Sequence[dict[str, Any]]) -> bytes:
    content = io.StringIO()
    writer = csv.DictWriter(content, list(table[0]) if table else [], lineterminator="\n")
    writer.writeheader()
    writer.writerows(table)
    return content.getvalue().encode()


def canvas(width: float, height: float) -> Canvas:
    """An empty figure, in inches."""
    return Canvas(figsize=(width, height), layout="constrained")
