"""Faster versions of training, scoring and Adam for the paper's models, by compiled plans in C.

Each function returns a callable, or None for an unsupported model or machine. The caller then uses the plain code:
autograd, `tasks.density.log_weights` or the formulas of `training.optimizer`. The rest of the package does not depend
on how this is computed, and tests/accelerate/test_steps.py compares every function with its plain definition.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from memgen.accelerate.adam import AdamStep, Moments, Rows
    from memgen.accelerate.single import SingleStep
    from memgen.accelerate.step import PlannedStep
    from memgen.core.likelihoods import GaussianColumns
    from memgen.core.model import DGM, Batch, Levels
    from memgen.recipes.settings import Objective


def training_step(model: DGM, objective: Objective, batch_size: int) -> PlannedStep | SingleStep | None:
    """(batch, noise) -> loss and bound, with the gradients of the loss left in the parameters.

    It is valid until it has `moved`: a parameter has another address. A call needs `alone`: nothing hooked or frozen.
    """
    from memgen.accelerate.single import SingleStep
    from memgen.accelerate.step import PlannedStep, supports

    if not supports(model, objective):
        return None
    return (SingleStep if objective.estimator == "single" else PlannedStep)(
        model, objective, objective.samples, batch_size
    )


def log_weights(model: DGM, batch: Batch, q: GaussianColumns) -> Callable[[Levels], Float64[Tensor, "K B"]] | None:
    """noise -> log w of a frozen model, for rows whose q(z|x) is known."""
    from memgen.accelerate.decoding import Decoders, supports

    return Decoders(model, batch.x, q) if batch.observed is None and supports(model) else None


def optimizer_step(moments: Sequence[Moments], read: Sequence[Rows]) -> AdamStep | None:
    """(numbers, read) -> the norm of the gradients; changes all parameters."""
    from memgen.accelerate.adam import AdamStep, supports

    return AdamStep(moments) if supports(moments, read) else None


def available() -> bool:
    """Whether the C library can be used."""
    from memgen.accelerate.library import library

    return library() is not None


def flush_denormals(on: bool) -> None:
    """Set the mode of all threads except the calling one, which torch can set itself."""
    if available():
        from memgen.accelerate.calls import bind

        bind("flush_denormals", on)()
