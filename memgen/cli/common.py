"""What several commands share: speaking, rows to score, checking where output may go."""

from __future__ import annotations

import argparse
import math
import sys
from pathlib import Path

import torch

from memgen.cli.reading import read_for
from memgen.data import Dataset
from memgen.errors import MemgenError
from memgen.runs.run import Saved


def say(options: argparse.Namespace, text: str = "") -> None:
    """A line for people: on stdout, or with --json on stderr."""
    print(text, file=sys.stderr if options.json else sys.stdout, flush=True)


def count(n: int, what: str) -> str:
    """
    >>> count(1, "epoch"), count(2000, "epoch")
    ('1 epoch', '2,000 epochs')
    """
    return f"{n:,} {what}" if n == 1 else f"{n:,} {what}s"


def rows_to_score(saved: Saved, split: str, limit: int | None) -> tuple[torch.Tensor, Dataset]:
    """The rows of a split that log p(x) is asked of, binarised once where they must be."""
    data = read_for(saved, None, split).data
    return data.fixed(split, limit).x, data


def image_shape(saved: Saved) -> tuple[int, ...]:
    """Height and width of the images that the model was trained on, and channels; () if its columns are none."""
    shape = saved.form.shape
    return shape if math.prod(shape) == saved.model.likelihood.columns else ()


def require_images(saved: Saved) -> tuple[int, ...]:
    if not (shape := image_shape(saved)):
        columns = saved.model.likelihood.columns
        other = "a table: --csv FILE.csv" if saved.form.columns is not None else "arrays, such as --npy"
        raise MemgenError(f"this model has {columns} columns that are no images to draw; ask for {other}")
    return shape


def check_output(path: Path | None, ending: str, overwrite: bool = True) -> None:
    """Before hours of work: there must be a folder to write into. Figures are drawn anew; tables and arrays might be
    the user's own, and are replaced if told to."""
    if path is None:
        return
    if path.suffix.lower() != ending:
        raise MemgenError(f"{path}: give it a name that ends in {ending}")
    if not path.parent.is_dir():
        raise MemgenError(f"there is no folder {path.parent} to write {path.name} into")
    if path.is_dir():
        raise MemgenError(f"{path} is a folder, not a file to write")
    if path.exists() and not overwrite:
        raise MemgenError(f"{path} exists already; choose another name, or say --overwrite")
