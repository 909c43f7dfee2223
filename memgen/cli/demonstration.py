"""`make demo`: a VAE and a MEM-VAE side by side, on digits that come with scikit-learn, and one page about both."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tabulate import tabulate

from memgen.cli.output import check_writable
from memgen.core.model import count_parameters
from memgen.data import Dataset, dataset
from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from memgen.recipes.settings import Recipe
from memgen.report.figures.base import make_folder
from memgen.report.gather import Gathered, Subject, gather, paired_difference
from memgen.report.page import figures_folder, write_report
from memgen.runs.run import CHECKPOINT, METRICS, RECIPE, WEIGHTS, Run, read_model
from memgen.runs.session import Session, train_in
from memgen.tasks.density import standard_error
from memgen.training.prepare import prepare

RECIPES = {"VAE": "digits-vae", "MEM-VAE": "digits-mem-vae"}
MARK = "demo.txt"
"""A file that marks a run folder as made by a demo."""
SAMPLES = 1000
LIMIT = 300


def run_demo(folder: Path, epochs: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Train and score both, and write the page about them into `folder`; returns the numbers."""
    clock = time.perf_counter()
    for recipe_name in RECIPES.values():
        _clear(folder / recipe_name)
    make_folder(folder)
    check_writable(folder)
    data = dataset("digits")
    say(f"{len(data.train):,} training and {len(data.fixed('test'))} test images of 8 x 8, {data.binarisation}")
    models: dict[str, Gathered] = {}
    for name, recipe_name in RECIPES.items():
        recipe = Recipe.named(recipe_name).override([f"training.epochs={epochs}"] if epochs else [])
        run = _train(folder / recipe_name, recipe, data)
        subject = Subject(name, run, read_model(run.folder), data, data.shape)
        models[name] = gather(subject, SAMPLES, LIMIT, LIMIT, seed=0)
    report = folder / "report.html"
    write_report(report, list(models.values()), seed=0)
    return _report(report, models, time.perf_counter() - clock, say)


def _clear(folder: Path) -> None:
    """Delete the run of an earlier demo; refuse one of `memgen train`."""
    if (folder / MARK).exists():
        for name in (WEIGHTS, CHECKPOINT, METRICS, RECIPE, ".lock", MARK):
            (folder / name).unlink(missing_ok=True)
    if (folder / RECIPE).exists():
        raise MemgenError(f"{folder} holds a run that is no demo; choose another --out")
    Run.refuse_taken(folder)


def _train(folder: Path, recipe: Recipe, data: Dataset) -> Run:
    def mark(session: Session) -> None:
        write_atomically(folder / MARK, b"memgen demo makes this run anew whenever it is called\n")

    return train_in(folder, prepare(recipe, data), begun=mark)


def _report(report: Path, models: dict[str, Gathered], seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    difference = paired_difference(models["VAE"], models["MEM-VAE"])
    assert difference is not None
    mean, error = float(difference.mean()), standard_error(difference)
    verdict = "" if abs(mean) > 2 * error else ": no detectable difference"
    say(f"\ntest log-likelihood in nats, {SAMPLES:,} importance samples, with standard error over images")
    say(_table(models))
    say(f"MEM-VAE minus VAE, paired over images, one seed: {mean:+.2f} +- {error:.2f}{verdict}")
    say(f"\nafter {seconds:.0f} s: curves, samples, imputations and a look inside the memory, on one page")
    say(f"open it in a browser: {report.resolve().as_uri()}")
    say(f"play with both: memgen serve {report.parent / RECIPES['MEM-VAE']} {report.parent / RECIPES['VAE']} --open")
    say(f"its figures (PNG, PDF) and their numbers: {figures_folder(report)}")
    return {
        "models": {name: _numbers(one) for name, one in models.items()},
        "difference": mean,
        "difference_standard_error": error if math.isfinite(error) else None,
        "samples": SAMPLES,
        "seconds": seconds,
        "report": str(report),
    }


def _numbers(one: Gathered) -> dict[str, Any]:
    return {
        "parameters": count_parameters(one.subject.saved.model),
        "log_likelihood": one.likelihood.mean,
        "standard_error": one.likelihood.standard_error,
    }


def _table(models: dict[str, Gathered]) -> str:
    rows = [
        [
            name,
            f"{count_parameters(one.subject.saved.model):,}",
            f"{one.likelihood.mean:.2f} +- {one.likelihood.standard_error:.2f}",
        ]
        for name, one in models.items()
    ]
    return tabulate(
        rows, ["model", "parameters", "log p(x)"], "plain", disable_numparse=True, colalign=("left", "right", "right")
    )
