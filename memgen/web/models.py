"""The models that are served, each with example rows."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, TypeVar

from memgen.core.model import DGM, count_parameters
from memgen.data import Dataset
from memgen.data.column import Column
from memgen.errors import MemgenError
from memgen.runs import zoo
from memgen.runs.modelfile import Saved
from memgen.runs.run import read_model
from memgen.tasks.inspection import places
from memgen.tasks.patterns import scaled_patterns
from memgen.web.examples import Examples, Finder, examples_of
from memgen.web.service import sharing_weights
from memgen.web.work import Check

DEFAULT = ("zoo:mnist-mem-vae", "zoo:mnist-vae")

Answer = TypeVar("Answer")


@dataclass
class Served:
    """A model that is served."""

    name: str
    saved: Saved
    find: Callable[[Saved], Dataset | None]
    lock: threading.Lock = field(default_factory=threading.Lock)
    locks: dict[Any, threading.RLock] = field(default_factory=dict)
    answers: dict[Any, Any] = field(default_factory=dict)
    """Results that are valid until the server stops, by key."""
    of_thread: threading.local = field(default_factory=threading.local)

    @property
    def model(self) -> DGM:
        return self.saved.model

    @property
    def shape(self) -> tuple[int, ...]:
        return self.saved.form.shape

    @contextmanager
    def view(self, check: Check) -> Iterator[DGM]:
        """The copy of the model that belongs to this thread: modules of its own around the same weights. Hooks on it
        do not affect other requests. Every pass through P begins with a check."""
        if not hasattr(self.of_thread, "model"):
            self.of_thread.model = sharing_weights(self.model)
        model: DGM = self.of_thread.model
        handle = model.p[0].register_forward_pre_hook(lambda module, inputs: check())
        try:
            yield model
        finally:
            handle.remove()

    def once(self, key: Any, make: Callable[[], Answer]) -> Answer:
        """The value of make() at the first call with this key. Other threads that ask for the same key wait for it."""
        with self.lock:
            of_key = self.locks.setdefault(key, threading.RLock())
        with of_key:
            if key not in self.answers:
                self.answers[key] = make()
            answer: Answer = self.answers[key]
            return answer

    @property
    def examples(self) -> Examples:
        return self.once("examples", lambda: examples_of(self.saved, self.find(self.saved)))

    @cached_property
    def about(self) -> dict[str, Any]:
        """The description that the page shows."""
        form, model = self.saved.form, self.model
        return {
            "name": self.name,
            "shape": list(form.shape),
            "columns": model.likelihood.columns,
            "latent": list(model.latent),
            "ink": bool(form.shape) and model.likelihood.binary,
            "parameters": count_parameters(model),
            "data": self.saved.recipe.data.name.rsplit("/", 1)[-1],
            "memory": [{"name": place.name, "slots": place.slots} for place in places(model)],
            "patterns": list(scaled_patterns(form.shape)) if form.shape else [],
            "schema": [] if form.columns is None else [_column(column) for column in form.columns],
            "measured": _measured(self.name),
        }


def _column(column: Column) -> dict[str, Any]:
    return {"name": column.name, "kind": column.kind, "levels": [str(level) for level in column.levels]}


def _measured(name: str) -> dict[str, Any] | None:
    """The published result of a model of the zoo; None for other models."""
    if not name.startswith(zoo.PREFIX):
        return None
    result = zoo.result(name.removeprefix(zoo.PREFIX))
    return {key: result.get(key) for key in ("log_likelihood", "standard_error")}


def load(paths: Sequence[str]) -> list[Served]:
    """The models of run folders, model files and the zoo."""
    find = Finder()
    return [Served(short_name(path), read_model(Path(path)), find) for path in paths or DEFAULT]


def short_name(path: str) -> str:
    """The model's name on the page: its path without folders.

    >>> short_name("zoo:mnist-vae"), short_name("/home/me/runs/digits"), short_name("model.safetensors")
    ('zoo:mnist-vae', 'digits', 'model')
    """
    return path if path.startswith(zoo.PREFIX) else Path(path).absolute().name.removesuffix(zoo.ENDING)


def numbered(models: Sequence[Served], index: int) -> Served:
    if index >= len(models):
        raise MemgenError(f"there is no model {index}: {len(models)} are served, counted from 0")
    return models[index]
