"""The files of shards: results of some rows of a task each, which are merged into those of all rows.

All shards of a task lie in one folder, as shard-0-of-4.safetensors and so on. Each file says what it was made of: the
settings of the command, the hashes of the weights and of the rows. Shards that differ in any of it are not merged.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

import memgen
from memgen.core.batch import Rows, pieces
from memgen.data.documents import parse_record
from memgen.errors import MemgenError
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.shards import Shard

ENDING = ".safetensors"

Layout = Mapping[str, tuple[int | None, ...]]
"""Name of a tensor -> its shape, in which None stands for the rows."""
Tensors = dict[str, Tensor]


class Stored(NamedTuple):
    """The content of a shard's file."""

    file: Path
    shard: Shard
    tensors: Tensors
    """The results of its first rows; of all its rows once it is complete."""
    seconds: float


class Merged(NamedTuple):
    """The results of all rows."""

    parts: list[Tensors]
    """Those of each shard, in order."""
    seconds: float
    """The time that all shards took together."""


@dataclass(frozen=True)
class Shards:
    """The shards of a task, in a folder of their own."""

    folder: Path
    task: dict[str, Any]
    """What all shards must agree in, as JSON values."""
    borders: Sequence[int]
    """The first row of every batch, and the number of rows."""
    layout: Layout

    def file(self, shard: Shard) -> Path:
        return self.folder / f"shard-{shard.index}-of-{shard.count}{ENDING}"

    def begin(self, shard: Shard, fresh: bool = False) -> ShardFile:
        """The file of a shard, to go on with. A file of another task is refused, unless it is to be made `fresh`."""
        path = self.file(shard)
        if path.exists() and not fresh:
            try:
                load_tensors(path)
            except MemgenError:  # it is damaged, and made anew
                return ShardFile(self, shard, fresh=True)
            if (stored := self.read(path)).shard != shard:
                raise MemgenError(f"{path} holds shard {stored.shard}; delete it, or give it back its name")
        return ShardFile(self, shard, fresh)

    def read(self, path: Path) -> Stored:
        """The content of a file, if it is a shard of this task."""
        tensors, about = load_tensors(path)
        if not about.keys() >= {"shard", "task", "seconds"}:
            raise MemgenError(f"{path} is not a shard; move it away")
        task = parse_record(about["task"], {}, f"{path} (task inside)")
        if task != self.task:
            raise MemgenError(f"{path} is a shard of something else: {self._difference(task)}; move it away")
        shard = Shard.parse(about["shard"])
        self._check(path, shard, tensors)
        return Stored(path, shard, tensors, _seconds(about["seconds"]))

    def _difference(self, task: Mapping[str, Any]) -> str:
        """How another task differs from this one, in words."""
        for key in ("weights", "rows"):
            if task.get(key) != self.task[key] and task.keys() == self.task.keys():
                return f"it was made with other {key}"
        key = next(key for key in sorted({*task, *self.task}) if task.get(key) != self.task.get(key))
        return f"it was made with {key} {str(task.get(key))[:100]}, and this is {key} {self.task.get(key)}"

    def _check(self, path: Path, shard: Shard, tensors: Tensors) -> None:
        """Refuse tensors of another form, and more rows than the shard has."""
        n = next((tensor.shape[0] for name, tensor in sorted(tensors.items()) if tensor.ndim == 1), -1)
        expected = {name: tuple(n if size is None else size for size in shape) for name, shape in self.layout.items()}
        actual = {name: tuple(tensor.shape) for name, tensor in tensors.items()}
        floats = all(tensor.dtype == torch.float64 for tensor in tensors.values())
        if actual != expected or not floats or not 0 <= n <= len(shard.rows(self.borders)):
            raise MemgenError(f"{path} is damaged: it does not have the results of its rows; delete it, run it again")

    def merged(self, again: str) -> Merged:
        """The results of all rows. `again`: the command of a shard, without its index, for messages."""
        files = sorted(self.folder.glob(f"*{ENDING}")) if self.folder.is_dir() else []
        if not files:
            raise MemgenError(f"there are no shards in {self.folder}{self._others()}; make them with: {again} 0/4")
        stored = [self.read(file) for file in files]
        if len(counts := sorted({one.shard.count for one in stored})) > 1:
            few, many = (next(one.file for one in stored if one.shard.count == n) for n in (counts[0], counts[-1]))
            raise MemgenError(f"{few} and {many} do not belong together: delete those of {counts[0]} or the others")
        by_index: dict[int, Stored] = {}
        for one in stored:
            if (other := by_index.setdefault(one.shard.index, one)) is not one:
                raise MemgenError(f"{other.file} and {one.file} are both shard {one.shard}; delete one of them")
        self._check_complete(by_index, counts[0], again)
        ordered = [by_index[index] for index in range(counts[0])]
        return Merged([one.tensors for one in ordered], sum(one.seconds for one in ordered))

    def _check_complete(self, by_index: Mapping[int, Stored], count: int, again: str) -> None:
        """Raise an error that names the shards without which the results cannot be merged."""
        missing = [str(Shard(index, count)) for index in range(count) if index not in by_index]
        if missing:
            names = ", ".join(missing[:20]) + (f" and {len(missing) - 20:,} more" if len(missing) > 20 else "")
            kind = "shard is" if len(missing) == 1 else "shards are"
            raise MemgenError(f"{len(missing):,} {kind} missing in {self.folder}: {names}; run: {again} {missing[0]}")
        for index in range(count):
            one = by_index[index]
            rows, done = len(one.shard.rows(self.borders)), _rows(self.layout, one.tensors)
            if done < rows:
                raise MemgenError(
                    f"{one.file} is not finished: it has {done:,} of {rows:,} rows; to go on, run: {again} {one.shard}"
                )

    def _others(self) -> str:
        """The folders of other tasks beside this one."""
        beside = self.folder.parent.iterdir() if self.folder.parent.is_dir() else iter(())
        names = sorted(entry.name for entry in beside if any(entry.glob(f"shard-*{ENDING}")))[:10]
        return f" (there are {', '.join(names)})" if names else ""


@dataclass(frozen=True)
class ShardFile:
    """The results of one shard, which are kept while it is computed."""

    shards: Shards
    shard: Shard
    fresh: bool = False
    """Whether what is in the file already is not used."""

    @property
    def rows(self) -> range:
        return self.shard.rows(self.shards.borders)

    def read(self) -> tuple[Tensors | None, float]:
        """The results of the first rows that are there, and the seconds that they took."""
        path = self.shards.file(self.shard)
        if self.fresh or not path.exists():
            return None, 0.0
        stored = self.shards.read(path)
        return stored.tensors, stored.seconds

    def write(self, tensors: Tensors, seconds: float) -> None:
        about = {
            "memgen": memgen.__version__,
            "shard": str(self.shard),
            "task": json.dumps(self.shards.task, sort_keys=True),
            "seconds": repr(seconds),
        }
        save_tensors(self.shards.file(self.shard), tensors, about)


def empty(layout: Layout) -> Tensors:
    """The results of no rows."""
    return {
        name: torch.zeros([0 if size is None else size for size in shape], dtype=torch.float64)
        for name, shape in layout.items()
    }


def _rows(layout: Layout, tensors: Tensors) -> int:
    name, shape = next(iter(layout.items()))
    return tensors[name].shape[shape.index(None)]


def _seconds(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def rows_sha256(rows: Rows) -> str:
    """A hash of the values of rows; all missing values are alike.

    >>> from memgen.core.batch import Batch
    >>> rows_sha256(Batch.of(torch.tensor([[0.0, torch.nan]])))[:8]
    'ada0cd51'
    """
    digest = hashlib.sha256(f"{len(rows)}".encode())
    for part in pieces(rows):
        x = rows.rows(part).values.double() + 0.0  # turns -0.0 into 0.0
        x = x.where(~x.isnan(), torch.nan).contiguous()
        digest.update(f"{tuple(x.shape)}".encode())
        digest.update(x.numpy().data)
    return digest.hexdigest()
