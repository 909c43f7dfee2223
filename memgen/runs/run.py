"""A run folder, which describes itself; and model files.

recipe.toml              every setting
weights.safetensors      the model, with exact batch-norm statistics and the recipe inside
checkpoint.safetensors   everything that a resumed training needs
metrics.jsonl            one line per epoch
likelihood/              per-example results of evaluations
data.json                of the user's own data: where they lay, their fingerprint, their form
start.json               of a run that began with the weights of another: which they were
"""

from __future__ import annotations

import fcntl
import io
import json
import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from PIL import Image
from torch import Tensor

import memgen
from memgen.core.model import DGM
from memgen.data.documents import parse_record, parse_whole
from memgen.data.form import Form, Origin
from memgen.data.output import is_scrap, remove_scraps, write_atomically
from memgen.errors import MemgenError, reason
from memgen.recipes.build import build, form_of
from memgen.recipes.settings import Recipe
from memgen.runs import zoo
from memgen.runs.finite import finite
from memgen.runs.storage import CHECKSUM, load_tensors, save_tensors
from memgen.tasks.density import Likelihood
from memgen.training.fit import Epoch, State

RECIPE, WEIGHTS, CHECKPOINT, METRICS = "recipe.toml", "weights.safetensors", "checkpoint.safetensors", "metrics.jsonl"
DATA, START = "data.json", "start.json"

EVERY_EPOCH = ("epoch", "bound", "seconds")
"""What every line of metrics.jsonl has."""

Kinds = dict[str, type | tuple[type, ...]]
COUNTED: Kinds = {"epoch": int, "step": int, "seconds": (int, float)}
EXECUTED: Kinds = {"device": str, "threads": int, "torch": str, "path": str}
"""What a checkpoint says of itself, with the type of each."""
STARTED: Kinds = {"recipe": str, "weights_sha256": str, "epochs": int, "seed": int}
"""What start.json says."""
MOST_THREADS = 1024

FORMAT = "2"
"""Of checkpoints."""


@dataclass(frozen=True)
class Saved:
    """A model file."""

    model: DGM
    recipe: Recipe
    epoch: int
    weights: str
    """Which weights it holds: "raw" or "averaged"."""
    sha256: str
    """Of its tensors and of what the file says about them."""
    form: Form
    """Of the rows that it was trained on."""
    origin: Origin | None = None
    """The user's own data, where its run folder knows of them."""
    trained_on: str = ""
    """The fingerprint of the user's own data, so that they are known again; "" for data sets."""


def kind_of_weights(recipe: Recipe) -> str:
    """Which weights a training by this recipe results in."""
    return "averaged" if recipe.training.ema else "raw"


def save(
    model: DGM,
    path: str | Path,
    recipe: Recipe,
    *,
    epoch: int | None = None,
    form: Form | None = None,
    trained_on: str = "",
) -> None:
    """Write a model with its recipe as one safetensors file; `epoch`: how far it was trained, if not to the end;
    `form`: of its rows, if they are not those of a data set (`Form.of(data)`); `trained_on`: the fingerprint of their
    file.

    >>> import tempfile
    >>> recipe = Recipe().override(["model.hidden=[8]", "model.latent=2"])
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(build(recipe), Path(folder) / "model.safetensors", recipe)
    ...     load(Path(folder) / "model.safetensors").latent
    (2,)
    """
    form = form_of(recipe) if form is None else form
    _check_fit(build(recipe, model.likelihood.columns, form.kinds), model.state_dict(), "the model")
    about = {
        "memgen": memgen.__version__,
        "recipe": recipe.to_toml(),
        "columns": str(model.likelihood.columns),
        "epoch": str(recipe.training.epochs if epoch is None else epoch),
        "weights": kind_of_weights(recipe),
        "form": form.to_json(),
        **({"trained_on": trained_on} if trained_on else {}),
    }
    save_tensors(Path(path), model.state_dict(), about)


def load(path: str | Path, device: str = "cpu") -> DGM:
    """The model of a run folder, of a model file or of the zoo (`zoo:NAME`), ready to evaluate."""
    return read_model(Path(path), device).model


def read_model(path: Path, device: str = "cpu") -> Saved:
    """The model with what its file says of it."""
    path = zoo.resolve(path)
    file = path / WEIGHTS if path.is_dir() else path
    if path.is_dir() and not file.exists():
        Run.open(path)
        raise MemgenError(f"the run {path} has no weights yet; go on training with: memgen train --resume --out {path}")
    if not path.exists():
        raise MemgenError(f"there is no run at {path}")
    tensors, about = load_tensors(file)
    if not {"recipe", "columns", "epoch", "weights"} <= about.keys():
        raise MemgenError(f"{file} is not a memgen model: it has no recipe inside")
    recipe = Recipe.from_toml(about["recipe"], f"{file} (recipe inside)")
    run = Run.open(path) if path.is_dir() else None
    if run is not None and (changed := run.recipe.differences(recipe)):
        raise MemgenError(f"{file} holds another model than {path / RECIPE} describes ({'; '.join(changed)})")
    # Before 0.4.0 models were of data sets only, and had no form inside.
    form = Form.from_json(about["form"], f"{file} (form inside)") if "form" in about else form_of(recipe)
    columns = parse_whole(about["columns"], f"{file} (columns inside)", 1)
    check_columns(form, columns, file)
    model = build(recipe, columns, form.kinds).eval()
    _check_fit(model, tensors, file)
    model.load_state_dict(tensors)
    origin = None if run is None else run.origin
    trained_on = about.get("trained_on", "") if origin is None else origin.fingerprint
    epoch = parse_whole(about["epoch"], f"{file} (epoch inside)")
    weights, sha256 = about["weights"], about[CHECKSUM]
    return Saved(model.to(device), recipe, epoch, weights, sha256, form, origin, trained_on)


def check_columns(form: Form, columns: int, what: object) -> None:
    """The form that a file tells of, and the number of columns, must agree."""
    expected = len(form.columns) if form.columns is not None else math.prod(form.shape) if form.shape else columns
    if expected != columns:
        raise MemgenError(f"{what} is damaged: its form has {expected:,} columns, its model {columns:,}")


def _check_fit(model: DGM, tensors: dict[str, Tensor], what: object) -> None:
    """Say in one line which tensors do not fit the model of a recipe."""
    own = model.state_dict()
    for name in sorted(own.keys() ^ tensors.keys()):
        state = "lacks" if name in own else "has an unknown"
        raise MemgenError(f"{what} does not fit its recipe: it {state} tensor {name}")
    for name, value in own.items():
        if value.shape != tensors[name].shape:
            found, wanted = tuple(tensors[name].shape), tuple(value.shape)
            raise MemgenError(f"{what} does not fit its recipe: {name} has shape {found}, not {wanted}")


def _shapes(difference: str) -> bool:
    """Whether settings that differ make another function of the same tensors."""
    return difference.startswith("model.") and not difference.startswith("model.start ")


def warm_start(model: DGM, start: Saved, recipe: Recipe) -> None:
    """Give the model of a recipe the weights of another that has its form, trained with another objective, say."""
    _check_fit(model, start.model.state_dict(), "the model to start from")
    if changed := [text for text in start.recipe.differences(recipe) if _shapes(text)]:
        raise MemgenError(f"the model to start from is another ({'; '.join(changed)})")
    model.load_state_dict(start.model.state_dict())


class Checkpoint(NamedTuple):
    """Everything that a resumed training needs."""

    tensors: dict[str, Tensor]
    counts: dict[str, Any]
    execution: dict[str, Any]
    """How it was computed: device, threads, version of torch, path."""


@dataclass(frozen=True)
class Run:
    """The files of a run."""

    folder: Path
    recipe: Recipe
    origin: Origin | None = None
    """The user's own data; None for a data set."""

    @property
    def form(self) -> Form:
        """Of its rows."""
        return form_of(self.recipe) if self.origin is None else self.origin.form

    @staticmethod
    def create(folder: Path, recipe: Recipe, origin: Origin | None = None) -> Run:
        """Start a run in a folder that does not exist or is empty."""
        Run.refuse_taken(folder)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise MemgenError(f"cannot make the folder {folder}: {error.strerror}") from None
        write_atomically(folder / RECIPE, recipe.to_toml().encode())
        return Run(folder, recipe).remembering(origin)

    def remembering(self, origin: Origin | None) -> Run:
        """The run, with its folder saying where its data lie."""
        if origin is not None and origin != self.origin:
            write_atomically(self.folder / DATA, origin.to_json().encode())
        return replace(self, origin=origin)

    def remember_start(self, start: Saved) -> None:
        about = {
            "recipe": self.recipe.training.start_from,
            "weights_sha256": start.sha256,
            "epochs": start.epoch,
            "seed": start.recipe.training.seed,
        }
        write_atomically(self.folder / START, (json.dumps(about) + "\n").encode())

    @property
    def start(self) -> dict[str, Any] | None:
        """Which weights it began with, if they were those of another run."""
        path = self.folder / START
        try:
            return parse_record(path.read_text("utf-8"), STARTED, path) if path.exists() else None
        except (OSError, UnicodeDecodeError):
            raise MemgenError(f"cannot read {path}: it is damaged") from None

    @staticmethod
    def refuse_taken(folder: Path) -> None:
        """A folder that holds anything is not for a new run: nothing is overwritten."""
        if (folder / RECIPE).exists():
            raise MemgenError(f"{folder} already holds a run; go on with --resume, or choose another --out")
        # A start that was killed may have left a file that was never finished.
        if folder.exists() and (not folder.is_dir() or not all(is_scrap(entry.name) for entry in folder.iterdir())):
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
        """Keep a second training away from this folder; the lock goes with the process, however it ends."""
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
        """The result so far; its batch-norm statistics must have been collected."""
        epoch = state.epoch if state.best is None else state.best_epoch
        trained_on = "" if self.origin is None else self.origin.fingerprint
        save(state.chosen, self.folder / WEIGHTS, self.recipe, epoch=epoch, form=self.form, trained_on=trained_on)

    def weights_are_whole(self) -> bool:
        try:
            load_tensors(self.folder / WEIGHTS)
        except MemgenError:
            return False
        return True

    def save_checkpoint(self, state: State, execution: dict[str, Any]) -> None:
        counts = {"epoch": state.epoch, "step": state.step, "seconds": state.seconds}
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
        """Bring a fresh state to the checkpoint, and cut metrics.jsonl back to it."""
        if checkpoint is not None:
            try:
                state.restore(checkpoint.tensors)
            except (RuntimeError, KeyError, IndexError, AttributeError, TypeError, ValueError) as error:
                raise MemgenError(f"{self.folder / CHECKPOINT} does not fit the recipe: {reason(error)}") from None
            counts = checkpoint.counts
            state.epoch, state.step, state.seconds = counts["epoch"], counts["step"], counts["seconds"]
        kept = [line for line in self.metrics() if line["epoch"] <= state.epoch]
        if len(kept) != state.epoch:
            raise MemgenError(f"{self.folder / METRICS} lacks epochs that {CHECKPOINT} counts; it has been altered")
        write_atomically(self.folder / METRICS, "".join(json.dumps(line) + "\n" for line in kept).encode())

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
        """The lines of metrics.jsonl; what follows a line cut short by a kill does not count."""
        path = self.folder / METRICS
        try:
            lines = path.read_text("utf-8").splitlines() if path.exists() else []
        except (OSError, UnicodeDecodeError):
            raise MemgenError(f"cannot read {path}: it is not a readable text file") from None
        complete: list[dict[str, Any]] = []
        for line in lines:
            try:
                found = json.loads(line)
            except (ValueError, RecursionError):
                break
            if not isinstance(found, dict) or not all(isinstance(found.get(key), int | float) for key in EVERY_EPOCH):
                break
            complete.append(found)
        return complete

    def kept_scores(self, split: str, seed: int, sha256: str) -> dict[int, int]:
        """Evaluations of these weights that are kept: importance samples -> rows from the first on."""
        found = {}
        for file in (self.folder / "likelihood").glob(f"{split}-*-seed{seed}.safetensors"):
            number = file.name.split("-")[1]
            kept = self.scores(split, int(number), seed, sha256).read()[0] if number.isdecimal() else None
            if kept is not None:
                found[int(number)] = len(kept.log_p)
        return found

    def scores(self, split: str, samples: int, seed: int, sha256: str, other: str = "") -> Scores:
        """Results of an evaluation; those on `other` data than the run's own, by their fingerprint, lie apart."""
        name = f"{split}-{samples}-seed{seed}{other and '-on-'}{other[:16]}.safetensors"
        return Scores(self.folder / "likelihood" / name, samples, sha256)


def _read_origin(path: Path) -> Origin | None:
    if not path.exists():
        return None
    try:
        return Origin.from_json(path.read_text("utf-8"), path)
    except (OSError, UnicodeDecodeError):
        raise MemgenError(f"cannot read {path}: it is not a readable text file") from None


@dataclass(frozen=True)
class Scores:
    """Per-example results of an evaluation, kept so that it can be interrupted, continued, and compared in pairs."""

    file: Path
    samples: int
    weights: str
    """sha256 of the weights that were scored: results of others do not count."""

    def read(self) -> tuple[Likelihood | None, float]:
        """What has been scored so far, from the first example on, and the seconds that it took."""
        try:
            tensors, about = load_tensors(self.file)
        except MemgenError:
            return None, 0.0
        if (about.get("weights"), about.get("memgen")) != (self.weights, memgen.__version__):
            return None, 0.0
        bounds = {name.removeprefix("bound."): value for name, value in tensors.items() if name.startswith("bound.")}
        parts = [tensors.get(name) for name in ("log_p", "elbo", "effective")]
        if not _agree([*parts, *bounds.values()]) or not all(K.isdecimal() and len(K) < 10 for K in bounds):
            return None, 0.0
        by_samples = {K: bounds[str(K)] for K in sorted(map(int, bounds))}
        result = Likelihood(self.samples, tensors["log_p"], tensors["elbo"], tensors["effective"], by_samples)
        return result, _seconds(about)

    def write(self, result: Likelihood, seconds: float) -> None:
        try:
            self.file.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise MemgenError(f"cannot make the folder {self.file.parent}: {error.strerror}") from None
        tensors = {"log_p": result.log_p, "elbo": result.elbo, "effective": result.effective}
        tensors |= {f"bound.{K}": values for K, values in result.bounds.items()}
        about = {"weights": self.weights, "memgen": memgen.__version__, "seconds": repr(seconds)}
        save_tensors(self.file, tensors, about)


def _agree(values: list[Tensor | None]) -> bool:
    """Whether every row has one number of each kind."""
    rows = None if values[0] is None else values[0].shape
    return all(v is not None and v.ndim == 1 and v.shape == rows and v.is_floating_point() for v in values)


def _seconds(about: dict[str, str]) -> float:
    try:
        return float(about["seconds"])
    except (KeyError, ValueError):
        return 0.0


def write_png(path: Path, image: Image.Image) -> None:
    content = io.BytesIO()
    image.save(content, "PNG")
    write_atomically(path, content.getvalue())
