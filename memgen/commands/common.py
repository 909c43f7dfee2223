"""What several commands share: speaking, reading data, checking where output may go."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch

from memgen.data import DATASETS, Dataset, source
from memgen.data.files import Source
from memgen.errors import MemgenError, unknown
from memgen.progress import Progress
from memgen.run import Saved
from memgen.train import as_read_by


def say(options: argparse.Namespace, text: str = "") -> None:
    """A line for people: on stdout, or with --json on stderr."""
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def count(n: int, what: str) -> str:
    """
    >>> count(1, "epoch"), count(2000, "epoch")
    ('1 epoch', '2,000 epochs')
    """
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def load_data(name: str) -> Dataset:
    """A data set, fetched first if it is nowhere on this machine."""
    home = source(name)
    if home.files and home.find() is None:
        fetch(name, home, None)
    return home.load()


def fetch(name: str, home: Source, origin: Path | None) -> Path:
    with Progress(f"fetching {name}", 0, "byte") as progress:
        return home.fetch(origin, lambda done, total: progress.to(done, total=total))


def rows_to_score(saved: Saved, split: str, limit: int | None) -> tuple[torch.Tensor, Dataset]:
    """The rows of a split that log p(x) is asked of, binarised once where they must be."""
    data = data_for(saved, None, split)
    return data.fixed(split, limit), data


def data_for(saved: Saved, name: str | None, split: str = "test") -> Dataset:
    """The run's own data set or another of the same width, as the model reads it; the split must be held out."""
    recipe = saved.recipe
    if split not in ("train", "valid", "test"):
        raise unknown("split", split, ("train", "valid", "test"))
    own = name in (None, recipe.data.name)
    if split == "valid" and own and recipe.data.train_on == "train+valid":
        raise MemgenError("this run trained on train+valid, so its validation rows are not held out; use --split test")
    data = as_read_by(saved.model, load_data(name or recipe.data.name))
    columns = saved.model.likelihood.columns
    if data.train.shape[1] != columns:
        raise MemgenError(f"the data set {data.name} has {data.train.shape[1]} columns, the model has {columns}")
    return data


def image_shape(saved: Saved) -> tuple[int, ...]:
    """Height and width of the images that the model was trained on; () if its columns are none."""
    shape = DATASETS[saved.recipe.data.name].shape
    return shape if math.prod(shape) == saved.model.likelihood.columns else ()


def require_images(saved: Saved) -> tuple[int, ...]:
    if not (shape := image_shape(saved)):
        columns = saved.model.likelihood.columns
        raise MemgenError(f"this model has {columns} columns that are no images to draw; ask for arrays, such as --npy")
    return shape


def check_output(path: Path | None, ending: str | None = None) -> None:
    """Before hours of work: there must be a folder to write into."""
    if path is None:
        return
    if ending is not None and path.suffix.lower() != ending:
        raise MemgenError(f"{path}: give it a name that ends in {ending}")
    if not path.parent.is_dir():
        raise MemgenError(f"there is no folder {path.parent} to write {path.name} into")
    if ending is not None and path.is_dir():
        raise MemgenError(f"{path} is a folder, not a file to write")


def finite(number: float) -> float | None:
    """For JSON, which has no NaN."""
    return number if math.isfinite(number) else None
