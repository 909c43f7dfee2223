"""The gradients of a step, by the path that the state of the training chooses."""

from __future__ import annotations

from functools import partial

from jaxtyping import Float
from torch import Tensor

from memgen.core.model import Batch, Levels
from memgen.recipes.settings import Recipe
from memgen.training.distributed import divided_gradients
from memgen.training.losses import step_loss
from memgen.training.state import State


def gradients(state: State, recipe: Recipe, batch: Batch, noise: Levels, beta: float) -> Float[Tensor, "2"]:
    """Leave the gradients of a step in the parameters; returns its loss and bound.

    `step_loss` defines the loss. For the paper's models accelerate/ computes the same loss and gradients, with the KL
    term at full weight, in one process.
    """
    if state.ranks is not None:
        state.optimizer.clear()
        return divided_gradients(state.ranks, state.model, recipe, batch, noise, beta)
    whole = state.compiled is None and beta == 1
    step = state.planned.find(state.model, recipe.objective, batch) if whole else None
    if step is not None:
        return step(batch, noise)
    state.optimizer.clear()
    value, report = (state.compiled or partial(step_loss, state.model, recipe))(batch, noise, beta)
    value.backward()
    return report
