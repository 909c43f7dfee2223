"""The models that are served, each with example rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

import torch
from jaxtyping import Float, Int
from torch import Tensor

from memgen.core.model import DGM, count_parameters
from memgen.data import Dataset, source
from memgen.data.own import is_path, read_own
from memgen.data.words import parse_kinds, parse_size
from memgen.errors import MemgenError
from memgen.runs import zoo
from memgen.runs.modelfile import Saved
from memgen.runs.run import read_model
from memgen.tasks.patterns import scaled_patterns
from memgen.training.prepare import as_read_by
from memgen.web import service

DEFAULT = ("zoo:mnist-mem-vae", "zoo:mnist-vae")
DREAMT = 400
"""Number of rows drawn from a model whose data are not on this machine."""
NEIGHBOURS = 10_000
"""Number of training rows, from the first on, among which nearest neighbours are searched."""

Answer = TypeVar("Answer")


@dataclass(frozen=True)
class Pool:
    """Example rows: held-out data, or rows drawn from the model if the data are not on this machine."""

    rows: Float[Tensor, "N D"]
    """Binarised if the likelihood needs it: the values that are scored."""
    grey: Float[Tensor, "N D"]
    """Before binarisation: the values that the recognition net reads."""
    labels: Int[Tensor, " N"] | None
    classes: tuple[str, ...]
    train: Float[Tensor, "M D"] | None
    about: str
    real: bool


@dataclass
class Shown:
    """A model that is served."""

    name: str
    saved: Saved
    find: Callable[[Saved], Dataset | None]
    lock: Any = field(default_factory=threading.RLock)
    answers: dict[Any, Any] = field(default_factory=dict)
    """Results that are valid until the server stops, by key."""

    @property
    def model(self) -> DGM:
        return self.saved.model

    @property
    def shape(self) -> tuple[int, ...]:
        return self.saved.form.shape

    @property
    def ink(self) -> bool:
        """Whether an image is ink on paper rather than light."""
        return bool(self.shape) and self.model.likelihood.binary

    def once(self, key: Any, make: Callable[[], Answer]) -> Answer:
        """The value of make() at the first call with this key."""
        with self.lock:
            if key not in self.answers:
                self.answers[key] = make()
            answer: Answer = self.answers[key]
            return answer

    def recent(self, key: Any, make: Callable[[], Answer]) -> Answer:
        """The value of make(); computed again only if the key differs from that of the last call."""
        latest = self.answers.get("recent")
        if latest is None or latest[0] != key:
            latest = self.answers["recent"] = (key, make())
        answer: Answer = latest[1]
        return answer

    @property
    def pool(self) -> Pool:
        return self.once("pool", lambda: _pool(self.saved, self.find(self.saved)))

    @cached_property
    def about(self) -> dict[str, Any]:
        """The description that the page shows."""
        form, model = self.saved.form, self.model
        return {
            "name": self.name,
            "shape": list(form.shape),
            "columns": model.likelihood.columns,
            "latent": list(model.latent),
            "ink": self.ink,
            "parameters": count_parameters(model),
            "data": self.saved.recipe.data.name.rsplit("/", 1)[-1],
            "likelihood": self.saved.recipe.model.likelihood,
            "bound": "IWAE" if self.saved.recipe.objective.samples > 1 else "VAE",
            "memory": [{"name": name, "slots": slots} for name, slots in service.memory(model)],
            "patterns": list(scaled_patterns(form.shape)) if form.shape else [],
            "schema": [] if form.columns is None else [_column(column) for column in form.columns],
            "measured": _measured(self.name),
        }


def _column(column: Any) -> dict[str, Any]:
    return {"name": column.name, "kind": column.kind, "levels": [str(level) for level in column.levels]}


def _measured(name: str) -> dict[str, Any] | None:
    """The published result of a model of the zoo; None for other models."""
    if not name.startswith(zoo.PREFIX):
        return None
    result = zoo.result(name.removeprefix(zoo.PREFIX))
    return {key: result.get(key) for key in ("model", "log_likelihood", "standard_error", "samples", "examples")}


def _pool(saved: Saved, data: Dataset | None) -> Pool:
    if data is None or (saved.form.shape and data.test is None):
        rows = service.dreams(saved.model, DREAMT)
        about = "The data are not on this machine: these rows were drawn from the model itself."
        return Pool(rows, rows, None, (), None, about, False)
    split = "test" if data.test is not None else "train"
    labels = data.labels.get(split)
    classes = data.classes or (() if labels is None else tuple(str(i) for i in range(int(labels.max()) + 1)))
    about = f"{data.count(split):,} {split} rows of {data.name}, {data.binarisation}."
    train, rows = data.rows("train", NEIGHBOURS), data.some(split)
    return Pool(data.fixed(split, len(rows)).values, rows, labels, tuple(classes), train, about, True)


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
                    self.known[name] = _user_data(saved) if is_path(name) else _known(name)
                except MemgenError:
                    self.known[name] = None
            data = self.known[name]
        fits = data is not None and data.train.shape[1] == saved.model.likelihood.columns
        return as_read_by(saved.model, data) if data is not None and fits else None


def _known(name: str) -> Dataset | None:
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


def shelf(paths: Sequence[str]) -> list[Shown]:
    """The models of run folders, model files and the zoo."""
    find = Finder()
    return [Shown(_short(path), read_model(Path(path)), find) for path in paths or DEFAULT]


def _short(path: str) -> str:
    """The model's name on the page: its path without folders.

    >>> _short("zoo:mnist-vae"), _short("/home/me/runs/digits"), _short("model.safetensors")
    ('zoo:mnist-vae', 'digits', 'model')
    """
    return path if path.startswith(zoo.PREFIX) else Path(path).absolute().name.removesuffix(zoo.ENDING)


def row(shown: Shown, image: int | None, pixels: str | None) -> Float[Tensor, "1 D"] | None:
    """The row of a request: row `image` of the pool, or `pixels` in hexadecimal. None if neither is given."""
    if image is not None:
        rows = shown.pool.rows
        if image >= len(rows):
            raise MemgenError(f"there is no row {image}: there are {len(rows):,}, counted from 0")
        return rows[image : image + 1]
    if pixels is None:
        return None
    given = torch.tensor(list(bytes.fromhex(pixels)), dtype=torch.float32)
    if len(given) != shown.model.likelihood.columns:
        raise MemgenError(f"the image has {len(given)} values, the model has {shown.model.likelihood.columns}")
    x = given / 255
    return ((x > 0.5).float() if shown.model.likelihood.binary else x).unsqueeze(0)
