"""The single-sample backward beside the full one: bias, variance, and nats after the same time.

    python -m benchmarks.one_sample [--samples 50] [--draws 200] [--seconds 240] [--limit 500] [--seed 0]

MNIST, recipe mnist-mem-iwae-50, trained on its training rows; the validation rows are scored.

1. Gradients of the bound on one batch of 100 images, over many draws of z, at a model that has trained for a minute
   with the full backward. Bias: |mean gradient - mean of plain| / |mean of plain|, with the part that the draws
   themselves explain taken away. Variance: trace of the covariance, as a multiple of plain's.
2. Every estimator trains from the same start for the same wall-clock seconds; then log p of the first validation images
   with 1,000 samples, and the difference to plain, image by image.
"""

from __future__ import annotations

import argparse
import math
import time

import torch
from torch import Tensor

from memgen.core.model import DGM, Batch
from memgen.core.objective import CHOOSING, ESTIMATORS, importance
from memgen.data import Dataset, dataset
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood, standard_error
from memgen.training.execution import flushed_denormals
from memgen.training.fit import fit
from memgen.training.state import State
from memgen.training.statistics import collect_statistics

NAMES = ("plain", "single", "single-shared")


class OverError(Exception):
    """The time is over."""


def train(recipe: Recipe, data: Dataset, seconds: float) -> tuple[DGM, int]:
    """A model after a number of seconds of training, with its statistics, and how many steps it made."""
    model = build(recipe)
    end = time.perf_counter() + seconds
    done = 0

    def tick(state: State, steps: int) -> None:
        nonlocal done
        done += 1
        if time.perf_counter() > end:
            raise OverError

    try:
        for _ in fit(model, data, recipe, tick=tick):
            pass
    except OverError:
        pass
    collect_statistics(model, data.split("train"), stochastic=data.stochastic)
    return model.eval(), done


def gradients(model: DGM, batch: Batch, name: str, samples: int, draws: int) -> Tensor:
    """(draws, parameters), each draw with its own noise."""
    generator = torch.Generator().manual_seed(NAMES.index(name))
    gradients_of_draws = []
    for _ in range(draws):
        model.zero_grad()
        noise = model.noise(samples + (name in CHOOSING), len(batch.x), generator)
        ESTIMATORS[name](model, batch, noise, importance, 1.0).surrogate.mean().backward()
        parts = [torch.zeros_like(p) if p.grad is None else p.grad for k, p in model.named_parameters() if _counts(k)]
        gradients_of_draws.append(torch.cat([part.flatten() for part in parts]))
    return torch.stack(gradients_of_draws)


def _counts(name: str) -> bool:
    """Batch norm takes its biases away: they do nothing, whatever their gradient."""
    return not name.endswith("linear.bias")


def moments(values: Tensor) -> tuple[Tensor, float]:
    """Mean, and trace of the covariance."""
    return values.mean(0), float(values.var(0).sum())


def compare_gradients(model: DGM, data: Dataset, samples: int, draws: int) -> None:
    model.train()
    grey = data.rows("train")[:100]
    batch = Batch((torch.rand(grey.shape, generator=torch.Generator().manual_seed(9)) < grey).float())
    with flushed_denormals():
        by_estimator = {name: moments(gradients(model, batch, name, samples, draws)) for name in NAMES}
    expected, variance = by_estimator["plain"]
    size = float(expected.norm() ** 2) - variance / draws
    print(f"gradients over {draws} draws; |mean of plain| = {math.sqrt(max(size, 0)):.3f}")
    for name, (mean, own_variance) in by_estimator.items():
        square = float((mean - expected).norm() ** 2) - (own_variance + variance) / draws
        bias = "" if name == "plain" else f"bias {math.copysign(math.sqrt(abs(square) / size), square):+.3f}, "
        print(f"{name:14s} {bias}variance {own_variance / variance:.2f} x plain's")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--samples", type=int, default=50)
    parser.add_argument("--draws", type=int, default=200)
    parser.add_argument("--seconds", type=float, default=240)
    parser.add_argument("--limit", type=int, default=500)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    data = dataset("mnist")
    settings = [f"objective.samples={options.samples}", f"training.seed={options.seed}", "data.train_on=train"]
    recipe = Recipe.named("mnist-mem-iwae-50").override([*settings, "training.evaluate_every=0"])
    compare_gradients(train(recipe, data, 60)[0], data, options.samples, options.draws)
    scores: dict[str, Tensor] = {}
    for name in NAMES:
        model, steps = train(recipe.override(f"objective.estimator={name}"), data, options.seconds)
        scores[name] = log_likelihood(model, data.fixed("valid", options.limit), 1000).log_p
        gain = scores[name] - scores["plain"]
        error = standard_error(gain) if name != "plain" else 0.0
        print(
            f"{name:14s} {options.seconds:.0f} s, {steps:,} steps: {float(scores[name].mean()):.2f} ± "
            f"{standard_error(scores[name]):.2f} nats; minus plain {float(gain.mean()):+.2f} ± {error:.2f}",
            flush=True,
        )


if __name__ == "__main__":
    main()
