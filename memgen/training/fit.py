"""Training: `fit` is an iterator of epochs, stage by stage; one State holds all that a resumed run needs."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable, Generator
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import divided, forget_statistics
from memgen.core.model import Batch, GenerativeModel
from memgen.core.objective import CHOOSING
from memgen.data.dataset import Dataset
from memgen.errors import FailedError
from memgen.recipes.checks import warn_of_bias
from memgen.recipes.settings import Recipe, Training
from memgen.tasks.density import log_likelihoods
from memgen.training.batches import read
from memgen.training.distributed import align
from memgen.training.execution import PlannedSteps, flushed_denormals
from memgen.training.gradients import gradients
from memgen.training.optimizer import Settings, slots_used
from memgen.training.order import draw_order, rows_of_steps
from memgen.training.prepare import Prepared, adapt, prepare
from memgen.training.rates import adam_epsilon, learning_rate
from memgen.training.state import State, begin
from memgen.training.statistics import collect_unchecked

LOOK_EVERY = 50
"""Steps between looks for a non-finite loss or gradient, each of which waits for the device."""


SCORED = 64
"""Rows that are scored together."""


class NonFiniteError(FailedError):
    """The loss or a gradient was NaN or infinite; training stops."""


class Bounds(NamedTuple):
    """Bounds of the present model, on a fixed set of rows."""

    train: float | None = None
    valid: float | None = None
    """None where no rows are held out."""


class Epoch(NamedTuple):
    """The report of an epoch."""

    epoch: int
    """Counted from 1, through all stages."""
    loss: float
    """-bound + local reconstruction, mean over the epoch's steps."""
    bound: float
    """Mean over the epoch's steps, in nats, while the weights change and each step has a new binarisation."""
    rate: float
    seconds: float
    train_bound: float | None = None
    """At intervals: the bound on training rows, with evaluate_samples samples, a fixed binarisation and exact
    batch-norm statistics."""
    valid_bound: float | None = None
    """The same on validation rows, where any are held out; the gap between the two shows over-fitting."""
    slots_used: float | None = None
    """At the same intervals, for memories read by index: the fraction of slots that any row has read so far."""
    stage: str = "main"


Tick = Callable[[State, int], None]
"""Called after every step, with the number of steps of an epoch."""
Evaluate = Callable[[State, Prepared], Bounds]


def evaluate(state: State, ready: Prepared) -> Bounds:
    """The bounds that training reports at intervals."""
    settings, data = ready.recipe.stages[state.stage].training, ready.data
    train = _score(state, data, "train", settings)
    if ready.recipe.data.train_on != "train" or data.valid is None:
        return Bounds(train)
    valid = _score(state, data, "valid", settings)
    if not math.isfinite(valid):
        warnings.warn("the bound of validation rows is not finite: some lie far from all others", stacklevel=1)
    return Bounds(train, valid)


def _score(state: State, data: Dataset, split: str, settings: Training) -> float:
    """The mean bound of rows, of which every rank scores its part."""
    rows = data.to_score(split, settings.evaluate_rows)
    borders, ranks = [*range(0, len(rows), SCORED), len(rows)], state.ranks
    own = range(len(rows)) if ranks is None else ranks.shard.rows(borders)
    samples, seed = settings.evaluate_samples, settings.seed
    parts = log_likelihoods(state.result, rows, samples, own.start, seed, SCORED, stop=own.stop, defensive=False)
    others = torch.zeros(len(rows), dtype=torch.float64)
    log_p = torch.cat([others[: own.start], *(part.log_p for part in parts), others[own.stop :]])
    return float((log_p if ranks is None else ranks.total(log_p)).mean())


def fit(
    model: GenerativeModel,
    data: Dataset | Batch,
    recipe: Recipe,
    *,
    state: State | None = None,
    tick: Tick = lambda state, steps: None,
) -> Generator[Epoch, None, None]:
    """Train `model` in place, an epoch at a time; when the iterator ends, the model is ready for use, with the averaged
    weights if the last stage has an average, those of the best epoch if it keeps them, and exact batch-norm statistics.

    `state` is where to go on from; `tick(state, steps per epoch)` is called after every step.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe, Training
    >>> recipe = Recipe.named("digits-mem-vae").override(["training.epochs=2"])
    >>> model = build(recipe)
    >>> from memgen.data import dataset
    >>> [epoch.epoch for epoch in fit(model, dataset("digits"), recipe)]
    [1, 2]
    """
    ready = prepare(recipe, data, model=model)
    if state is None:
        adapt(ready)
        state = begin(model, recipe)
    for epoch, _ in stages(ready, state, tick=tick):
        yield epoch


def stages(
    ready: Prepared,
    state: State,
    *,
    until: int | None = None,
    tick: Tick = lambda state, steps: None,
    score: Evaluate = evaluate,
) -> Generator[tuple[Epoch, State], None, None]:
    """Train from a given state: yields each epoch with the state after it. A stage begins with a new state. `until`:
    the number of stages to train, by default all. `score` computes the bounds at intervals."""
    ready = ready.on(state.order.device)
    warn_of_bias(ready.recipe)
    while True:
        yield from _stage(ready, state, tick, score)
        if state.stage + 1 >= (until or len(ready.sizes)):
            break
        state = state.next_stage(ready.recipe)
    ready.model.load_state_dict(state.chosen_weights)
    ready.model.train(False)


def _stage(ready: Prepared, state: State, tick: Tick, score: Evaluate) -> Generator[tuple[Epoch, State], None, None]:
    """Train the remaining epochs of the state's stage."""
    recipe, sizes = ready.recipe.stage(state.stage), list(ready.sizes[state.stage])
    while state.epoch < recipe.training.epochs:
        clock = time.perf_counter() - state.seconds
        state.model.train()
        forget_statistics(state.model)
        forget_statistics(state.result)
        if state.ranks is not None:
            align(state.ranks, state.optimizer.tensors)
        if state.step == 0:
            state.order = draw_order(ready.rows, state.generator)
            state.log = torch.zeros(len(sizes), 3, device=state.order.device)
        total = None if state.ranks is None else state.ranks.total
        # with denormal numbers a step takes 3 times as long at K = 50
        with flushed_denormals(), divided(state.model, total):
            for chosen in rows_of_steps(ready.rows, state.order, sizes, state.step):
                batch = read(ready.rows, ready.levels, chosen, ready.data.stochastic, state.generator)
                batch = batch.to(next(state.model.parameters()))  # rows of a file come in single precision on the CPU
                state.log[state.step] = train_step(state, batch, recipe, len(sizes))
                state.step += 1
                state.seconds = time.perf_counter() - clock
                if state.step % LOOK_EVERY == 0:
                    check_finite(state)
                tick(state, len(sizes))
        check_finite(state)
        epoch = finish_epoch(state, ready, score)
        state.seconds = time.perf_counter() - clock
        yield epoch._replace(seconds=state.seconds), state


def train_step(state: State, batch: Batch, recipe: Recipe, steps: int) -> Float[Tensor, "3"]:
    """One step of gradient descent, by a recipe of one stage; returns loss, bound and gradient norm, still on the
    device."""
    model, objective, settings = state.model, recipe.objective, recipe.training
    t = state.epoch * steps + state.step
    beta = min(1.0, t / (steps * objective.kl_warmup_epochs)) if objective.kl_warmup_epochs else 1.0
    samples = objective.samples + (objective.estimator in CHOOSING)
    noise = model.noise(samples, len(batch.x), state.generator)
    report = gradients(state, recipe, batch, noise, beta)
    norm = state.optimizer.step(
        Settings(
            learning_rate(settings, t, steps),
            adam_epsilon(settings, t),
            settings.beta1,
            settings.beta2,
            settings.weight_decay,
            settings.clip_norm,
            settings.clip_value,
            settings.ema,
        )
    )
    return torch.cat([report, norm.reshape(1)])


def check_finite(state: State) -> None:
    """Stop at the first step of this epoch whose loss or gradient was not finite, or if a weight has become so."""
    bad = ~state.log[: state.step].isfinite()
    if bool(bad.any()):
        step = int(bad.any(1).nonzero()[0, 0])
        what = "loss" if bool(bad[step, :2].any()) else "gradient"
        raise NonFiniteError(
            f"the {what} was not finite in epoch {state.epoch + 1}, step {step + 1} of {len(state.log)}; "
            "try a smaller training.rate or training.clip_norm"
        )
    # A row-sparse parameter is left out: looking at a million rows takes longer than many steps, and a bad row shows in
    # the loss of the step that reads it.
    dense = [slot.value for slot in state.optimizer.slots if slot.last is None]
    if not all(bool(parameter.isfinite().all()) for parameter in dense):
        raise NonFiniteError(
            f"a weight was not finite after epoch {state.epoch + 1}, step {state.step} of {len(state.log)}; "
            "try a smaller training.rate"
        )


def finish_epoch(state: State, ready: Prepared, score: Evaluate) -> Epoch:
    """Count the epoch; at intervals score training and validation rows; exact statistics then and at the end."""
    stage = ready.recipe.stages[state.stage]
    settings, steps = stage.training, len(state.log)
    loss_mean, bound_mean, _ = state.log.double().mean(0).tolist()
    state.epoch, state.step = state.epoch + 1, 0
    rate = learning_rate(settings, state.epoch * steps - 1, steps)
    last = state.epoch == settings.epochs
    due = settings.evaluate_every > 0 and (last or state.epoch % settings.evaluate_every == 0)
    bounds, used = Bounds(), None
    if due or last:
        state.planned = PlannedSteps()  # frees its buffers while rows are scored
        state.optimizer.catch_up(settings.ema)
        collect_unchecked(state.result, ready.rows, ready.data.stochastic, settings.seed, state.ranks)
    if due:
        bounds, used = score(state, ready), slots_used(state.optimizer)
        if settings.keep == "best" and bounds.valid is not None:
            state.best.offer(state.result, state.epoch, bounds.valid)
    total = ready.recipe.epochs_before(state.stage) + state.epoch
    return Epoch(total, loss_mean, bound_mean, rate, state.seconds, bounds.train, bounds.valid, used, stage.name)
