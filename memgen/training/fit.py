"""Training: `fit` is an iterator of epochs, and everything that a resumed run needs is in one `State`."""

from __future__ import annotations

import copy
import math
import time
import warnings
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int, UInt8
from torch import Tensor, nn

from memgen.accelerate.allocator import kept_memory
from memgen.accelerate.library import flushed_denormals
from memgen.accelerate.written import Written
from memgen.core.batch import Batch, Rows, chunks
from memgen.core.layers import batch_norms, forget_statistics, write_statistics
from memgen.core.likelihoods import Head, check_values
from memgen.core.memory import sparse_parameters
from memgen.core.model import DGM, GenerativeModel, Levels, infer_all
from memgen.core.noise import Purpose, generator
from memgen.core.objective import BOUNDS, CHOOSING, ESTIMATORS, local_reconstruction, loss
from memgen.data.dataset import Dataset
from memgen.errors import FailedError, MemgenError
from memgen.recipes.settings import Recipe, Training
from memgen.tasks.density import Likelihood, log_likelihood
from memgen.training.initial import start_linear, start_mean
from memgen.training.optimizer import Adam, Settings, slots_used

CHUNK = 1000
"""Rows at a time when statistics are collected."""
CHECKED = 1 << 20
"""Rows at a time when values are checked."""
LOOK_EVERY = 50
"""Steps between looks for a non-finite loss or gradient, each of which waits for the device."""


Value = Callable[[Batch, Levels, float], tuple[Tensor, Tensor]]
"""(batch, noise, beta) -> the loss to differentiate; and loss and bound to report."""


class NonFiniteError(FailedError):
    """The loss or a gradient was NaN or infinite; training stops."""


class Epoch(NamedTuple):
    """What is known after an epoch."""

    epoch: int
    """Counted from 1."""
    loss: float
    """-bound + local reconstruction, mean over the epoch's steps."""
    bound: float
    """Mean over the epoch's steps, in nats: the weights change on the way, the binarisation is new each time."""
    rate: float
    seconds: float
    train_bound: float | None = None
    """At intervals: the bound with evaluate_samples samples on training rows, binarised once, exact statistics ..."""
    valid_bound: float | None = None
    """... and the same on validation rows, where there are any that are held out: over-fitting shows in the gap."""
    slots_used: float | None = None
    """Then too, of memories that are read by index: the fraction of slots that any row has read so far."""


@dataclass
class State:
    """Everything that changes while training; a run that is resumed from it goes on bit by bit as if never stopped."""

    model: Any
    """A GenerativeModel."""
    optimizer: Adam
    averaged: Any
    """The moving average of the weights, if the recipe has one."""
    generator: torch.Generator
    """Of the rows' order, the binarisation and the noise of z."""
    order: Tensor
    """The order of the rows in the current epoch."""
    log: Float[Tensor, "steps 3"]
    """Loss, bound and gradient norm of each step of the current epoch."""
    epoch: int = 0
    """Finished epochs."""
    step: int = 0
    """Finished steps of the current epoch."""
    seconds: float = 0.0
    """Spent in training so far."""
    best: dict[str, Tensor] | None = None
    """The weights that scored validation rows best, if the recipe keeps them, ..."""
    best_epoch: int = 0
    best_bound: float = -math.inf
    """... after which epoch, and how."""
    compiled: Value | None = None
    """The loss of a step as torch.compile has made it, if that was asked for."""
    written: Written = field(default_factory=Written)
    """The steps that are written down without autograd."""
    whole: set[str] = field(default_factory=set)
    """Row-sparse parameters that a checkpoint holds in full, because the weights of another run were their start."""

    @property
    def result(self) -> Any:
        """The present model, for evaluation: the averaged weights if there are any, else the raw ones."""
        return self.model if self.averaged is None else self.averaged

    @property
    def chosen(self) -> Any:
        """The model that is saved: the best one so far if the recipe keeps it, else the present one."""
        if self.best is None:
            return self.result
        model = copy.deepcopy(self.result)
        model.load_state_dict(self.best)
        return model

    def keep_if_best(self, bound: float) -> None:
        if bound > self.best_bound:
            self.best = {name: value.clone() for name, value in self.result.state_dict().items()}
            self.best_epoch, self.best_bound = self.epoch, bound

    def tensors(self) -> dict[str, Tensor]:
        """For a checkpoint. Of row-sparse parameters only the rows that were ever touched; the others have the starting
        values that the recipe's seed gives them, unless they came from another run."""
        kept = {
            **self.model.state_dict(prefix="model."),
            **({} if self.averaged is None else self.averaged.state_dict(prefix="averaged.")),
            "generator": self.generator.get_state(),
            "order": self.order,
            "log": self.log,
            "steps": torch.tensor(self.optimizer.t),
            "kept": torch.tensor([self.best_epoch, self.best_bound], dtype=torch.float64),
            **{f"best.{name}": value for name, value in (self.best or {}).items()},
        }
        for slot in self.optimizer.slots:
            kept[f"first.{slot.name}"], kept[f"second.{slot.name}"] = slot.first, slot.second
            if slot.last is not None:
                whole = slot.name in self.whole
                rows = torch.arange(len(slot.last), device=slot.last.device) if whole else slot.rows
                kept |= {key: kept[key][rows] for key in _keys(slot.name) if key in kept}
                kept[f"rows.{slot.name}"], kept[f"last.{slot.name}"] = rows, slot.last[rows]
        return kept

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The opposite of `tensors`, for a state that has just begun with the model that the recipe builds."""
        if self.optimizer.t:
            raise ValueError("a state is restored before its first step")
        tensors = dict(tensors)
        self.optimizer.t = int(tensors["steps"])
        averages = {} if self.averaged is None else self.averaged.state_dict()
        for slot in self.optimizer.slots:
            own = dict(
                zip(_keys(slot.name), (slot.value.data, averages.get(slot.name), slot.first, slot.second), strict=True)
            )
            if slot.last is not None:
                rows = tensors[f"rows.{slot.name}"].to(slot.last.device)
                if len(rows) == len(slot.last):  # if all were touched, it makes no difference
                    self.whole.add(slot.name)
                slot.last[rows] = tensors[f"last.{slot.name}"].to(slot.last)
                for key, whole in own.items():
                    if whole is not None:
                        whole[rows] = tensors[key].to(whole)
                        tensors[key] = whole
            slot.first.copy_(tensors[f"first.{slot.name}"])
            slot.second.copy_(tensors[f"second.{slot.name}"])
        self.model.load_state_dict(_under("model.", tensors))
        if self.averaged is not None:
            self.averaged.load_state_dict(_under("averaged.", tensors))
        self.generator.set_state(tensors["generator"])
        self.order = tensors["order"].to(self.order.device)
        self.log = tensors["log"].to(self.log.device)
        if best := _under("best.", tensors):
            self.best = {name: value.to(self.order.device) for name, value in best.items()}
            self.best_epoch, self.best_bound = int(tensors["kept"][0]), float(tensors["kept"][1])


def _keys(name: str) -> tuple[str, str, str, str]:
    """Where a checkpoint keeps what belongs to a parameter."""
    return f"model.{name}", f"averaged.{name}", f"first.{name}", f"second.{name}"


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def begin(model: GenerativeModel, recipe: Recipe, compiled: bool = False) -> State:
    """The state before the first step; `compiled`: with torch.compile of its loss, which takes half a minute and
    pays in long trainings of models that fused/ does not serve.
    """
    settings = recipe.training
    device = next(model.parameters()).device
    averaged = copy.deepcopy(model) if settings.ema else None
    modules = cast(nn.Module, model), cast("nn.Module | None", averaged)
    optimizer = Adam(*modules, sparse_parameters(model))
    own = generator(settings.seed, Purpose.TRAINING, device)
    nothing = torch.empty(0, device=device)
    value = compiled_loss(model, recipe) if compiled else None
    return State(
        model,
        optimizer,
        averaged,
        own,
        nothing.long(),
        nothing.reshape(0, 3),
        compiled=value,
        whole=set(sparse_parameters(model)) if settings.start_from else set(),
    )


def fit(
    model: GenerativeModel,
    data: Dataset | Batch,
    recipe: Recipe,
    *,
    state: State | None = None,
    tick: Callable[[State, int], None] = lambda state, steps: None,
) -> Generator[Epoch, None, None]:
    """Train `model` in place, an epoch at a time; when the iterator ends, the model is ready for use, with the averaged
    weights if the recipe has an average, those of the best epoch if it keeps them, and exact batch-norm statistics.

    `state` is where to go on from; `tick(state, steps per epoch)` is called after every step.

    >>> from memgen.recipes.build import build
    >>> from memgen.recipes.settings import Recipe
    >>> recipe = Recipe.named("digits-mem-vae").override(["training.epochs=2"])
    >>> model = build(recipe)
    >>> from memgen.data import dataset
    >>> [epoch.epoch for epoch in fit(model, dataset("digits"), recipe)]
    [1, 2]
    """
    data = as_read_by(model, data if isinstance(data, Dataset) else Dataset.of(data))
    rows, device = training_rows(model, data, recipe), next(model.parameters()).device
    levels = byte_levels(rows.x) if data.stochastic and isinstance(rows, Batch) else None
    sizes = batch_sizes(len(rows), recipe.training)
    if state is None:
        adapt(model, data, recipe)
        state = begin(model, recipe)
    warn_of_bias(recipe)
    while state.epoch < recipe.training.epochs:
        clock = time.perf_counter() - state.seconds
        model.train()
        forget_statistics(model)
        forget_statistics(state.result)
        if state.step == 0:
            state.order = torch.randperm(len(rows), generator=state.generator, device=device)
            state.log = torch.zeros(len(sizes), 3, device=device)
        with flushed_denormals(), kept_memory():  # without the first a step takes 3 times as long at K = 50
            for chosen in state.order[: sum(sizes)].split(sizes)[state.step :]:
                batch = read(rows, levels, chosen, data.stochastic, state.generator)
                state.log[state.step] = train_step(state, batch, recipe, len(sizes))
                state.step += 1
                state.seconds = time.perf_counter() - clock
                if state.step % LOOK_EVERY == 0:
                    check_finite(state)
                tick(state, len(sizes))
        check_finite(state)
        epoch = finish_epoch(state, data, rows, recipe)
        state.seconds = time.perf_counter() - clock
        yield epoch._replace(seconds=state.seconds)
    if state.best is not None:
        model.load_state_dict(state.best)
    elif state.averaged is not None:
        model.load_state_dict(state.averaged.state_dict())
    model.train(False)


def byte_levels(rows: Float[Tensor, "N D"]) -> UInt8[Tensor, "N D"] | None:
    """v of values v/256 with v = 0 ... 255, as MNIST's are; None if any value is another."""
    levels = (256 * rows).to(torch.uint8)
    return levels if bool((levels.to(rows) == 256 * rows).all()) else None


def read(
    rows: Rows, levels: UInt8[Tensor, "N D"] | None, chosen: Int[Tensor, " B"], stochastic: bool, own: torch.Generator
) -> Batch:
    """The chosen rows; with `stochastic` they are binarised anew."""
    if not stochastic:
        return rows.rows(chosen)
    if not isinstance(rows, Batch):
        batch = rows.rows(chosen)
        return replace(batch, x=drawn(batch.x, None, torch.arange(len(batch)), own))
    label, observed = rows.label, rows.observed
    x = drawn(rows.x, levels, chosen, own)
    return Batch(x, None if observed is None else observed[chosen], None if label is None else label[chosen])


def drawn(
    rows: Float[Tensor, "N D"],
    levels: UInt8[Tensor, "N D"] | None,
    chosen: Int[Tensor, " B"],
    own: torch.Generator,
) -> Float[Tensor, "B D"]:
    """Every value as 0 or 1 with the probability that it names. Where a byte says it, a random byte below v has exactly
    the probability v/256, and eight of them come from one draw.
    """
    if levels is None:
        x = rows[chosen]
        return (torch.rand(x.shape, generator=own, device=x.device) < x).to(x)
    v = levels.index_select(0, chosen)  # and not levels[chosen], bytes and not bools: a third of the time for the same
    words = torch.empty(-(-v.numel() // 8), dtype=torch.int64, device=v.device).random_(-(2**63), None, generator=own)
    return (words.view(torch.uint8)[: v.numel()].view_as(v) < v).view(torch.uint8).to(rows)


def adapt(model: GenerativeModel, data: Dataset, recipe: Recipe) -> None:
    """Before the first step: the likelihood takes the units of the columns from the training rows, and starting values
    come from them, if the recipe says so."""
    rows = data.split(recipe.data.train_on).rows(slice(None)).to(next(model.parameters())).values
    if isinstance(model.likelihood, Head):
        model.likelihood.adapt(rows)
    if recipe.training.start_from:
        return  # the values come from another run
    if recipe.model.start == "linear":
        start_linear(model, rows)
    elif recipe.model.start == "mean":
        start_mean(model, rows)


def warn_of_bias(recipe: Recipe) -> None:
    objective = recipe.objective
    if objective.estimator == "stl" and objective.bound == "importance" and objective.samples > 1:
        warnings.warn("stl is biased for the importance bound with more than one sample; dreg is not", stacklevel=3)


def as_read_by(model: GenerativeModel, data: Dataset) -> Dataset:
    """The data as the model reads them: grey levels stand for probabilities under a Bernoulli likelihood only."""
    return replace(data, stochastic=data.stochastic and model.likelihood.binary)


def training_rows(model: GenerativeModel, data: Dataset, recipe: Recipe) -> Rows:
    """The rows to train on, checked; on the model's device, if they fit in memory. Validation rows are checked too,
    before hours of work."""
    rows: Rows = data.split(recipe.data.train_on)
    check_rows(model, rows, data.stochastic, "the training data")
    if data.valid is not None and recipe.data.train_on == "train":
        check_rows(model, data.split("valid"), data.stochastic, "the validation data")
    if batch_norms(model) and min(batch_sizes(len(rows), recipe.training)) < 2:
        raise MemgenError(
            f"batch norm needs two rows or more in every step, and of {len(rows):,} rows in batches of "
            f"{recipe.training.batch_size} a step would have 1 sample; use a larger training.batch_size, or "
            "model.norm=layer"
        )
    return rows.to(next(model.parameters())) if isinstance(rows, Batch) else rows


def check_rows(model: GenerativeModel, rows: Rows, stochastic: bool, what: str) -> None:
    """Refuse rows that the model cannot score as they are, or with `stochastic` once they are binarised."""
    for part in chunks(rows, CHECKED) or [slice(0)]:
        x = rows.rows(part).values
        if stochastic and bool(((x < 0) | (x > 1)).any()):
            low, high = float(x.min()), float(x.max())
            raise MemgenError(f"{what} is to be binarised, so it must lie in [0, 1]; it goes from {low:g} to {high:g}")
        # Rounding stands for any outcome of the binarisation; it keeps a NaN, which is then reported with its place.
        check_values(model.likelihood, x.round() if stochastic else x, what, model.mask, part.start or 0)


def train_step(state: State, batch: Batch, recipe: Recipe, steps: int) -> Float[Tensor, "3"]:
    """One step of gradient descent on the loss; returns loss, bound and gradient norm, still on the device."""
    model, objective, settings = state.model, recipe.objective, recipe.training
    t = state.epoch * steps + state.step
    beta = min(1.0, t / (steps * objective.kl_warmup_epochs)) if objective.kl_warmup_epochs else 1.0
    samples = objective.samples + (objective.estimator in CHOOSING)
    noise = model.noise(samples, len(batch.x), state.generator)
    # `step_loss` says what is computed. For the paper's models fused/ has the same loss and gradients written down,
    # with the KL term in full: without it 1.6 times as long at K = 1 on MNIST (benchmarks/pieces.py).
    whole = state.compiled is None and beta == 1
    step = state.written.find(model, objective, batch, noise) if whole and isinstance(model, DGM) else None
    if step is not None:
        report = step(batch, noise)
    else:
        state.optimizer.clear()
        value, report = (state.compiled or partial(step_loss, model, recipe))(batch, noise, beta)
        value.backward()
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


def step_loss(
    model: GenerativeModel, recipe: Recipe, batch: Batch, noise: Levels, beta: float
) -> tuple[Float[Tensor, ""], Float[Tensor, "2"]]:
    """The loss to differentiate; and loss and bound to report."""
    objective = recipe.objective
    estimate = ESTIMATORS[objective.estimator](model, batch, noise, BOUNDS[objective.bound], beta)
    regulariser = local_reconstruction(estimate.inference, objective.local_reconstruction, recipe.model.norm_epsilon)
    report = torch.stack([loss(estimate.bound, regulariser.detach()), estimate.bound.mean()])
    return loss(estimate.surrogate, regulariser), report.detach()


def check_compilable(model: GenerativeModel, recipe: Recipe) -> None:
    if recipe.objective.kl_warmup_epochs or sparse_parameters(model):
        raise MemgenError(
            "a compiled loss is for models without kl_warmup_epochs and without attention to few of many slots; leave "
            "out --compile"
        )


def compiled_loss(model: GenerativeModel, recipe: Recipe) -> Value:
    """The same by torch.compile, which makes one loop of neighbouring formulas; a step at K = 1 takes 0.9 of the time
    that it takes with autograd and the C kernels, which stay out of it (benchmarks/pieces.py --compile).
    """
    check_compilable(model, recipe)

    @torch.compile(dynamic=False)
    def value(batch: Batch, noise: Levels, beta: float) -> tuple[Tensor, Tensor]:
        return step_loss(model, recipe, batch, noise, beta)

    return value


def learning_rate(settings: Training, t: int, steps: int) -> float:
    """The rate of step t (from 0) with so many steps per epoch.

    >>> [learning_rate(Training(schedule="step", decay=0.5, decay_after=2), t, 1) for t in range(4)]
    [0.001, 0.001, 0.0005, 0.00025]
    """
    rate = settings.rate * min(1.0, (t + 1) / max(1, settings.warmup_steps))
    if settings.schedule == "cosine":
        progress = t / (settings.epochs * steps)
        return rate * (settings.final_rate + (1 - settings.final_rate) * (1 + math.cos(math.pi * progress)) / 2)
    epoch = t // steps
    if settings.schedule == "step" and epoch >= settings.decay_after:
        return rate * settings.decay ** (1 + (epoch - settings.decay_after) // settings.decay_every)
    return rate


def adam_epsilon(settings: Training, t: int) -> float:
    """torch divides by sqrt(v / (1 - beta2^t)) + epsilon. The paper's program added its epsilon to sqrt(v) itself,
    which is the same as torch's with epsilon / sqrt(1 - beta2^t).
    """
    if settings.optimizer == "adamw":
        return settings.epsilon
    return settings.epsilon / math.sqrt(1 - settings.beta2 ** (t + 1))


def steps_per_epoch(data: Dataset, recipe: Recipe) -> int:
    return len(batch_sizes(len(data.split(recipe.data.train_on)), recipe.training))


def batch_sizes(rows: int, settings: Training) -> list[int]:
    """How many rows each step of an epoch gets.

    >>> batch_sizes(250, Training(batch_size=100, drop_incomplete=True))
    [100, 100]
    >>> batch_sizes(201, Training(batch_size=100))   # near-equal: a last batch of one row would have no variance
    [67, 67, 67]
    """
    if settings.drop_incomplete:
        if rows < settings.batch_size:
            raise MemgenError(
                f"{rows} rows do not fill a batch of {settings.batch_size} and training.drop_incomplete drops "
                "incomplete batches; use a smaller training.batch_size"
            )
        return [settings.batch_size] * (rows // settings.batch_size)
    steps = math.ceil(rows / settings.batch_size)
    size, more = divmod(rows, steps)
    return [size + 1] * more + [size] * (steps - more)


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


def finish_epoch(state: State, data: Dataset, rows: Rows, recipe: Recipe) -> Epoch:
    """Count the epoch; at intervals score training and validation rows; exact statistics then and at the end."""
    settings = recipe.training
    loss_mean, bound_mean, _ = state.log.double().mean(0).tolist()
    steps = len(state.log)
    state.epoch, state.step = state.epoch + 1, 0
    rate = learning_rate(settings, state.epoch * steps - 1, steps)
    last = state.epoch == settings.epochs
    due = settings.evaluate_every > 0 and (last or state.epoch % settings.evaluate_every == 0)
    train_bound = valid_bound = None
    if due or last:
        state.written = Written()  # its buffers would lie idle while rows are scored
        state.optimizer.catch_up(settings.ema)
        _collect(state.result, rows, data.stochastic, settings.seed)
    if due:
        train_bound = _score(state.result, data, "train", settings).mean
        if recipe.data.train_on == "train" and data.valid is not None:
            valid_bound = _score(state.result, data, "valid", settings).mean
            if not math.isfinite(valid_bound):
                warnings.warn("the bound of validation rows is not finite: some lie far from all others", stacklevel=1)
            if settings.keep == "best":
                state.keep_if_best(valid_bound)
    used = slots_used(state.optimizer) if due else None
    return Epoch(state.epoch, loss_mean, bound_mean, rate, state.seconds, train_bound, valid_bound, used)


def _score(model: GenerativeModel, data: Dataset, split: str, settings: Training) -> Likelihood:
    batch = data.fixed(split, settings.evaluate_rows)
    return log_likelihood(model, batch, settings.evaluate_samples, seed=settings.seed, batch_size=64)


def collect_statistics(model: GenerativeModel, rows: Rows, *, stochastic: bool = False, seed: int = 0) -> None:
    """Write exact batch-norm statistics of the rows into the model: one seeded binarisation (with `stochastic`) and
    one seeded z ~ q(z|x) per row. They are saved with the weights, so evaluation never needs the training data.
    """
    check_rows(model, rows, stochastic, "the data")
    _collect(model, rows, stochastic, seed)


def _collect(model: GenerativeModel, rows: Rows, stochastic: bool, seed: int) -> None:
    weights = next(model.parameters())

    def parts() -> Iterator[tuple[Batch, Levels]]:
        random = generator(seed, Purpose.STATISTICS)
        for part in chunks(rows, CHUNK):
            batch = rows.rows(part).to(weights)
            if stochastic:
                u = torch.rand(batch.x.shape, generator=random).to(weights.device)
                batch = replace(batch, x=(u < batch.x).to(weights))
            yield batch, tuple(level.to(weights.device) for level in model.noise(1, len(batch), random))

    write_statistics(model, parts, partial(infer_all, model))
