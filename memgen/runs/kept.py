"""Per-example results of an evaluation, as a run folder keeps them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import memgen
from memgen.errors import MemgenError
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import Likelihood


@dataclass(frozen=True)
class Scores:
    """Per-example results of an evaluation, kept so that it can be interrupted, continued, and compared in pairs."""

    file: Path
    samples: int
    weights: str
    """sha256 of the weights that were scored: results of others do not count."""

    def read(self) -> tuple[Likelihood | None, float]:
        """What has been scored so far, from the first example on, and the seconds that it took."""
        try:
            tensors, about = load_tensors(self.file)
        except MemgenError:
            return None, 0.0
        if (about["weights"], about["memgen"]) != (self.weights, memgen.__version__):
            return None, 0.0
        bounds = {
            int(name.removeprefix("bound.")): value for name, value in tensors.items() if name.startswith("bound.")
        }
        result = Likelihood(
            self.samples, tensors["log_p"], tensors["elbo"], tensors["effective"], dict(sorted(bounds.items()))
        )
        return result, float(about["seconds"])

    def write(self, result: Likelihood, seconds: float) -> None:
        try:
            self.file.parent.mkdir(exist_ok=True)
        except OSError as error:
            raise MemgenError(f"cannot make the folder {self.file.parent}: {error.strerror}") from None
        tensors = {"log_p": result.log_p, "elbo": result.elbo, "effective": result.effective}
        tensors |= {f"bound.{K}": values for K, values in result.bounds.items()}
        about = {"weights": self.weights, "memgen": memgen.__version__, "seconds": repr(seconds)}
        save_tensors(self.file, tensors, about)
