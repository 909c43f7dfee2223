"""The imputation method of `memgen impute` with its settings, and the report on its effective states."""

from __future__ import annotations

from typing import Any, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from memgen.cli.command import say
from memgen.core.batch import Batch
from memgen.core.model import DGM
from memgen.runs.scores import fill
from memgen.tasks.imputation import METHODS, Imputation

FEW = 5
"""Number of effective states below which the user is advised to take more steps."""


class Chains(NamedTuple):
    """A method of imputation with its settings, on a model."""

    model: DGM
    method: str
    steps: int
    keep: int | None
    """How many of the last states are averaged; None: the default of the method."""
    draws: int
    seed: int

    @property
    def kept(self) -> int:
        return METHODS[self.method].kept(self.steps) if self.keep is None else self.keep

    @property
    def fills_means(self) -> bool:
        """Whether the method accepts grey levels without binarisation."""
        return METHODS[self.method].fills_means

    @property
    def options(self) -> dict[str, Any]:
        """The settings of `imputations`."""
        return {"steps": self.steps, "keep": self.keep, "draws": self.draws, "seed": self.seed}

    def fill(self, x: Float[Tensor, "N D"], observed: Bool[Tensor, "N D"], **options: Any) -> Imputation:
        return fill(self.model, Batch(x, observed), self.method, **self.options, **options)

    def carried(self, result: Imputation) -> dict[str, float | None]:
        """Effective states and accepted proposals; None where the method has none."""
        return {
            "effective_states": float(result.effective.median()) if METHODS[self.method].weighted else None,
            "accepted": float(result.accepted.mean()) if self.method == "mwg" else None,
        }

    def say_carried(self, result: Imputation) -> None:
        carried = self.carried(result)
        if (accepted := carried["accepted"]) is not None:
            say(f"accepted proposals among the kept: {accepted:.1%}")
        if (effective := carried["effective_states"]) is not None:
            hint = "; more --steps would help" if effective < FEW else ""
            say(f"effective states: median {effective:.1f} of {self.kept}{hint}")

    def to_dict(self) -> dict[str, Any]:
        return {"method": self.method, "steps": self.steps, "kept": self.kept, "seed": self.seed}
