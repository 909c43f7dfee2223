"""Per-row results of evaluations and imputations, stored in a run folder or in the files of shards."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path

from torch import Tensor

import memgen
from memgen.errors import MemgenError
from memgen.runs.shards import Layout, ShardFile
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import Likelihood, rungs
from memgen.tasks.imputation import Imputation

BOUND = "bound."
"""The beginning of the names of tensors with importance bounds; K follows."""


@dataclass(frozen=True)
class Scores:
    """The file of per-example results. With it an evaluation can be resumed, and compared with others in pairs."""

    file: Path
    samples: int
    weights: str
    """sha256 of the weights that were scored. Stored results of other weights are ignored."""

    required = False
    """Results that cannot be kept are no error: the evaluation still says its numbers."""

    def read(self) -> tuple[Likelihood | None, float]:
        """The stored results, from the first example on, and the seconds that they took."""
        try:
            tensors, about = load_tensors(self.file)
        except MemgenError:
            return None, 0.0
        if (about.get("weights"), about.get("memgen")) != (self.weights, memgen.__version__):
            return None, 0.0
        bounds = {name.removeprefix(BOUND): value for name, value in tensors.items() if name.startswith(BOUND)}
        parts = [tensors.get(name) for name in ("log_p", "elbo", "effective")]
        if not _agree([*parts, *bounds.values()]) or not all(K.isdecimal() and len(K) < 10 for K in bounds):
            return None, 0.0
        return likelihood(self.samples, tensors), _seconds(about)

    def write(self, result: Likelihood, seconds: float) -> None:
        try:
            self.file.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise MemgenError(f"cannot make the folder {self.file.parent}: {error.strerror}") from None
        about = {"weights": self.weights, "memgen": memgen.__version__, "seconds": repr(seconds)}
        save_tensors(self.file, tensors_of(result), about)


@dataclass(frozen=True)
class ShardScores:
    """The log-likelihoods of a shard."""

    file: ShardFile
    samples: int

    required = True

    def read(self) -> tuple[Likelihood | None, float]:
        tensors, seconds = self.file.read()
        return None if tensors is None else likelihood(self.samples, tensors), seconds

    def write(self, result: Likelihood, seconds: float) -> None:
        self.file.write(tensors_of(result), seconds)


@dataclass(frozen=True)
class ShardImputation:
    """The imputed rows of a shard."""

    file: ShardFile

    required = True

    def read(self) -> tuple[Imputation | None, float]:
        tensors, seconds = self.file.read()
        return None if tensors is None else Imputation(**tensors), seconds

    def write(self, result: Imputation, seconds: float) -> None:
        self.file.write({field.name: getattr(result, field.name) for field in fields(result)}, seconds)


def tensors_of(result: Likelihood) -> dict[str, Tensor]:
    tensors = {"log_p": result.log_p, "elbo": result.elbo, "effective": result.effective}
    return tensors | {f"{BOUND}{K}": values for K, values in result.bounds.items()}


def likelihood(samples: int, tensors: Mapping[str, Tensor]) -> Likelihood:
    """The inverse of `tensors_of`."""
    numbers = sorted(int(name.removeprefix(BOUND)) for name in tensors if name.startswith(BOUND))
    bounds = {K: tensors[f"{BOUND}{K}"] for K in numbers}
    return Likelihood(samples, tensors["log_p"], tensors["elbo"], tensors["effective"], bounds)


def score_layout(samples: int) -> Layout:
    """The tensors of a `Likelihood`."""
    return dict.fromkeys(("log_p", "elbo", "effective", *(f"{BOUND}{K}" for K in rungs(samples))), (None,))


def imputation_layout(columns: int, draws: int) -> Layout:
    """The tensors of an `Imputation`."""
    of_rows: Layout = dict.fromkeys(("log_p", "effective", "accepted", "log_observed"), (None,))
    return {**of_rows, "mean": (None, columns), "draws": (draws, None, columns)}


def _agree(values: list[Tensor | None]) -> bool:
    """Whether every row has one number of each kind."""
    rows = None if values[0] is None else values[0].shape
    return all(v is not None and v.ndim == 1 and v.shape == rows and v.is_floating_point() for v in values)


def _seconds(about: dict[str, str]) -> float:
    try:
        return float(about["seconds"])
    except (KeyError, ValueError):
        return 0.0
