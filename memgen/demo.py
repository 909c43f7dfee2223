"""`make demo`: a VAE and a MEM-VAE side by side, on digits that come with scikit-learn."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from memgen.data import dataset
from memgen.errors import MemgenError
from memgen.figures import grid
from memgen.model import DGM, count_parameters
from memgen.progress import Progress
from memgen.recipe import Recipe, build
from memgen.run import save, write_png
from memgen.tasks.density import Likelihood, join, log_likelihoods, standard_error
from memgen.tasks.sampling import sample
from memgen.train import fit

RECIPES = {"VAE": "digits-vae", "MEM-VAE": "digits-mem-vae"}
SAMPLES = 1000
PICTURES = 64


def run_demo(folder: Path, epochs: int | None, say: Callable[[str], None]) -> dict[str, Any]:
    """Train and score both, write samples and models into `folder`; returns the numbers."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise MemgenError(f"cannot make the folder {folder}: {error.strerror}") from None
    clock = time.perf_counter()
    data = dataset("digits")
    say(f"{len(data.train):,} training and {len(data.fixed('test'))} test images of 8 x 8, {data.binarisation}")
    results: dict[str, tuple[DGM, Likelihood]] = {}
    for name, recipe_name in RECIPES.items():
        recipe = Recipe.named(recipe_name).override([f"training.epochs={epochs}"] if epochs else [])
        model = build(recipe)
        _train(name, model, recipe)
        results[name] = model, _score(name, model)
        save(model, folder / f"{recipe_name}.safetensors", recipe)
        write_png(folder / f"{recipe_name}.png", grid(sample(model, PICTURES), data.shape))
    write_png(folder / "data.png", grid(data.rows("test")[:PICTURES], data.shape))
    return _report(folder, results, time.perf_counter() - clock, say)


def _train(name: str, model: DGM, recipe: Recipe) -> None:
    with Progress(f"training {name}", recipe.training.epochs, "epoch") as progress:
        for epoch in fit(model, dataset("digits"), recipe):
            progress.to(epoch.epoch, f"bound {epoch.bound:.2f}")


def _score(name: str, model: DGM) -> Likelihood:
    x = dataset("digits").fixed("test")
    parts: list[Likelihood] = []
    with Progress(f"scoring {name}", len(x), "example") as progress:
        for part in log_likelihoods(model, x, SAMPLES):
            parts.append(part)
            progress.to(sum(len(part.log_p) for part in parts))
    return join(parts)


def _report(
    folder: Path, results: dict[str, tuple[DGM, Likelihood]], seconds: float, say: Callable[[str], None]
) -> dict[str, Any]:
    say(f"\ntest log-likelihood in nats, {SAMPLES:,} importance samples, with standard error over images")
    say(f"{'model':<10} {'parameters':>10} {'log p(x)':>18}")
    for name, (model, result) in results.items():
        say(f"{name:<10} {count_parameters(model):>10,} {result.mean:>10.2f} +- {result.standard_error:.2f}")
    difference = results["MEM-VAE"][1].log_p - results["VAE"][1].log_p
    mean, error = float(difference.mean()), standard_error(difference)
    verdict = "" if abs(mean) > 2 * error else ": no detectable difference"
    say(f"MEM-VAE minus VAE, paired over images, one seed: {mean:+.2f} +- {error:.2f}{verdict}")
    say(f"\nsample grids (means of p(x|z), the first {PICTURES} of seed 0) beside real ones, after {seconds:.0f} s:")
    for picture in ("data", *RECIPES.values()):
        say(f"  {folder / (picture + '.png')}")
    return {
        "models": {
            name: {
                "parameters": count_parameters(model),
                "log_likelihood": result.mean,
                "standard_error": result.standard_error,
            }
            for name, (model, result) in results.items()
        },
        "difference": mean,
        "difference_standard_error": error if math.isfinite(error) else None,
        "samples": SAMPLES,
        "seconds": seconds,
        "folder": str(folder),
    }
