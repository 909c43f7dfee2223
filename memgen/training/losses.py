"""The loss of a step, as autograd differentiates it."""

from __future__ import annotations

from collections.abc import Callable

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.likelihoods import Mixed
from memgen.core.memory import sparse_parameters
from memgen.core.model import Batch, GenerativeModel, Levels
from memgen.core.objective import BOUNDS, ESTIMATORS, local_reconstruction, loss
from memgen.core.rows import Total
from memgen.errors import MemgenError
from memgen.recipes.settings import Recipe

Value = Callable[[Batch, Levels, float], tuple[Tensor, Tensor]]
"""(batch, noise, beta) -> the loss to differentiate; and loss and bound to report."""


def step_loss(
    model: GenerativeModel, recipe: Recipe, batch: Batch, noise: Levels, beta: float, total: Total | None = None
) -> tuple[Float[Tensor, ""], Float[Tensor, "2"]]:
    """The loss to differentiate; and loss and bound to report. With `total` these are means over the rows of this
    process, standardised over those of all."""
    objective = recipe.objective
    estimate = ESTIMATORS[objective.estimator](model, batch, noise, BOUNDS[objective.bound], beta)
    epsilon = recipe.model.norm_epsilon
    regulariser = local_reconstruction(estimate.inference, objective.local_reconstruction, epsilon, total)
    bound = estimate.bound - log_unit(model, batch)
    report = torch.stack([loss(bound, regulariser.detach()), bound.mean()])
    return loss(estimate.surrogate, regulariser), report.detach()


def log_unit(model: GenerativeModel, batch: Batch) -> Float[Tensor, " B"]:
    """What a bound in training exceeds a bound in the user's units by: a table is trained without its units."""
    return model.likelihood.log_unit(batch) if isinstance(model.likelihood, Mixed) else batch.x.new_zeros(len(batch.x))


def check_compilable(model: GenerativeModel, recipe: Recipe) -> None:
    if recipe.objective.kl_warmup_epochs or sparse_parameters(model):
        raise MemgenError(
            "a compiled loss is for models without kl_warmup_epochs and without attention to few of many slots; leave "
            "out --compile"
        )


def compiled_loss(model: GenerativeModel, recipe: Recipe) -> Value:
    """`step_loss` by torch.compile, which fuses neighbouring operations into one loop.

    A step at K = 1 takes 0.9 of its time with autograd and the C kernels, which a compiled loss does not use
    (benchmarks/pieces.py --compile).
    """
    check_compilable(model, recipe)

    @torch.compile(dynamic=False)
    def value(batch: Batch, noise: Levels, beta: float) -> tuple[Tensor, Tensor]:
        return step_loss(model, recipe, batch, noise, beta)

    return value
