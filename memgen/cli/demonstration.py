"""`make demo`: a VAE and a MEM-VAE side by side, on digits that come with scikit-learn, and one page about both."""

from __future__ import annotations

import argparse
import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memgen.cli.common import say
from memgen.core.model import count_parameters
from memgen.data import dataset
from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from memgen.progress import Progress
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.report.gather import Gathered, Subject, gather, paired_difference
from memgen.report.page import write_report
from memgen.runs.run import CHECKPOINT, METRICS, RECIPE, WEIGHTS, Run, read_model, save
from memgen.tasks.density import standard_error
from memgen.training.fit import fit

RECIPES = {"VAE": "digits-vae", "MEM-VAE": "digits-mem-vae"}
SAMPLES = 1000
LIMIT = 300


def demo(options: argparse.Namespace) -> dict[str, Any]:
    return run_demo(options.out, options.epochs, lambda text: say(options, text))


def run_demo(folder: Path, epochs: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Train and score both, and write the page about them into `folder`; returns the numbers."""
    clock = time.perf_counter()
    for recipe_name in RECIPES.values():
        _prepare(folder / recipe_name)
    data = dataset("digits")
    say(f"{len(data.train):,} training and {len(data.fixed('test'))} test images of 8 x 8, {data.binarisation}")
    found: dict[str, Gathered] = {}
    for name, recipe_name in RECIPES.items():
        recipe = Recipe.named(recipe_name).override([f"training.epochs={epochs}"] if epochs else [])
        run = _train(name, folder / recipe_name, recipe)
        subject = Subject(name, run, read_model(run.folder), data, data.shape)
        found[name] = gather(subject, SAMPLES, LIMIT, LIMIT, seed=0)
    report = folder / "report.html"
    write_report(report, list(found.values()), seed=0)
    return _report(report, found, time.perf_counter() - clock, say)


def _prepare(folder: Path) -> None:
    """A run folder, in the place of an earlier demo's, never in that of a run of `memgen train`."""
    if (folder / CHECKPOINT).exists():
        raise MemgenError(f"{folder} holds a run that is no demo; choose another --out")
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MemgenError(f"cannot make the folder {folder}: {error.strerror}") from None


def _train(name: str, folder: Path, recipe: Recipe) -> Run:
    """Train into a run folder."""
    model = build(recipe)
    run = Run(folder, recipe)
    (folder / METRICS).unlink(missing_ok=True)
    with Progress(f"training {name}", recipe.training.epochs, "epoch") as progress:
        for epoch in fit(model, dataset("digits"), recipe):
            run.log(epoch)
            progress.to(epoch.epoch, f"bound {epoch.bound:.2f}")
    write_atomically(folder / RECIPE, recipe.to_toml().encode())
    save(model, folder / WEIGHTS, recipe)
    return run


def _report(report: Path, found: dict[str, Gathered], seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    models = {name: (one.subject.saved.model, one.likelihood) for name, one in found.items()}
    say(f"\ntest log-likelihood in nats, {SAMPLES:,} importance samples, with standard error over images")
    say(f"{'model':<10} {'parameters':>10} {'log p(x)':>18}")
    for name, (model, result) in models.items():
        say(f"{name:<10} {count_parameters(model):>10,} {result.mean:>10.2f} +- {result.standard_error:.2f}")
    difference = paired_difference(found["VAE"], found["MEM-VAE"])
    assert difference is not None
    mean, error = float(difference.mean()), standard_error(difference)
    verdict = "" if abs(mean) > 2 * error else ": no detectable difference"
    say(f"MEM-VAE minus VAE, paired over images, one seed: {mean:+.2f} +- {error:.2f}{verdict}")
    say(f"\nafter {seconds:.0f} s: curves, samples, imputations and a look inside the memory, on one page")
    say(f"open it in a browser: {report.resolve().as_uri()}")
    say(f"play with both: memgen serve {report.parent / RECIPES['MEM-VAE']} {report.parent / RECIPES['VAE']} --open")
    say(f"its figures (PNG, PDF) and their numbers: {report.with_name(report.stem + '-figures')}")
    return {
        "models": {
            name: {
                "parameters": count_parameters(model),
                "log_likelihood": result.mean,
                "standard_error": result.standard_error,
            }
            for name, (model, result) in models.items()
        },
        "difference": mean,
        "difference_standard_error": error if math.isfinite(error) else None,
        "samples": SAMPLES,
        "seconds": seconds,
        "report": str(report),
    }
