"""How `memgen impute` fills in rows: all of them, or those of a shard."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from jaxtyping import Bool, Float
from torch import Tensor

from memgen.cli.chains import Chains
from memgen.cli.sharding import Sharding, name_of, short_hash
from memgen.core.batch import Batch
from memgen.runs.kept import ShardImputation, imputation_layout
from memgen.runs.modelfile import Saved
from memgen.runs.scores import fill_rows
from memgen.runs.shards import Merged, ShardFile
from memgen.tasks.imputation import Imputation, borders, join


class Filling(NamedTuple):
    """The rows are filled in by one process, or by several of which each has a shard."""

    chains: Chains
    sharding: Sharding
    saved: Saved
    run: Path
    about: dict[str, Any]
    """What is filled in, beside weights and rows: the pattern, or the options of reading."""

    def __call__(
        self, x: Float[Tensor, "N D"], observed: Bool[Tensor, "N D"], what: str = "imputing", **options: Any
    ) -> Imputation | None:
        """All rows, with their missing values filled in; None where this process does not merge."""
        if not self.sharding.asked:
            return self.chains.fill(x, observed, what=what, **options)
        options |= self.chains.options

        def work(file: ShardFile) -> None:
            kept = ShardImputation(file)
            fill_rows(self.saved.model, Batch(x, observed), self.chains.method, what, kept, file.rows, **options)

        settings = {"command": "impute", "method": self.chains.method, **self.about, **options}
        rows = self.sharding.made_with(self.saved, Batch.of(x), Batch(observed.to(x)))
        merged = self.sharding.results(
            self.sharding.place(self.run, self._name(settings)) / self._part(options),
            {**settings, **rows},
            borders(len(x), *([options["batch_size"]] if "batch_size" in options else [])),
            imputation_layout(x.shape[1], self.chains.draws),
            work,
        )
        return None if merged is None else joined(merged)

    def _name(self, settings: dict[str, Any]) -> str:
        """The name of the folder: readable, and with a hash of all settings."""
        shared = {key: value for key, value in settings.items() if key not in ("batch_size", "batch_statistics")}
        return name_of("impute", self.about["what"], self.chains.method, short_hash(shared))

    @staticmethod
    def _part(options: dict[str, Any]) -> str:
        """The folder in it of the pass with batch statistics; "" for the usual pass."""
        return "batch-statistics" if options.get("batch_statistics") else ""


def joined(merged: Merged) -> Imputation:
    return join([Imputation(**part) for part in merged.parts])
