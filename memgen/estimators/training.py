"""The training of a model on a table, watched by validation rows and by the linear model beside it."""

from __future__ import annotations

import copy
from collections.abc import Callable
from contextlib import closing, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from memgen.core.batch import Batch, chunks
from memgen.core.layers import batch_norms
from memgen.core.model import DGM, GenerativeModel, infer_all
from memgen.core.noise import Purpose, generator, row_keys
from memgen.core.objective import importance
from memgen.data.dataset import Dataset
from memgen.recipes.settings import Recipe
from memgen.runs.progress import Progress
from memgen.tasks.density import log_likelihood, standard_error
from memgen.training.fit import Bounds, stages
from memgen.training.initial import start_linear
from memgen.training.prepare import Prepared, adapt, prepare
from memgen.training.state import State, begin
from memgen.training.statistics import collect_statistics

CHECKS = 40
"""The most times that validation rows are scored during a training."""
VALIDATION_SAMPLES = 100
WATCHED = 1000
"""The most validation rows that are scored during a training."""
COMPARED = 100
"""The most validation rows by which the linear model and the trained one are compared."""
WIDEST = 300
"""The most encoded columns for which a linear model is computed; its time grows with their cube."""
ROWS = 64
"""Rows that are scored at a time."""


class Trained(NamedTuple):
    """The result of a training."""

    model: DGM
    epochs: int
    scores: dict[int, float]
    """Epoch -> mean bound of validation rows."""
    linear: bool
    """Whether the linear model is the result."""


def train_table(
    model: DGM, data: Dataset, recipe: Recipe, again: bool, patience: Callable[[int], int], verbose: bool
) -> Trained:
    """Train until validation rows score no better, at most to the end. The result is the best weights, or probabilistic
    PCA, a linear model, where these are no better than it."""
    epochs = recipe.epochs
    watched = data if data.valid is not None and len(data.valid) else replace(data, valid=None)
    ready = prepare(recipe, watched, model=model)
    if not again:
        adapt(ready)
    linear = None
    if not again and data.valid is not None and recipe.model.skip and model.likelihood.encoded <= WIDEST:
        if not len(data.valid):
            return Trained(linear_of(model, data.rows("train")), 0, {}, True)
        linear = validated(linear_of(model, data.rows("train")), data.rows("valid"), recipe.training.seed)
    state = begin(model, recipe)
    watch = Watch(ready)
    if (first := watch.score(state, ready).valid) is not None:
        state.best.offer(state.result, 0, first)
    display = Progress("fit", epochs, "epoch") if verbose else nullcontext()
    with display as progress, closing(stages(ready, state, score=watch.score)) as stream:
        for epoch, state in stream:
            if progress is not None:
                progress.to(epoch.epoch, watch.note)
            if watch.scores and state.epoch - state.best.epoch >= patience(epochs):
                break
    model.load_state_dict(state.chosen_weights)
    if linear is None or is_better(validated(model, data.rows("valid"), recipe.training.seed), linear):
        return Trained(model, state.epoch, watch.scores, False)
    rows = data.rows("train+valid")  # a closed form needs no held-out rows
    model.likelihood.adapt(lambda: (rows,))
    return Trained(linear_of(model, rows), state.epoch, watch.scores, True)


def linear_of(model: DGM, rows: Float[Tensor, "n D"]) -> DGM:
    """A copy of the model set to probabilistic PCA of the rows, with the layers' weights in the heads at zero."""
    linear = copy.deepcopy(model)
    start_linear(linear, rows)
    return linear.eval()


def validated(model: DGM, rows: Float[Tensor, "m D"], seed: int) -> Float64[Tensor, " n"]:
    """log p of the first COMPARED validation rows."""
    rows = rows[:COMPARED]
    return log_likelihood(
        model, Batch.of(rows), VALIDATION_SAMPLES, seed=seed, batch_size=ROWS, keys=row_keys(rows)
    ).log_p


def is_better(trained: Float64[Tensor, " m"], linear: Float64[Tensor, " m"]) -> bool:
    """Whether log p of the trained model exceeds that of the linear one by more than the standard error over rows."""
    gain = trained - linear
    return len(gain) > 1 and float(gain.mean()) > standard_error(gain)


class Watch:
    """The bound of validation rows, always of the same rows with the same noise."""

    def __init__(self, ready: Prepared) -> None:
        self.ready = ready
        self.scores: dict[int, float] = {}
        """Epoch -> mean bound."""

    @torch.no_grad()
    def bounds(self, model: GenerativeModel, valid: Float[Tensor, "m D"]) -> Float64[Tensor, " n"]:
        """The bound of the first WATCHED validation rows, ROWS at a time."""
        seed, batch = self.ready.recipe.training.seed, Batch.of(valid[:WATCHED])
        noise = model.noise(VALIDATION_SAMPLES, len(batch), generator(seed, Purpose.EVALUATION))
        model.train(False)
        parts = []
        for rows in chunks(batch, ROWS):
            inference = infer_all(model, batch.rows(rows), tuple(level[:, rows] for level in noise))
            parts.append(importance(inference.log_w).double())
        model.train()
        bounds = torch.cat(parts)
        return torch.where(bounds.isfinite(), bounds, -torch.inf)

    def score(self, state: State, ready: Prepared) -> Bounds:
        """Score the present weights, where there are validation rows."""
        if ready.data.valid is None:
            return Bounds()
        if state.epoch == 0 and batch_norms(state.result):  # later the training has done this
            collect_statistics(state.result, ready.rows, seed=ready.recipe.training.seed)
        score = float(self.bounds(state.result, ready.data.rows("valid")).mean())
        self.scores[state.epoch] = score
        return Bounds(valid=score)

    @property
    def note(self) -> str:
        return f"(held out: {max(self.scores.values()):.2f})" if self.scores else ""
