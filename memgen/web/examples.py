"""Example rows of a model: held-out data where they are on this machine, otherwise rows drawn from the model."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor

from memgen.core.batch import UNKNOWN
from memgen.core.model import DGM
from memgen.data import Dataset, source
from memgen.data.own import is_path, read_own
from memgen.data.words import parse_kinds, parse_size
from memgen.errors import MemgenError
from memgen.runs.modelfile import Saved
from memgen.tasks.sampling import sample, sample_with_codes
from memgen.training.prepare import as_read_by
from memgen.web.service import likeliest

GENERATED = 400
"""Number of rows drawn from a model whose data are not on this machine."""
TRAINING = 10_000
"""Number of training rows, from the first on, among which nearest neighbours are searched."""


@dataclass(frozen=True)
class Examples:
    rows: Float[Tensor, "N D"]
    """Binarised if the likelihood needs it: the values that are scored."""
    grey: Float[Tensor, "N D"]
    """Before binarisation: the values that the recognition net reads."""
    label: Int[Tensor, " N"] | None
    classes: tuple[str, ...]
    train: Float[Tensor, "M D"] | None
    about: str

    def labels(self, rows: slice) -> list[str] | None:
        """The classes of some rows; "" if a row's class is unknown."""
        if self.label is None:
            return None
        return ["" if i == UNKNOWN else self.classes[i] for i in self.label[rows].tolist()]

    @property
    def present(self) -> list[str]:
        """The classes that rows have, in order."""
        return [] if self.label is None else [self.classes[i] for i in self.label.unique().tolist() if i != UNKNOWN]

    def of_class(self, name: str) -> Float[Tensor, "n D"]:
        """The grey rows of a class."""
        if self.label is None or name not in self.classes:
            raise MemgenError(f"there is no class {name!r}; classes: {', '.join(self.classes) or 'none'}")
        rows = self.grey[self.label == self.classes.index(name)]
        if not len(rows):
            raise MemgenError(f"there is no row of class {name!r}")
        return rows

    def row(self, index: int) -> Float[Tensor, "1 D"]:
        if index >= len(self.rows):
            raise MemgenError(f"there is no row {index}: there are {len(self.rows):,}, counted from 0")
        return self.rows[index : index + 1]


def examples_of(saved: Saved, data: Dataset | None) -> Examples:
    if data is None or (saved.form.shape and data.test is None):
        return generated_examples(saved, "The data are not on this machine")
    split = "test" if data.test is not None else "train"
    grey = data.some(split)
    kept = torch.ones(len(grey), dtype=torch.bool) if saved.model.mask else ~grey.isnan().any(1)
    if not bool(kept.any()):
        return generated_examples(saved, f"No row of {data.name} is complete")
    label = data.labels.get(split)
    classes = data.classes or (() if label is None else tuple(str(i) for i in range(int(label.max()) + 1)))
    scale = f", {data.binarisation}" if saved.form.shape else ""
    about = f"{data.count(split):,} {'test' if split == 'test' else 'training'} rows of {data.name}{scale}."
    about += "" if bool(kept.all()) else " Rows with missing values are left out."
    return Examples(
        data.fixed(split, len(grey)).values[kept],
        grey[kept],
        None if label is None else label[: len(grey)][kept],
        tuple(classes),
        data.rows("train", TRAINING),
        about,
    )


def generated_examples(saved: Saved, why: str) -> Examples:
    rows = generated(saved.model, bool(saved.form.shape))
    return Examples(rows, rows, None, (), None, f"{why}: these rows were drawn from the model itself.")


def generated(model: DGM, images: bool) -> Float[Tensor, "n D"]:
    """For images the mode of p(x|z) for draws of z from the prior; for tables draws of x."""
    if not images:
        return sample(model, GENERATED, seed=1, draw=True)
    return likeliest(model, sample_with_codes(model, GENERATED, seed=1).z[0])


class Finder:
    """The data of models, read once if they are on this machine. Nothing is downloaded."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.known: dict[str, Dataset | None] = {}

    def __call__(self, saved: Saved) -> Dataset | None:
        name = saved.recipe.data.name
        with self.lock:
            if name not in self.known:
                try:
                    self.known[name] = _user_data(saved) if is_path(name) else _published(name)
                except MemgenError:
                    self.known[name] = None
            data = self.known[name]
        fits = data is not None and data.train.shape[1] == saved.model.likelihood.columns
        return as_read_by(saved.model, data) if data is not None and fits else None


def _published(name: str) -> Dataset | None:
    home = source(name)
    return None if home.files and home.find() is None else home.load()


def _user_data(saved: Saved) -> Dataset | None:
    settings, origin = saved.recipe.data, saved.origin
    places = [Path(settings.name), *([] if origin is None else [origin.path])]
    path = next((place for place in places if place.exists()), None)
    if path is None:
        return None
    return read_own(
        path,
        size=parse_size(settings.size),
        levels=saved.form.levels if saved.form.shape else 0,
        likelihood=saved.recipe.model.likelihood,
        kinds=parse_kinds(settings.kinds) if saved.form.columns is None else None,
        ignore=settings.ignore,
        locale=settings.locale,
        header=settings.header,
        columns=saved.form.columns,
    )
