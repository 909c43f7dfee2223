"""Everything that changes while training, in one State; a run that is resumed from it gives the same bits."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, field
from typing import Any, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from memgen.core.memory import sparse_parameters
from memgen.core.model import GenerativeModel
from memgen.core.noise import Purpose, generator
from memgen.recipes.settings import Recipe
from memgen.training.distributed import Ranks
from memgen.training.execution import PlannedSteps
from memgen.training.losses import Value, compiled_loss
from memgen.training.optimizer import Adam
from memgen.training.restoring import check_best, check_tensors


@dataclass
class Best:
    """The weights that scored validation rows best so far."""

    weights: dict[str, Tensor] | None = None
    epoch: int = 0
    """The epoch of the stage after which they were scored."""
    bound: float = -math.inf
    """Their score."""

    def offer(self, model: GenerativeModel, epoch: int, bound: float) -> bool:
        """Keep the weights if they score better; returns whether they do."""
        better = bound > self.bound
        if better:
            self.weights = {name: value.clone() for name, value in model.state_dict().items()}
            self.epoch, self.bound = epoch, bound
        return better


@dataclass
class State:
    """Everything that changes while training."""

    model: Any
    """A GenerativeModel."""
    optimizer: Adam
    averaged: Any
    """The moving average of the weights, if the stage has one."""
    generator: torch.Generator
    """The random numbers of the rows' order, the binarisation and the noise of z."""
    order: Tensor
    """The order of the rows in the current epoch (order.py)."""
    log: Float[Tensor, "steps 3"]
    """Loss, bound and gradient norm of each step of the current epoch."""
    stage: int = 0
    """The index of the current stage of the recipe."""
    epoch: int = 0
    """Finished epochs of the stage."""
    step: int = 0
    """Finished steps of the current epoch."""
    seconds: float = 0.0
    """Spent in training so far."""
    best: Best = field(default_factory=Best)
    """The best weights of the stage, if its training keeps them."""
    compiled: Value | None = None
    """The loss of a step by torch.compile, with --compile."""
    planned: PlannedSteps = field(default_factory=PlannedSteps)
    """The planned steps, which need no autograd."""
    whole: set[str] = field(default_factory=set)
    """Row-sparse parameters that a checkpoint holds in full, because the recipe's seed did not make their values."""
    ranks: Ranks | None = None
    """The processes among which the rows of a step are divided."""

    @property
    def result(self) -> Any:
        """The present model, for evaluation: the averaged weights if there are any, else the raw ones."""
        return self.model if self.averaged is None else self.averaged

    @property
    def chosen_weights(self) -> dict[str, Tensor]:
        """The weights that are saved: the best of the stage so far if it keeps them, else the present ones."""
        return self.result.state_dict() if self.best.weights is None else self.best.weights

    def next_stage(self, recipe: Recipe) -> State:
        """Begin the next stage with the weights that this one ended with."""
        self.model.load_state_dict(self.chosen_weights)
        state = begin(self.model, recipe, self.compiled is not None, self.stage + 1, foreign=True, ranks=self.ranks)
        state.seconds = self.seconds
        return state

    def tensors(self) -> dict[str, Tensor]:
        """The tensors of a checkpoint. Of row-sparse parameters it holds only the rows that were ever touched; the
        others have the starting values of the recipe's seed, unless they are in `whole`."""
        entries = {
            **self.model.state_dict(prefix="model."),
            **({} if self.averaged is None else self.averaged.state_dict(prefix="averaged.")),
            "generator": self.generator.get_state(),
            "order": self.order,
            "log": self.log,
            "steps": torch.tensor(self.optimizer.t),
            "kept": torch.tensor([self.best.epoch, self.best.bound], dtype=torch.float64),
            **{f"best.{name}": value for name, value in (self.best.weights or {}).items()},
        }
        for slot in self.optimizer.slots:
            entries[f"first.{slot.name}"], entries[f"second.{slot.name}"] = slot.first, slot.second
            if slot.last is not None:
                whole = slot.name in self.whole
                rows = torch.arange(len(slot.last), device=slot.last.device) if whole else slot.rows
                entries |= {key: entries[key][rows] for key in _keys(slot.name) if key in entries}
                entries[f"rows.{slot.name}"], entries[f"last.{slot.name}"] = rows, slot.last[rows]
        return entries

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """The opposite of `tensors`, for a state that has just begun with the model that the recipe builds. Tensors of
        another form are an error."""
        if self.optimizer.t:
            raise ValueError("a state is restored before its first step")
        lengths = {slot.name: len(slot.last) for slot in self.optimizer.slots if slot.last is not None}
        check_tensors(tensors, self.tensors(), lengths)
        check_best(tensors, self.model.state_dict())
        tensors = dict(tensors)
        self.optimizer.t = int(tensors["steps"])
        self._restore_optimizer(tensors)
        self.model.load_state_dict(_under("model.", tensors))
        if self.averaged is not None:
            self.averaged.load_state_dict(_under("averaged.", tensors))
        self.generator.set_state(tensors["generator"])
        self.order = tensors["order"].to(self.order.device)
        self.log = tensors["log"].to(self.log.device)
        if best := _under("best.", tensors):
            weights = {name: value.to(self.order.device) for name, value in best.items()}
            self.best = Best(weights, int(tensors["kept"][0]), float(tensors["kept"][1]))

    def _restore_optimizer(self, tensors: dict[str, Tensor]) -> None:
        """Restore the moments; the rows of row-sparse parameters that were never touched are added to `tensors`."""
        averages = {} if self.averaged is None else self.averaged.state_dict()
        for slot in self.optimizer.slots:
            entries = (slot.value.data, averages.get(slot.name), slot.first, slot.second)
            if slot.last is not None:
                rows = tensors[f"rows.{slot.name}"].to(slot.last.device)
                if len(rows) == len(slot.last):  # if all were touched, it makes no difference
                    self.whole.add(slot.name)
                slot.last[rows] = tensors[f"last.{slot.name}"].to(slot.last)
                for key, whole in zip(_keys(slot.name), entries, strict=True):
                    if whole is not None:
                        whole[rows] = tensors[key].to(whole)
                        tensors[key] = whole
            slot.first.copy_(tensors[f"first.{slot.name}"])
            slot.second.copy_(tensors[f"second.{slot.name}"])


def _keys(name: str) -> tuple[str, str, str, str]:
    """Where a checkpoint keeps what belongs to a parameter."""
    return f"model.{name}", f"averaged.{name}", f"first.{name}", f"second.{name}"


def _under(prefix: str, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name.removeprefix(prefix): value for name, value in tensors.items() if name.startswith(prefix)}


def begin(
    model: GenerativeModel,
    recipe: Recipe,
    compiled: bool = False,
    stage: int = 0,
    foreign: bool = False,
    ranks: Ranks | None = None,
) -> State:
    """The state before the first step of a stage. `compiled`: with torch.compile of its loss, which takes half a minute
    and pays in long trainings of models that have no planned step. `foreign`: the weights are not those that the
    recipe's seed gives, so a checkpoint must hold all of them. `ranks`: the processes that train together.
    """
    settings = recipe.stages[stage].training
    device = next(model.parameters()).device
    averaged = copy.deepcopy(model) if settings.ema else None
    modules = cast(nn.Module, model), cast("nn.Module | None", averaged)
    optimizer = Adam(*modules, sparse_parameters(model))
    nothing = torch.empty(0, device=device)
    return State(
        model,
        optimizer,
        averaged,
        generator(settings.seed, Purpose.TRAINING, device),
        nothing.long(),
        nothing.reshape(0, 3),
        stage,
        compiled=compiled_loss(model, recipe.stage(stage)) if compiled else None,
        whole=set(sparse_parameters(model)) if foreign else set(),
        ranks=ranks,
    )
