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

from memgen.core.layers import batch_norms
from memgen.core.model import DGM, Batch, GenerativeModel, infer_all
from memgen.core.noise import Purpose, generator, row_keys
from memgen.core.objective import importance
from memgen.data.dataset import Dataset
from memgen.progress import Progress
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood, standard_error
from memgen.tasks.imputation import impute
from memgen.training.fit import State, adapt, begin, collect_statistics, fit
from memgen.training.initial import start_linear

CHECKS = 40
"""How often validation rows are scored during a training, at most."""
VALIDATION_SAMPLES = 100
WIDEST = 300
"""Encoded columns of which a linear model is made, whose price is their cube."""
ROWS = 64
"""Scored at a time."""


class Trained(NamedTuple):
    """What a training brought."""

    model: DGM
    epochs: int
    scores: dict[int, float]
    """Epoch -> mean bound of validation rows."""
    linear: bool
    """Whether the linear model is the result."""


def train_table(
    model: DGM, data: Dataset, recipe: Recipe, again: bool, patience: Callable[[int], int], verbose: bool
) -> Trained:
    """Train to the end or until validation rows are scored no better. The best weights are the result, or a linear
    model, probabilistic PCA, if they are no better than that."""
    epochs = recipe.training.epochs
    if not again:
        adapt(model, data, recipe)
    linear = None
    if not again and data.valid is not None and recipe.model.skip and model.likelihood.encoded <= WIDEST:
        if not len(data.valid):
            return Trained(linear_of(model, data.train), 0, {}, True)
        linear = log_p(linear_of(model, data.train), data.valid, VALIDATION_SAMPLES, recipe.training.seed)
    state = begin(model, recipe)
    watch = _Watch(data, recipe.training.seed, patience(epochs))
    watch.look(state)
    shown = Progress("fit", epochs, "epoch") if verbose else nullcontext()
    with shown as progress, closing(fit(model, replace(data, valid=None), recipe, state=state)) as stream:
        for epoch in stream:
            if progress is not None:
                progress.to(epoch.epoch, watch.note)
            due = epoch.epoch % max(1, epochs // CHECKS) == 0 or epoch.epoch == epochs
            if due and watch.look(state):
                break
    if watch.best is not None:
        model.load_state_dict(watch.best)
    if linear is None or is_better(watch.best_bounds, linear):
        return Trained(model, state.epoch, watch.scores, False)
    assert data.valid is not None
    rows = torch.cat([data.train, data.valid])  # a closed form, for which nothing need be held out
    model.likelihood.adapt(rows)
    return Trained(linear_of(model, rows), state.epoch, watch.scores, True)


def linear_of(model: DGM, rows: Float[Tensor, "n D"]) -> DGM:
    """The same model as probabilistic PCA of the rows, all layers silent."""
    linear = copy.deepcopy(model)
    start_linear(linear, rows)
    return linear.eval()


def is_better(bounds: Float64[Tensor, " m"], linear: Float64[Tensor, " m"]) -> bool:
    """By more than the standard error over the rows: a few of them should not talk us out of a linear model."""
    gain = bounds - linear
    return len(gain) > 1 and float(gain.mean()) > standard_error(gain)


def log_p(model: DGM, x: Float[Tensor, "N D"], samples: int, seed: int) -> Float64[Tensor, " N"]:
    """log p of what is observed of each row, where Q knows complete rows alone: of rows with holes by the weights of
    importance sampling around completed rows."""
    holes, keys = x.isnan().any(1), row_keys(x)
    found = torch.zeros(len(x), dtype=torch.float64)
    whole = (~holes).nonzero()[:, 0]
    if len(whole):
        own = [keys[i] for i in whole.tolist()]
        found[whole] = log_likelihood(model, Batch.of(x[whole]), samples, seed=seed, batch_size=ROWS, keys=own).log_p
    some = holes.nonzero()[:, 0]
    if len(some):
        own, rows = [keys[i] for i in some.tolist()], x[some]
        steps = max(2, samples)
        result = impute(model, Batch.of(rows), "importance", steps=steps, seed=seed, keys=own)
        found[some] = result.log_observed
    return found


class _Watch:
    """The bound of validation rows, always with the same noise, and the weights that scored best."""

    def __init__(self, data: Dataset, seed: int, patience: int) -> None:
        self.data, self.seed, self.patience = data, seed, patience
        self.scores: dict[int, float] = {}
        """Epoch -> mean bound."""
        self.best: dict[str, Tensor] | None = None
        self.best_bounds = torch.zeros(0, dtype=torch.float64)

    @torch.no_grad()
    def bounds(self, model: GenerativeModel) -> Float64[Tensor, " m"]:
        """Of every validation row."""
        valid = self.data.valid
        assert valid is not None
        if batch_norms(model):
            collect_statistics(model, self.data.split("train"), seed=self.seed)
        noise = model.noise(VALIDATION_SAMPLES, len(valid), generator(self.seed, Purpose.EVALUATION))
        model.train(False)
        found = importance(infer_all(model, Batch.of(valid), noise).log_w).double()
        model.train()
        return torch.where(found.isfinite(), found, -torch.inf)

    def look(self, state: State) -> bool:
        """Score the present weights; whether it is time to stop."""
        if self.data.valid is None or not len(self.data.valid):
            return False
        bounds = self.bounds(state.result)
        score = float(bounds.mean())
        if self.best is None or score > max(self.scores.values()):
            self.best, self.best_bounds = copy.deepcopy(state.result.state_dict()), bounds
        self.scores[state.epoch] = score
        return state.epoch - max(self.scores, key=lambda epoch: self.scores[epoch]) >= self.patience

    @property
    def note(self) -> str:
        return f"(held out: {max(self.scores.values()):.2f})" if self.scores else ""
