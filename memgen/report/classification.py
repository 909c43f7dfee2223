"""A linear classifier on the features of a model, at two regularisations."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any

import torch
from tabulate import tabulate

from memgen.core.model import DGM
from memgen.data import Dataset
from memgen.data.dataset import SPLITS
from memgen.errors import MemgenError
from memgen.runs.progress import Progress
from memgen.tasks.classification import GRID, PAPER, Classification, choose, classify
from memgen.tasks.features import features

KINDS = {"last": "last deterministic layer of Q", "mean": "mean of q(z|x)"}


@dataclass(frozen=True)
class Comparison:
    """The paper's regularisation beside the one that was chosen on validation rows."""

    data: str
    features: str
    shape: tuple[int, ...]
    """Rows and columns of the features that were fitted."""
    test_rows: int
    paper: Classification
    chosen: Classification
    best: float
    """The regularisation that was chosen."""
    accuracies: dict[float, float]
    """Regularisation -> accuracy on validation rows."""
    seconds: float

    def lines(self) -> list[str]:
        """The numbers as text."""
        size = " x ".join(f"{n:,}" for n in self.shape)
        names = {f"{PAPER:g}, the paper's": self.paper, f"{self.best:g}, chosen on validation": self.chosen}
        rows = [
            [name, f"{one.C:.4g}", f"{one.accuracy:.2%} +- {one.standard_error:.2%}", _stopped(one)]
            for name, one in names.items()
        ]
        heads = ["regularisation", "C", "test accuracy", ""]
        return [
            f"linear Crammer-Singer SVM without intercept, {KINDS[self.features]}, {size}",
            tabulate(rows, heads, tablefmt="plain", disable_numparse=True, colalign=("left", "right", "right", "left")),
            f"{self.seconds:.1f} s",
        ]

    def to_dict(self) -> dict[str, Any]:
        paper, chosen = self.paper, self.chosen
        return {
            "accuracy": paper.accuracy,
            "standard_error": paper.standard_error,
            "C": paper.C,
            "converged": paper.converged,
            "accuracy_chosen": chosen.accuracy,
            "standard_error_chosen": chosen.standard_error,
            "C_chosen": chosen.C,
            "converged_chosen": chosen.converged,
            "regularisation_chosen": self.best,
            "validation": {f"{value:g}": accuracy for value, accuracy in self.accuracies.items()},
            "features": self.features,
            "examples": self.shape[0],
            "test_examples": self.test_rows,
            "data": self.data,
            "seconds": self.seconds,
        }


def _stopped(one: Classification) -> str:
    return "" if one.converged else "(the solver stopped before its tolerance)"


def check_labels(data: Dataset) -> None:
    if not data.labels:
        raise MemgenError(f"the data set {data.name} has no labels to classify")
    if len(data.labels["train"].unique()) < 2:
        raise MemgenError(f"the training rows of {data.name} all have the same label: there is nothing to tell apart")


def compare(model: DGM, data: Dataset, kind: str) -> Comparison:
    """Fit on training and validation rows, measure on test rows. The regularisation is chosen on validation rows."""
    check_labels(data)
    clock = time.perf_counter()
    x = {split: getattr(features(model, data.split(split)), kind) for split in SPLITS}
    fitted = torch.cat([x["train"], x["valid"]]), torch.cat([data.labels["train"], data.labels["valid"]])
    test = x["test"], data.labels["test"]
    with Progress("fitting", len(GRID) + 2, "machine") as progress:
        paper = classify(fitted, test)
        progress.to(1)
        done = iter(range(2, len(GRID) + 2))
        pairs = (x["train"], data.labels["train"]), (x["valid"], data.labels["valid"])
        best, accuracies = choose(*pairs, tick=lambda: progress.to(next(done)))
        chosen = paper if best == PAPER else classify(fitted, test, best)
        progress.to(len(GRID) + 2)
    shape, seconds = tuple(fitted[0].shape), time.perf_counter() - clock
    return Comparison(data.name, kind, shape, len(test[0]), paper, chosen, best, accuracies, seconds)
