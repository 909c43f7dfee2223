"""The result of an evaluation, as text for the user and as a record for programs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tabulate import tabulate

from memgen.data import Dataset
from memgen.errors import MemgenError
from memgen.runs.modelfile import Saved
from memgen.tasks.density import BitsPerDimension, Likelihood

FEW = 10
"""Number of effective samples below which the user is told that the estimate is too low."""


@dataclass(frozen=True)
class Evaluation:
    """log p(x) of the rows of a split, under a model."""

    saved: Saved
    data: Dataset
    split: str
    seed: int
    """The seed of the importance samples."""
    result: Likelihood
    bits: BitsPerDimension | None
    """Only for pixels of 8 bits."""
    seconds: float

    @property
    def examples(self) -> int:
        return len(self.result.log_p)

    @property
    def summary(self) -> str:
        """Which rows were scored."""
        examples = f"{self.examples:,} example{'' if self.examples == 1 else 's'}"
        return f"{self.split}: {examples} of {self.data.name}, scale {self.data.scale}, {self.data.binarisation}"

    def check(self) -> None:
        """Refuse a result that is not finite."""
        if bad := int((~self.result.log_p.isfinite()).sum()):
            raise MemgenError(
                f"log p(x) is not finite for {bad:,} of {self.examples:,} examples: these weights cannot be used"
            )

    def lines(self) -> list[str]:
        """The numbers as text."""
        epochs = f"{self.saved.epoch:,} epoch{'' if self.saved.epoch == 1 else 's'}"
        lines = [f"weights: {self.saved.weights}, after {epochs}; noise seed {self.seed}", ladder(self.result)]
        if self.bits is not None:
            error = "" if self.examples == 1 else f" +- {self.bits.standard_error:.4f}"
            lines.append(f"bits per dimension: {self.bits.mean:.4f}{error}")
        median, smallest = float(self.result.effective.median()), float(self.result.effective.min())
        lines.append(f"effective sample size: median {median:.1f}, smallest {smallest:.1f} of {self.result.samples:,}")
        if median < FEW:
            lines.append(f"fewer than {FEW} samples carry the estimate: log p(x) may be higher; try more --samples")
        return [*lines, f"{self.seconds:.1f} s"]

    def to_dict(self) -> dict[str, Any]:
        result, bits, data, saved = self.result, self.bits, self.data, self.saved
        return {
            "log_likelihood": result.mean,
            "standard_error": result.standard_error if self.examples > 1 else None,
            "bits_per_dimension": None if bits is None else bits.mean,
            "bits_per_dimension_standard_error": None if bits is None else bits.standard_error,
            "samples": result.samples,
            "examples": self.examples,
            "elbo": float(result.elbo.mean()),
            "effective_sample_size": float(result.effective.mean()),
            "effective_sample_size_smallest": float(result.effective.min()),
            "bounds": {str(K): float(values.mean()) for K, values in result.bounds.items()},
            "seconds": self.seconds,
            "split": self.split,
            "seed": self.seed,
            "data": data.name,
            "scale": data.scale,
            "binarisation": data.binarisation,
            "weights": saved.weights,
            "weights_sha256": saved.sha256,
            "epochs": saved.epoch,
        }


def ladder(result: Likelihood) -> str:
    """The bound at growing K, up to the estimate."""
    error = "" if len(result.log_p) == 1 else f" +- {result.standard_error:.3f}"
    rungs = {1: result.elbo, **result.bounds} if result.samples > 1 else {}
    rows = [["1 (ELBO)" if K == 1 else f"{K:,}", f"{float(values.mean()):.3f}"] for K, values in rungs.items()]
    rows.append([f"{result.samples:,}", f"{result.mean:.3f}{error} nats (standard error over examples)"])
    return tabulate(rows, ["K", "log p(x) >="], tablefmt="plain", disable_numparse=True, colalign=("right", "left"))
