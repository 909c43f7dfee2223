"""A job is trained, scored as the paper did, and analysed."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from benchmarks.speed.machine import describe
from memgen.data import Dataset, dataset
from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from memgen.recipes.settings import Recipe
from memgen.report.figures.base import make_folder
from memgen.runs import zoo
from memgen.runs.finite import as_json
from memgen.runs.modelfile import Saved
from memgen.runs.run import CHECKPOINT, WEIGHTS, Run, read_model
from memgen.runs.session import Options, Session, Start, choose_device, train_in
from memgen.runs.storage import load_tensors, save_tensors
from memgen.training.prepare import as_read_by, prepare
from reproduction.analyses import ANALYSES
from reproduction.job import MADE, Job, Place, read_result
from reproduction.results import (
    about,
    beside,
    commit,
    compared,
    legs,
    recipe_sha256,
    score_as,
)

CHECKPOINT_EVERY = 120
LIKELIHOOD = "likelihood"
"""What is kept of every example beside the analyses."""


def data_of(saved: Saved) -> Dataset:
    """The data set that a model was trained on, as it reads it."""
    return as_read_by(saved.model, dataset(saved.recipe.data.name))


def train(job: Job, place: Place) -> tuple[Run, Saved]:
    """Train the job to its end, after the one whose weights it begins with; goes on where it was."""
    folder, before = job.run(place), job.before
    begun = (folder / CHECKPOINT).exists()
    if before is None or (begun and not before.run(place).exists()):
        return train_folder(folder, job.recipe, place)
    model = None if before.run(place).exists() else shipped(before)
    start = train(before, place)[1] if model is None else read_model(Path(zoo.PREFIX + model))
    if begun and started_with(folder) != start.sha256:
        raise MemgenError(f"{folder} began with other weights than {before.run(place)} has now; move it away")
    name = str(before.run(place)) if model is None else zoo.PREFIX + model
    return train_folder(folder, job.recipe, place, Start(start, name), legs(before, start, model, place))


def shipped(job: Job) -> str | None:
    """The model of the zoo that has the weights of a job, if its recipe is still theirs: other rows may begin with them
    where its run is not at hand."""
    for name in dict.fromkeys((job.row.name, job.shipped_as)):
        if name in zoo.names() and zoo.result(name)["recipe_sha256"] == recipe_sha256(job.recipe):
            return name  # the recipe's hash covers its seed and its split
    return None


def started_with(folder: Path) -> str:
    """The hash of the weights that a run began with."""
    return str((Run.open(folder).start or {}).get("weights_sha256"))


def train_folder(
    folder: Path, recipe: Recipe, place: Place, start: Start | None = None, before: Sequence[dict[str, Any]] = ()
) -> tuple[Run, Saved]:
    """Train a recipe in a run folder, from its start, after the trainings `before`, or from where it is."""

    def begun(session: Session) -> None:
        if not (folder / CHECKPOINT).exists():  # also where it was killed before it could say this
            write_atomically(folder / MADE, as_json({"commit": commit(), "hardware": describe(), "before": before}))

    ready = prepare(recipe, dataset(recipe.data.name))
    options = Options(place.device, checkpoint_every=CHECKPOINT_EVERY, compiled=place.compiled)
    run = train_in(folder, ready, options, start=start, begun=begun)
    return run, read_model(folder, choose_device(place.device))


def reproduce(job: Job, place: Place) -> dict[str, Any]:
    """Everything about a job, kept as it comes; what is there already is not done again."""
    path = job.result(place)
    record = read_result(path)
    if record is not None and current(job, record):
        lacking, there = missing(job, record), (job.run(place) / CHECKPOINT).exists()
        if not lacking and (not there or examples(job, place, LIKELIHOOD, record["weights_sha256"])):
            return record
        if not there:
            raise MemgenError(
                f"{path} lacks {', '.join(lacking)}, and its run is not in {place.runs}: to train it again would "
                "replace the number; give other --results"
            )
    run, saved = train(job, place)
    data = data_of(saved)
    if record is not None and current(job, record) and record["weights_sha256"] != saved.sha256:
        raise MemgenError(
            f"{path} was measured with other weights than {run.folder} has, and would be replaced; give other --results"
        )
    if record is None or not current(job, record):
        record = about(job, run, saved, data, place)
        result, seconds = score_as(job.row.scorings[0], run, saved, data)
        record |= compared(job.row, result, seconds)
        keep_examples(job, place, saved, LIKELIHOOD, {"log_p": result.log_p, "elbo": result.elbo})
        keep(path, record)
    if not examples(job, place, LIKELIHOOD, saved.sha256):
        result, _ = score_as(job.row.scorings[0], run, saved, data)
        keep_examples(job, place, saved, LIKELIHOOD, {"log_p": result.log_p, "elbo": result.elbo})
    for scoring in job.row.scorings[1:]:
        if str(scoring.samples) not in record["more"]:
            record["more"][str(scoring.samples)] = beside(scoring, job.row.scorings[0], run, saved, data)
            keep(path, record)
    for name in job.analyses:
        if name not in record["analyses"]:
            numbers, figures, by_example = ANALYSES[name](run, saved, data)
            keep_examples(job, place, saved, name, by_example)
            for figure in figures:
                make_folder(place.results / "figures")
                write_atomically(place.results / "figures" / f"{job.shipped_as}-{figure.name}.png", figure.png)
            captions = {f"{job.shipped_as}-{figure.name}.png": figure.caption for figure in figures}
            record["analyses"][name] = numbers | {"figures": captions}
            keep(path, record)
    return record


def examples_of(job: Job, place: Place, analysis: str) -> Path:
    """The file with an analysis's numbers of every test example, for pairs. It is kept with the results: the other half
    of a pair may be trained elsewhere, or later.
    """
    return place.results / "examples" / f"{job.name}-{analysis}.safetensors"


def keep_examples(job: Job, place: Place, saved: Saved, analysis: str, numbers: dict[str, Tensor]) -> None:
    """In float32, which is good for seven digits."""
    if numbers:
        path = examples_of(job, place, analysis)
        make_folder(path.parent)
        single = {name: values.float() for name, values in numbers.items()}
        first = job.row.scorings[0]
        save_tensors(path, single, {"weights_sha256": saved.sha256, "samples": str(first.samples)})


def examples(job: Job, place: Place, analysis: str, weights: str | None) -> dict[str, Tensor]:
    """An analysis's numbers of every test example, in float64, if they were measured with these weights and as many
    samples as today; else none."""
    path = examples_of(job, place, analysis)
    if not path.exists():
        return {}
    numbers, about = load_tensors(path)
    same = about.get("weights_sha256") == weights and about.get("samples") == str(job.row.scorings[0].samples)
    return {name: values.double() for name, values in numbers.items()} if same else {}


def current(job: Job, record: dict[str, Any]) -> bool:
    """Whether a result is of the recipe as it is now, and of those before it."""
    chain = [recipe_sha256(earlier.recipe) for earlier in job.chain]
    recorded: list[str] = [leg["recipe_sha256"] for leg in record["before"]]
    return record["recipe_sha256"] == recipe_sha256(job.recipe) and recorded == chain


def missing(job: Job, record: dict[str, Any]) -> list[str]:
    """What a result does not have yet."""
    counts = [str(scoring.samples) for scoring in job.row.scorings[1:]]
    lacking = [f"{samples} samples" for samples in counts if samples not in record["more"]]
    return lacking + [name for name in job.analyses if name not in record["analyses"]]


def keep(path: Path, record: dict[str, Any]) -> None:
    make_folder(path.parent)
    write_atomically(path, as_json(record))


def state(job: Job, place: Place) -> str:
    """How far a job is, in words."""
    record = read_result(job.result(place))
    if record is not None and not current(job, record):
        return "outdated: the recipe has changed since"
    if record is not None:
        lacking = missing(job, record)
        return "done" if not lacking else f"scored; to do: {', '.join(lacking)}"
    begun = next((link for link in (job, *reversed(job.chain)) if (link.run(place) / CHECKPOINT).exists()), None)
    if begun is None:
        return "not begun"
    run = Run.open(begun.run(place))
    done, epochs = len(run.metrics()), run.recipe.epochs - run.skipped
    trained = done == epochs and (run.folder / WEIGHTS).exists()
    if begun == job:
        return "trained, not scored" if trained else f"epoch {done} of {epochs}"
    return f"{begun.name} before it: {'trained' if trained else f'epoch {done} of {epochs}'}"
