"""A run folder and its files.

recipe.toml              every setting, stage by stage
weights.safetensors      the model, with exact batch-norm statistics and the recipe inside
checkpoint.safetensors   everything that a resumed training needs
metrics.jsonl            one line per epoch
likelihood/              per-example results of evaluations
data.json                the user's own data: their path, fingerprint and form
start.json               where the initial weights came from, if the run began with those of another
"""

from __future__ import annotations

import copy
import fcntl
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

import memgen
from memgen.core.model import DGM
from memgen.data.documents import parse_record
from memgen.data.form import Form, Origin
from memgen.data.output import is_scrap, remove_scraps, write_atomically
from memgen.errors import MemgenError, reason
from memgen.recipes.build import form_of
from memgen.recipes.settings import Recipe
from memgen.runs import zoo
from memgen.runs.finite import finite
from memgen.runs.kept import Scores
from memgen.runs.modelfile import Reached, Saved, read_file, save
from memgen.runs.storage import load_tensors, save_tensors
from memgen.training.fit import Epoch
from memgen.training.state import State

RECIPE, WEIGHTS, CHECKPOINT, METRICS = "recipe.toml", "weights.safetensors", "checkpoint.safetensors", "metrics.jsonl"
DATA, START = "data.json", "start.json"

EVERY_EPOCH = ("epoch", "bound", "seconds")
"""Keys of numbers in every line of metrics.jsonl."""

Kinds = dict[str, type | tuple[type, ...]]
COUNTED: Kinds = {"stage": int, "epoch": int, "step": int, "seconds": (int, float)}
EXECUTED: Kinds = {"device": str, "threads": int, "torch": str, "path": str}
"""Entries of a checkpoint's metadata, with their types."""
STARTED: Kinds = {"name": str, "weights_sha256": str, "epochs": int, "seed": int, "stages": int}
"""Entries of start.json, with their types."""
MOST_THREADS = 1024

FORMAT = "3"
"""The format of checkpoints."""


def load(path: str | Path, device: str = "cpu") -> DGM:
    """The model of a run folder, of a model file or of the zoo (`zoo:NAME`), ready to evaluate."""
    return read_model(Path(path), device).model


def read_model(path: Path, device: str = "cpu") -> Saved:
    """The model and the metadata of its file."""
    path = zoo.resolve(path)
    if not path.is_dir():
        if not path.exists():
            raise MemgenError(f"there is no run at {path}")
        return read_file(path, device)
    run = Run.open(path)
    if not (path / WEIGHTS).exists():
        raise MemgenError(f"the run {path} has no weights yet; go on training with: memgen train --resume --out {path}")
    saved = read_file(path / WEIGHTS, device)
    if changed := run.recipe.differences(saved.recipe):
        raise MemgenError(f"{path / WEIGHTS} holds another model than {path / RECIPE} describes ({'; '.join(changed)})")
    trained_on = saved.trained_on if run.origin is None else run.origin.fingerprint
    return replace(saved, origin=run.origin, trained_on=trained_on)


class Checkpoint(NamedTuple):
    """Everything that a resumed training needs."""

    tensors: dict[str, Tensor]
    counts: dict[str, Any]
    execution: dict[str, Any]
    """Device, threads, version of torch and path of kernels that the training uses."""


@dataclass(frozen=True)
class Run:
    """The files of a run."""

    folder: Path
    recipe: Recipe
    origin: Origin | None = None
    """The user's own data; None for a data set."""

    @property
    def form(self) -> Form:
        """The form of the rows."""
        return form_of(self.recipe) if self.origin is None else self.origin.form

    @staticmethod
    def create(folder: Path, recipe: Recipe, origin: Origin | None = None, start: dict[str, Any] | None = None) -> Run:
        """Start a run in a folder that does not exist or is empty; `start`: the origin of the initial weights."""
        Run.refuse_taken(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MemgenError(f"cannot make the folder {folder}: {error.strerror}") from None
        if start is not None:
            Run(folder, recipe).remember_start(start)
        write_atomically(folder / RECIPE, recipe.to_toml().encode())
        return Run(folder, recipe).remembering(origin)

    def remembering(self, origin: Origin | None) -> Run:
        """The run with this origin of its data, which is written into its folder."""
        if origin is not None and origin != self.origin:
            write_atomically(self.folder / DATA, origin.to_json().encode())
        return replace(self, origin=origin)

    def remember_start(self, start: dict[str, Any]) -> None:
        """Write where the initial weights came from."""
        write_atomically(self.folder / START, (json.dumps(start) + "\n").encode())

    @property
    def start(self) -> dict[str, Any] | None:
        """Where the initial weights came from, if they were those of another run."""
        path = self.folder / START
        try:
            return parse_record(path.read_text("utf-8"), STARTED, path) if path.exists() else None
        except (OSError, UnicodeDecodeError):
            raise MemgenError(f"cannot read {path}: it is damaged") from None

    @property
    def skipped(self) -> int:
        """Epochs of the stages that the initial weights had already completed."""
        start = self.start
        return 0 if start is None else self.recipe.epochs_before(int(start.get("stages", 0)))

    @staticmethod
    def refuse_taken(folder: Path) -> None:
        """Refuse a folder that is not empty, so that nothing is overwritten."""
        if (folder / RECIPE).exists():
            raise MemgenError(f"{folder} already holds a run; go on with --resume, or choose another --out")
        # A start that was killed may have left an unfinished file, or start.json.
        left = {entry.name for entry in folder.iterdir()} if folder.is_dir() else set()
        if folder.exists() and (not folder.is_dir() or not all(name == START or is_scrap(name) for name in left)):
            raise MemgenError(f"{folder} exists and is not an empty folder; choose another --out")

    @staticmethod
    def open(folder: Path) -> Run:
        if not folder.is_dir():
            what = "is a file, not a run folder" if folder.is_file() else "does not exist"
            raise MemgenError(f"there is no run at {folder}: it {what}")
        if not (folder / RECIPE).is_file():
            raise MemgenError(f"{folder} is not a run: it has no {RECIPE}")
        return Run(folder, Recipe.read(str(folder / RECIPE)), _read_origin(folder / DATA))

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Lock the folder against a second training. The lock ends with the process."""
        try:
            file = (self.folder / ".lock").open("w")
        except OSError as error:
            raise MemgenError(f"cannot write into {self.folder}: {error.strerror}") from None
        with file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise MemgenError(f"another process is training in {self.folder}") from None
            remove_scraps(self.folder)
            yield

    def save_weights(self, state: State) -> None:
        """Write the weights of the current result. Its batch-norm statistics must have been collected."""
        model = state.result
        if state.best.weights is not None:
            model = copy.deepcopy(model)
            model.load_state_dict(state.best.weights)
        trained_on = "" if self.origin is None else self.origin.fingerprint
        save(
            model,
            self.folder / WEIGHTS,
            self.recipe,
            reached=self.reached(state),
            form=self.form,
            trained_on=trained_on,
        )

    def reached(self, state: State) -> Reached:
        """The progress of the weights that are saved."""
        stage = self.recipe.stages[state.stage]
        epoch = state.epoch if state.best.weights is None else state.best.epoch
        finished = state.stage + (state.epoch == stage.training.epochs)
        return Reached(self.recipe.epochs_before(state.stage) + epoch, stage.name, finished)

    def weights_are_whole(self) -> bool:
        try:
            load_tensors(self.folder / WEIGHTS)
        except MemgenError:
            return False
        return True

    def save_checkpoint(self, state: State, execution: dict[str, Any]) -> None:
        counts = {"stage": state.stage, "epoch": state.epoch, "step": state.step, "seconds": state.seconds}
        about = {
            "memgen": memgen.__version__,
            "format": FORMAT,
            "counts": json.dumps(counts),
            "execution": json.dumps(execution),
        }
        save_tensors(self.folder / CHECKPOINT, state.tensors(), about)

    def checkpoint(self) -> Checkpoint | None:
        """The last checkpoint; None in a run that has just begun."""
        if (self.folder / CHECKPOINT).exists():
            tensors, about = load_tensors(self.folder / CHECKPOINT)
            if about.get("format") != FORMAT:
                raise MemgenError(
                    f"{self.folder / CHECKPOINT} was written by memgen {about.get('memgen')}, from whose checkpoints "
                    "this version cannot go on; finish the run with that version, or use its weights as they are"
                )
            counts = parse_record(about.get("counts", ""), COUNTED, f"{self.folder / CHECKPOINT} (counts inside)")
            where = f"{self.folder / CHECKPOINT} (execution inside)"
            execution = parse_record(about.get("execution", ""), EXECUTED, where)
            if execution["threads"] < 1 or execution["threads"] > MOST_THREADS:
                raise MemgenError(f"{where} is damaged: its entry threads is not what it must be")
            return Checkpoint(tensors, counts, execution)
        if (self.folder / WEIGHTS).exists() or self.metrics():
            raise MemgenError(f"{self.folder} has lost its {CHECKPOINT} and cannot be resumed; its weights can be used")
        return None

    def restore(self, state: State, checkpoint: Checkpoint | None) -> None:
        """Load the checkpoint into a fresh state, and remove later lines from metrics.jsonl."""
        if checkpoint is not None:
            try:
                state.restore(checkpoint.tensors)
            except (RuntimeError, KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
                raise MemgenError(f"{self.folder / CHECKPOINT} does not fit the recipe: {reason(error)}") from None
            counts = checkpoint.counts
            state.epoch, state.step, state.seconds = counts["epoch"], counts["step"], counts["seconds"]
        done = self.recipe.epochs_before(state.stage) + state.epoch
        lines = [line for line in self.metrics() if line["epoch"] <= done]
        if len(lines) != done - self.skipped:
            raise MemgenError(f"{self.folder / METRICS} lacks epochs that {CHECKPOINT} counts; it has been altered")
        write_atomically(self.folder / METRICS, "".join(json.dumps(line) + "\n" for line in lines).encode())

    def log(self, epoch: Epoch) -> None:
        line = {key: value for key, value in finite(epoch._asdict()).items() if value is not None}
        try:
            with (self.folder / METRICS).open("a") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise MemgenError(
                f"cannot write {self.folder / METRICS}: {error.strerror}; the checkpoint is whole"
            ) from None

    def metrics(self) -> list[dict[str, Any]]:
        """The lines of metrics.jsonl. Those from the first incomplete line on are ignored."""
        path = self.folder / METRICS
        try:
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError):
            raise MemgenError(f"cannot read {path}: it is not a readable text file") from None
        complete: list[dict[str, Any]] = []
        for line in lines:
            try:
                record = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(record, dict) or not all(isinstance(record.get(key), int | float) for key in EVERY_EPOCH):
                break
            complete.append(record)
        return complete

    def kept_scores(self, split: str, seed: int, sha256: str) -> dict[int, int]:
        """Stored evaluations of these weights: number of importance samples -> number of rows scored."""
        rows = {}
        for file in (self.folder / "likelihood").glob(f"{split}-*-seed{seed}.safetensors"):
            number = file.name.split("-")[1]
            likelihood = self.scores(split, int(number), seed, sha256).read()[0] if number.isdecimal() else None
            if likelihood is not None:
                rows[int(number)] = len(likelihood.log_p)
        return rows

    def scores(self, split: str, samples: int, seed: int, sha256: str, other: str = "") -> Scores:
        """The file of an evaluation's results. `other`: the fingerprint of data other than those of the run."""
        name = f"{split}-{samples}-seed{seed}{other and '-on-'}{other[:16]}.safetensors"
        return Scores(self.folder / "likelihood" / name, samples, sha256)


def _read_origin(path: Path) -> Origin | None:
    if not path.exists():
        return None
    try:
        return Origin.from_json(path.read_text("utf-8"), path)
    except (OSError, UnicodeDecodeError):
        raise MemgenError(f"cannot read {path}: it is not a readable text file") from None
