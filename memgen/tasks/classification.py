"""Accuracy of a linear classifier of features (paper, section 6): a Crammer-Singer SVM without intercept."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

PAPER = 1e-4
"""The paper's regularisation per example."""
GRID = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6)
ITERATIONS = 20_000
"""Maximum number of steps of liblinear."""


class Classification(NamedTuple):
    regularisation: float
    """Per example."""
    C: float
    """scikit-learn's: 1 / (regularisation * examples)."""
    accuracy: float
    standard_error: float
    """The standard error of the accuracy, as of a proportion, over the test rows."""
    converged: bool
    """Whether the solver reached its tolerance."""
    right: Bool[Tensor, " n"]
    """Whether each test row is classified correctly."""


def svm(x: Float[Tensor, "N d"], y: Int[Tensor, " N"], regularisation: float) -> tuple[Any, bool]:
    """The fitted SVM, and whether its solver converged."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.svm import LinearSVC  # takes half a second to import

    C = 1 / (regularisation * len(x))
    machine = LinearSVC(multi_class="crammer_singer", fit_intercept=False, C=C, max_iter=ITERATIONS, random_state=0)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ConvergenceWarning)
        machine.fit(x.numpy(), y.numpy())
    return machine, not any(issubclass(warning.category, ConvergenceWarning) for warning in caught)


def classify(
    train: tuple[Float[Tensor, "N d"], Int[Tensor, " N"]],
    test: tuple[Float[Tensor, "n d"], Int[Tensor, " n"]],
    regularisation: float = PAPER,
) -> Classification:
    """Accuracy on the test rows of an SVM fitted to the training rows.

    >>> import torch
    >>> x = torch.eye(3).repeat(20, 1)
    >>> classify((x, x.argmax(1)), (x, x.argmax(1))).accuracy
    1.0
    """
    machine, converged = svm(*train, regularisation)
    right = torch.from_numpy(machine.predict(test[0].numpy())) == test[1]
    accuracy = float(right.double().mean())
    error = math.sqrt(accuracy * (1 - accuracy) / len(right))
    return Classification(regularisation, machine.C, accuracy, error, converged, right)


def choose(
    train: tuple[Float[Tensor, "N d"], Int[Tensor, " N"]],
    valid: tuple[Float[Tensor, "n d"], Int[Tensor, " n"]],
    grid: tuple[float, ...] = GRID,
    tick: Callable[[], None] = lambda: None,
) -> tuple[float, dict[float, float]]:
    """The regularisation whose SVM, fitted to the training rows, is best on the validation rows; and all accuracies."""
    accuracies = {}
    for regularisation in grid:
        accuracies[regularisation] = classify(train, valid, regularisation).accuracy
        tick()
    return max(grid, key=lambda value: accuracies[value]), accuracies
