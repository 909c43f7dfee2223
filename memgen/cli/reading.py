"""Read the data of a command: a data set by its name, or the user's own data by their path."""

from __future__ import annotations

import hashlib
import math
import sys
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from memgen.data import DATASETS, Columns, Dataset, source
from memgen.data.dataset import SPLITS
from memgen.data.files import Source
from memgen.data.form import Form, Origin
from memgen.data.own import fingerprint, is_path, read_own, with_test
from memgen.data.own_streamed import LARGE
from memgen.data.words import parse_kinds, parse_size
from memgen.errors import MemgenError, unknown
from memgen.recipes.settings import Data
from memgen.runs.modelfile import Saved
from memgen.runs.progress import Progress
from memgen.training.prepare import as_read_by


@dataclass(frozen=True)
class Loaded:
    """Data, with their path and fingerprint."""

    data: Dataset
    form: Form
    path: Path | None = None
    """The path of the user's own data."""
    fingerprint: str = ""
    """The fingerprint of the user's own data."""
    other: str = ""
    """A name for the data if they are not those that the run was trained on; else ""."""

    @property
    def rows(self) -> int:
        return sum(self.data.count(split) for split in SPLITS if getattr(self.data, split) is not None)

    @property
    def origin(self) -> Origin | None:
        """The origin that a run trained on these data stores."""
        return None if self.path is None else Origin(self.path.resolve(), self.fingerprint, self.rows, self.form)


def as_trained(settings: Data) -> Data:
    """[data] of a run. One that does not say whether its rows stay in the file has read them into memory."""
    return replace(settings, stream="no") if settings.stream == "auto" else settings


def load(
    settings: Data,
    likelihood: str = "auto",
    columns: Columns | None = None,
    seen: str | None = None,
    streamed: str | None = None,
) -> Loaded:
    """Read the data of a recipe's [data]. A table is read by the schema `columns`, if given. `seen` is the fingerprint
    of the data that a model was trained on: all rows of other data are then held out. `streamed` is the fingerprint of
    the data that settings.stream is for, if it is not for all.
    """
    if not is_path(settings.name):
        return _load_known(settings.name)
    path = Path(settings.name)
    identity = identity_of(settings) if path.exists() else ""
    with _shown(path) as progress:
        data = read_own(
            path,
            size=parse_size(settings.size),
            levels=settings.levels,
            likelihood=likelihood,
            kinds=parse_kinds(settings.kinds) if columns is None else None,
            header=settings.header,
            ignore=settings.ignore,
            locale=settings.locale,
            columns=columns,
            stream=settings.stream if streamed in (None, identity) else "auto",
            whole=seen is not None and identity != seen,
            tested=bool(settings.test),
            report=lambda done, total: None if progress is None else progress.to(done, total=total),
        )
    if settings.test:
        data = with_test(data, read_test(settings, data))
    return Loaded(data, Form.of(data), path, identity)


def read_test(settings: Data, data: Dataset) -> Dataset:
    """The rows of the file of test rows, in the form of the training data."""
    return read_own(
        Path(settings.test),
        size=parse_size(settings.size),
        levels=data.levels if data.shape else 0,
        likelihood=data.likelihood,
        header=settings.header,
        locale=settings.locale,
        columns=data.columns,
        stream="no",
        whole=True,
    )


def identity_of(settings: Data) -> str:
    """The fingerprint of the data, and of the file of their test rows."""
    own = fingerprint(Path(settings.name))
    return hashlib.sha256(f"{own} {fingerprint(Path(settings.test))}".encode()).hexdigest() if settings.test else own


def _shown(path: Path) -> Progress | nullcontext[None]:
    """The progress of reading what takes long."""
    if path.is_dir():
        return Progress(f"reading {path}", 0, "image", brief=True)
    long = path.exists() and path.stat().st_size > LARGE // 8
    return Progress(f"reading {path}", 0, "row", brief=True) if long else nullcontext()


def _load_known(name: str) -> Loaded:
    """A data set, downloaded first if it is not on this machine."""
    if name not in DATASETS:
        raise MemgenError(f"{unknown('data set', name, DATASETS)}; and there is no file or folder of that name")
    home = source(name)
    if home.files and home.find() is None:
        fetch(name, home, None)
    return Loaded(home.load(), Form(home.shape, levels=home.levels))


def fetch(name: str, home: Source, origin: Path | None) -> Path:
    with Progress(f"fetching {name}", 0, "byte") as progress:
        return home.fetch(origin, lambda done, total: progress.to(done, total=total))


def locate(name: str, origin: Origin | None) -> str:
    """The path of a run's data: that of its recipe, or else the one they had when the run was trained."""
    if not is_path(name) or Path(name).exists():
        return name
    if origin is not None and origin.path.exists():
        return str(origin.path)
    raise MemgenError(f"the data of this run are not at {name} any more; say where they are: --data NEW_PATH")


def data_for(saved: Saved, name: str | None, split: str = "test", whole: bool = False) -> Dataset:
    return read_for(saved, name, split, whole).data


def read_for(saved: Saved, name: str | None, split: str = "test", whole: bool = False) -> Loaded:
    """The run's data, or other data of the same form, as the model reads them. The split must be held out. With
    `whole`, all rows of other data are held out.
    """
    recipe, origin = saved.recipe, saved.origin
    if split not in SPLITS:
        raise unknown("split", split, SPLITS)
    settings = as_trained(replace(recipe.data, name=locate(recipe.data.name, origin) if name is None else name))
    if saved.form.shape and is_path(recipe.data.name) and is_path(settings.name):
        settings = replace(settings, levels=saved.form.levels)
    if settings.test and name is not None and (not is_path(name) or identity_of(settings) != saved.trained_on):
        settings = replace(settings, test="")  # other data have no rows in that file
    named = name in (None, recipe.data.name)
    seen = None if named or not whole else saved.trained_on
    columns = saved.form.columns if is_path(settings.name) else None
    loaded = load(settings, recipe.model.likelihood, columns, seen, None if named else saved.trained_on)
    changed = bool(saved.trained_on) and loaded.fingerprint != saved.trained_on
    if named and changed:
        print(
            f"memgen: warning: {settings.name} has changed since this run was trained on it: its rows, and which of "
            "them are held out, may be others",
            file=sys.stderr,
        )
    same_data = named or (bool(saved.trained_on) and not changed)
    if (
        not same_data and whole and not saved.trained_on and is_path(recipe.data.name)
    ):  # before 0.5.0, or made outside memgen
        print(
            "memgen: warning: this model file does not say which rows it was trained on; if they are in "
            f"{settings.name}, they are scored, too",
            file=sys.stderr,
        )
    if split == "valid" and same_data and recipe.data.train_on == "train+valid":
        raise MemgenError("this run trained on train+valid, so its validation rows are not held out; use --split test")
    data = as_read_by(saved.model, as_formed(loaded.data, saved.form))
    check_width(saved, data)
    other = "" if same_data and not changed else loaded.fingerprint or data.name
    return replace(loaded, data=data, form=saved.form, other=other)


def check_width(saved: Saved, data: Dataset) -> None:
    """Refuse rows that the model cannot read."""
    model, shape = saved.model, saved.form.shape
    if data.train.shape[1] != model.likelihood.columns:
        raise MemgenError(
            f"the data {data.name} have {_words(data.shape, data.train.shape[1])}, the model has "
            f"{_words(shape, model.likelihood.columns)}"
        )
    if not model.mask and any(data.missing(split) for split in SPLITS if getattr(data, split) is not None):
        raise MemgenError(
            f"the data {data.name} have missing values, and the model was trained without model.mask=true"
        )


def _words(shape: tuple[int, ...], columns: int) -> str:
    size = f" (images of {' x '.join(map(str, shape))})" if shape else ""
    return f"{columns} columns{size}"


def as_formed(data: Dataset, form: Form) -> Dataset:
    """The user's data in the form that a model was trained on. Grey images are given colour channels, and a table loses
    its schema, if the model needs it."""
    if len(form.shape) == 3 and data.shape == form.shape[:2]:
        return _mapped(replace(data, shape=form.shape), lambda x: x.repeat_interleave(form.shape[2], 1))
    if data.columns is None or form.columns is not None:
        return data
    columns = data.columns
    for column in columns:
        if column.levels and isinstance(column.levels[0], str):
            raise MemgenError(f"column {column.name!r} holds text, and the model was trained on numbers")
    plain = replace(data, columns=None, shape=form.shape)
    return _mapped(
        plain, lambda x: torch.from_numpy(np.stack(columns.decode(x.numpy()), 1).astype(np.float32)).reshape(x.shape)
    )


def _mapped(data: Dataset, change: Callable[[torch.Tensor], torch.Tensor]) -> Dataset:
    if data.is_streamed:
        raise MemgenError(
            f"{data.name} does not have the form of the model's rows, to which only rows in memory are "
            "converted: convert the file, or use less of it"
        )
    valid, test = (change(data.rows(s)) if getattr(data, s) is not None else None for s in ("valid", "test"))
    return replace(data, train=change(data.rows("train")), valid=valid, test=test)


def rows_to_score(saved: Saved, split: str, limit: int | None) -> tuple[torch.Tensor, Dataset]:
    """The rows of a split to score, binarised once if the likelihood needs it."""
    data = read_for(saved, None, split).data
    return data.fixed(split, limit).values, data


def image_shape(saved: Saved) -> tuple[int, ...]:
    """Height, width and channels of the images that the model was trained on; () if its rows are not images."""
    shape = saved.form.shape
    return shape if math.prod(shape) == saved.model.likelihood.columns else ()


def require_images(saved: Saved) -> tuple[int, ...]:
    if not (shape := image_shape(saved)):
        columns = saved.model.likelihood.columns
        other = "a table: --csv FILE.csv" if saved.form.columns is not None else "arrays, such as --npy"
        raise MemgenError(f"this model has {columns} columns that are no images to draw; ask for {other}")
    return shape
