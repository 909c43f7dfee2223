"""Per-example results of an evaluation, stored in a run folder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from torch import Tensor

import memgen
from memgen.errors import MemgenError
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import Likelihood


@dataclass(frozen=True)
class Scores:
    """The file of per-example results. With it an evaluation can be resumed, and compared with others in pairs."""

    file: Path
    samples: int
    weights: str
    """sha256 of the weights that were scored. Stored results of other weights are ignored."""

    def read(self) -> tuple[Likelihood | None, float]:
        """The stored results, from the first example on, and the seconds that they took."""
        try:
            tensors, about = load_tensors(self.file)
        except MemgenError:
            return None, 0.0
        if (about.get("weights"), about.get("memgen")) != (self.weights, memgen.__version__):
            return None, 0.0
        bounds = {name.removeprefix("bound."): value for name, value in tensors.items() if name.startswith("bound.")}
        parts = [tensors.get(name) for name in ("log_p", "elbo", "effective")]
        if not _agree([*parts, *bounds.values()]) or not all(K.isdecimal() and len(K) < 10 for K in bounds):
            return None, 0.0
        by_samples = {K: bounds[str(K)] for K in sorted(map(int, bounds))}
        result = Likelihood(self.samples, tensors["log_p"], tensors["elbo"], tensors["effective"], by_samples)
        return result, _seconds(about)

    def write(self, result: Likelihood, seconds: float) -> None:
        try:
            self.file.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise MemgenError(f"cannot make the folder {self.file.parent}: {error.strerror}") from None
        tensors = {"log_p": result.log_p, "elbo": result.elbo, "effective": result.effective}
        tensors |= {f"bound.{K}": values for K, values in result.bounds.items()}
        about = {"weights": self.weights, "memgen": memgen.__version__, "seconds": repr(seconds)}
        save_tensors(self.file, tensors, about)


def _agree(values: list[Tensor | None]) -> bool:
    """Whether every row has one number of each kind."""
    rows = None if values[0] is None else values[0].shape
    return all(v is not None and v.ndim == 1 and v.shape == rows and v.is_floating_point() for v in values)


def _seconds(about: dict[str, str]) -> float:
    try:
        return float(about["seconds"])
    except (KeyError, ValueError):
        return 0.0
