"""A job: one recipe with one seed on one split of the data is trained, scored as the paper did, and analysed."""

from __future__ import annotations

import hashlib
import json
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from benchmarks.speed.machine import describe
from memgen import __version__
from memgen.core.model import count_parameters
from memgen.data import Dataset, dataset
from memgen.data.output import write_atomically
from memgen.errors import FailedError, MemgenError
from memgen.recipes import document
from memgen.recipes.build import likelihood_name
from memgen.recipes.settings import Recipe
from memgen.report.figures.base import make_folder
from memgen.runs import zoo
from memgen.runs.finite import as_json
from memgen.runs.modelfile import Saved
from memgen.runs.run import CHECKPOINT, WEIGHTS, Run, read_model
from memgen.runs.scores import score
from memgen.runs.session import Options, Session, Start, choose_device, train_in
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import Likelihood, standard_error
from memgen.training.prepare import as_read_by, prepare, with_likelihood
from reproduction.analyses import ANALYSES
from reproduction.rows import OWN, ROWS, Row, Scoring

SEED = 0
"""Of the row's own result."""
FIRST = (100, 1000)
"""The mean over the first so many examples is kept, too, so that a few can be verified."""
CHECKPOINT_EVERY = 120
LIKELIHOOD = "likelihood"
"""What is kept of every example beside the analyses."""
MADE = "made.json"
"""The file of a run folder that says with which program and on which machine it was begun, and which trainings came
before it."""
NEEDED = ("recipe_sha256", "weights_sha256", "more", "analyses", "before")


@dataclass(frozen=True)
class Place:
    """Where things lie."""

    results: Path
    """Small files, kept with the project."""
    runs: Path
    """Run folders, which are large."""
    device: str = "auto"
    compiled: bool = False
    """Whether trainings that begin have their loss compiled."""


@dataclass(frozen=True)
class Job:
    row: Row
    schedule: str
    seed: int = SEED
    split: int = 0
    """Of Frey faces."""

    @property
    def recipe(self) -> Recipe:
        found = self.row.recipe(self.schedule).override(f"training.seed={self.seed}")
        found = with_likelihood(found, likelihood_name(found))
        return found.override(f"data.name={found.data.name}-{self.split}") if self.split else found

    @property
    def name(self) -> str:
        """What tells it from others; of its run folder too."""
        parts = [self.row.name, *([] if self.schedule == OWN else [self.schedule])]
        parts += [f"seed{self.seed}"] if self.seed != SEED else []
        parts += [f"split{self.split}"] if self.split else []
        return "-".join(parts)

    @property
    def main(self) -> bool:
        """Whether it is the row's own result."""
        return (self.schedule, self.seed, self.split) == (self.row.schedule, SEED, 0)

    @property
    def shipped_as(self) -> str:
        """What its weights are called in the zoo."""
        return self.row.name if self.main else self.name

    @property
    def before(self) -> Job | None:
        """The job whose weights it begins with."""
        leads = self.row.recipe(self.schedule).stages[:-1]
        for row in [self.row, *([ROWS[self.row.after]] if self.row.after else [])] if leads else []:
            for name, recipe in row.trainings.items():
                if recipe.stages == leads:
                    return Job(row, name, self.seed, self.split)
        return None

    @property
    def chain(self) -> list[Job]:
        """All jobs whose weights lead to it, from the first on, without itself."""
        return [] if self.before is None else [*self.before.chain, self.before]

    def result(self, place: Place) -> Path:
        """The file of its result."""
        if self.main:
            return place.results / f"{self.row.name}.json"
        return place.results / "seeds" / self.row.name / f"{self.name}.json"

    def run(self, place: Place) -> Path:
        return place.runs / self.name


def read_json(path: Path) -> dict[str, Any] | None:
    """A table of JSON; None if there is none yet."""
    if not path.exists():
        return None
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        raise MemgenError(f"{path} is damaged: it is not JSON; bring back the last good one, or delete it") from None
    if not isinstance(found, dict):
        raise MemgenError(f"{path} is damaged: it is not a table; bring back the last good one, or delete it")
    return found


def read_result(path: Path) -> dict[str, Any] | None:
    """A job's result as it is written; None if there is none yet."""
    found = read_json(path)
    if found is not None and (lacking := [key for key in NEEDED if key not in found]):
        raise MemgenError(f"{path} is damaged: it has no {lacking[0]}; bring back the last good one, or delete it")
    return found


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
    found = read_result(path)
    if found is not None and current(job, found):
        lacking, there = missing(job, found), (job.run(place) / CHECKPOINT).exists()
        if not lacking and (not there or examples(job, place, LIKELIHOOD, found["weights_sha256"])):
            return found
        if not there:
            raise MemgenError(
                f"{path} lacks {', '.join(lacking)}, and its run is not in {place.runs}: to train it again would "
                "replace the number; give other --results"
            )
    run, saved = train(job, place)
    data = data_of(saved)
    if found is not None and current(job, found) and found["weights_sha256"] != saved.sha256:
        raise MemgenError(
            f"{path} was measured with other weights than {run.folder} has, and would be replaced; give other --results"
        )
    if found is None or not current(job, found):
        found = about(job, run, saved, data, place)
        result, seconds = score_as(job.row.scorings[0], run, saved, data)
        found |= compared(job.row, result, seconds)
        keep_examples(job, place, saved, LIKELIHOOD, {"log_p": result.log_p, "elbo": result.elbo})
        keep(path, found)
    if not examples(job, place, LIKELIHOOD, saved.sha256):
        result, _ = score_as(job.row.scorings[0], run, saved, data)
        keep_examples(job, place, saved, LIKELIHOOD, {"log_p": result.log_p, "elbo": result.elbo})
    for scoring in job.row.scorings[1:]:
        if str(scoring.samples) not in found["more"]:
            found["more"][str(scoring.samples)] = beside(scoring, job.row.scorings[0], run, saved, data)
            keep(path, found)
    for name in job.row.analyses if job.main else ():
        if name not in found["analyses"]:
            numbers, figures, by_example = ANALYSES[name](run, saved, data)
            keep_examples(job, place, saved, name, by_example)
            for figure in figures:
                make_folder(place.results / "figures")
                write_atomically(place.results / "figures" / f"{job.row.name}-{figure.name}.png", figure.png)
            captions = {f"{job.row.name}-{figure.name}.png": figure.caption for figure in figures}
            found["analyses"][name] = numbers | {"figures": captions}
            keep(path, found)
    return found


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
    return {name: own.double() for name, own in numbers.items()} if same else {}


def current(job: Job, found: dict[str, Any]) -> bool:
    """Whether a result is of the recipe as it is now, and of those before it."""
    before = [recipe_sha256(own.recipe) for own in job.chain]
    own: list[str] = [leg["recipe_sha256"] for leg in found["before"]]
    return found["recipe_sha256"] == recipe_sha256(job.recipe) and own == before


def missing(job: Job, found: dict[str, Any]) -> list[str]:
    """What a result does not have yet."""
    more = [str(scoring.samples) for scoring in job.row.scorings[1:]]
    lacking = [f"{samples} samples" for samples in more if samples not in found["more"]]
    return lacking + [name for name in job.row.analyses if job.main and name not in found["analyses"]]


def keep(path: Path, found: dict[str, Any]) -> None:
    make_folder(path.parent)
    write_atomically(path, as_json(found))


def about(job: Job, run: Run, saved: Saved, data: Dataset, place: Place) -> dict[str, Any]:
    """What a number is worth nothing without."""
    metrics = run.metrics()
    made = read_json(run.folder / MADE) or {"commit": "unknown", "hardware": describe()}
    checkpoint = run.checkpoint()
    return {
        "row": job.row.name,
        "table": job.row.table,
        "model": job.row.model,
        "recipe": job.row.command(job.schedule),
        "recipe_sha256": recipe_sha256(run.recipe),
        "weights_sha256": saved.sha256,
        "seed": job.seed,
        "split": job.split,
        "epochs": saved.epoch - run.skipped,
        "seconds": round(metrics[-1]["seconds"], 1),
        "before": history(job, place),
        **{key: value for key, value in made.items() if key != "before"},
        "scored_commit": commit(),
        "execution": {} if checkpoint is None else checkpoint.execution,
        "parameters": count_parameters(saved.model),
        "data": data.name,
        "scale": data.scale,
        "binarisation": data.binarisation,
        "curve": [
            [line["epoch"] - run.skipped, round(line["seconds"], 1), line["train_bound"], line.get("valid_bound")]
            for line in metrics
            if "train_bound" in line
        ],
        "curve_is": "epoch, seconds, bound on training rows, bound on validation rows if they are not trained on",
        "more": {},
        "analyses": {},
    }


def legs(last: Job, start: Saved, model: str | None, place: Place) -> list[dict[str, Any]]:
    """The trainings that led to the weights with which a job is about to begin, each of which gave its own to the next.
    They are told from the run of the last of them, or from the zoo, and kept in the folder of the run that begins:
    later the one may be gone, and the other have been replaced.
    """
    leg = {"recipe": last.row.command(last.schedule), "weights_sha256": start.sha256}
    if model is not None:
        told = zoo.result(model)
        about = {key: told[key] for key in ("recipe_sha256", "epochs", "seconds")}
        return [*told["before"], leg | about | {"shipped": True}]
    run = Run.open(last.run(place))
    metrics = run.metrics()
    seconds = round(metrics[-1]["seconds"], 1)
    about = {"recipe_sha256": recipe_sha256(run.recipe), "epochs": len(metrics), "seconds": seconds}
    return [*history(last, place), leg | about]


def history(job: Job, place: Place) -> list[dict[str, Any]]:
    """The trainings before a job's, as its run folder has kept them."""
    folder = job.run(place)
    found: list[dict[str, Any]] = (read_json(folder / MADE) or {}).get("before", [])
    if [leg["recipe"] for leg in found] != [own.row.command(own.schedule) for own in job.chain]:
        raise MemgenError(f"{folder / MADE} does not say which trainings came before it; move {folder} away")
    return found


def compared(row: Row, result: Likelihood, seconds: float) -> dict[str, Any]:
    """The numbers, beside the paper's."""
    quantity = result.elbo if row.quantity == "elbo" else result.log_p
    return {
        **summary(result, seconds),
        "first": {str(n): float(result.log_p[:n].mean()) for n in FIRST if n <= len(result.log_p)},
        "paper": row.paper,
        "compared": row.quantity,
        "difference": float(quantity.mean()) - row.paper,
        "difference_standard_error": standard_error(quantity),
    }


def summary(result: Likelihood, seconds: float) -> dict[str, Any]:
    if not bool(result.log_p.isfinite().all()):
        raise FailedError("log p(x) is not finite for some test examples: these weights are of no use")
    return {
        "log_likelihood": result.mean,
        "standard_error": result.standard_error,
        "elbo": float(result.elbo.mean()),
        "elbo_standard_error": standard_error(result.elbo),
        "samples": result.samples,
        "examples": len(result.log_p),
        "effective_sample_size": float(result.effective.mean()),
        "bounds": {str(K): float(bound.mean()) for K, bound in result.bounds.items()},
        "evaluation_seconds": round(seconds, 1),
    }


def score_as(scoring: Scoring, run: Run | None, saved: Saved, data: Dataset) -> tuple[Likelihood, float]:
    """log p(x) of the test examples of a scoring."""
    x = data.fixed("test")
    other = ""
    if scoring.examples is not None:
        x, other = x[chosen(len(x), scoring.examples)], f"chosen-{scoring.examples}"
    return score(run, saved, x, "test", scoring.samples, other=other)


def beside(scoring: Scoring, first: Scoring, run: Run, saved: Saved, data: Dataset) -> dict[str, Any]:
    """A second scoring of chosen examples, and what it adds to the first one on the very same."""
    result, seconds = score_as(scoring, run, saved, data)
    n = len(data.rows("test"))
    rows = chosen(n, scoring.examples or n)
    gain = result.log_p - score_as(first, run, saved, data)[0].log_p[rows]
    return summary(result, seconds) | {"gain": float(gain.mean()), "gain_standard_error": standard_error(gain)}


def chosen(n: int, k: int) -> Tensor:
    """k of n examples, by a seed; in order."""
    return torch.randperm(n, generator=torch.Generator().manual_seed(SEED))[:k].sort().values


def recipe_sha256(recipe: Recipe) -> str:
    """Of the settings that are not the defaults, so that a setting which a later version adds changes nothing.

    >>> recipe_sha256(Recipe(about="one")) == recipe_sha256(Recipe(about="other"))
    True
    """
    table, defaults = document.plain(recipe), document.plain(Recipe())

    def told(own: dict[str, Any], others: dict[str, Any]) -> dict[str, Any]:
        return {key: value for key, value in own.items() if value != others[key]}

    (stage,) = defaults["stages"]
    stages = [{part: told(own[part], stage[part]) for part in document.OF_STAGE} for own in table["stages"]]
    sections = {part: told(table[part], defaults[part]) for part in ("data", "model")}
    return hashlib.sha256(json.dumps([sections, stages], sort_keys=True).encode()).hexdigest()


def commit() -> str:
    """The commit of the program, with a mark where it has been changed since; its version where it is no clone."""
    package = Path(__file__).parents[1]

    def git(*words: str) -> str:
        return subprocess.run(["git", "-C", str(package), *words], capture_output=True, text=True, check=True).stdout

    try:
        git("ls-files", "--error-unmatch", str(Path(__file__)))  # it may lie inside a clone of something else
        return git("rev-parse", "HEAD").strip() + (
            "-changed" if git("status", "--porcelain", "--", ".").strip() else ""
        )
    except (OSError, subprocess.CalledProcessError):
        return f"version {__version__}"


def state(job: Job, place: Place) -> str:
    """How far a job is, in words."""
    found = read_result(job.result(place))
    if found is not None and not current(job, found):
        return "outdated: the recipe has changed since"
    if found is not None:
        lacking = missing(job, found)
        return "done" if not lacking else f"scored; to do: {', '.join(lacking)}"
    begun = next((own for own in (job, *reversed(job.chain)) if (own.run(place) / CHECKPOINT).exists()), None)
    if begun is None:
        return "not begun"
    run = Run.open(begun.run(place))
    done, epochs = len(run.metrics()), run.recipe.epochs - run.skipped
    trained = done == epochs and (run.folder / WEIGHTS).exists()
    if begun == job:
        return "trained, not scored" if trained else f"epoch {done} of {epochs}"
    return f"{begun.name} before it: {'trained' if trained else f'epoch {done} of {epochs}'}"
