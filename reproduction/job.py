"""A job: one row by one schedule, with one seed, on one split of the data; and where its result lies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from memgen.errors import MemgenError
from memgen.recipes.build import likelihood_name
from memgen.recipes.settings import Recipe
from memgen.training.prepare import with_likelihood
from reproduction.rows import OWN, ROWS, Row

SEED = 0
"""Of the row's own result."""
MADE = "made.json"
"""The file of a run folder that says with which program and on which machine it was begun, and which trainings came
before it."""
NEEDED = ("recipe_sha256", "weights_sha256", "more", "analyses", "before")


@dataclass(frozen=True)
class Place:
    """Where things lie."""

    results: Path
    """Small files, kept with the project."""
    runs: Path
    """Run folders, which are large."""
    device: str = "auto"
    compiled: bool = False
    """Whether trainings that begin have their loss compiled."""


@dataclass(frozen=True)
class Job:
    row: Row
    schedule: str
    seed: int = SEED
    split: int = 0
    """Of Frey faces."""

    @property
    def recipe(self) -> Recipe:
        recipe = self.row.recipe(self.schedule).override(f"training.seed={self.seed}")
        recipe = with_likelihood(recipe, likelihood_name(recipe))
        return recipe.override(f"data.name={recipe.data.name}-{self.split}") if self.split else recipe

    @property
    def name(self) -> str:
        """What tells it from others; of its run folder too."""
        parts = [self.row.name, *([] if self.schedule == OWN else [self.schedule])]
        parts += [f"seed{self.seed}"] if self.seed != SEED else []
        parts += [f"split{self.split}"] if self.split else []
        return "-".join(parts)

    @property
    def main(self) -> bool:
        """Whether it is the row's own result."""
        return (self.schedule, self.seed, self.split) == (self.row.schedule, SEED, 0)

    @property
    def analyses(self) -> tuple[str, ...]:
        """What is analysed beside log p(x): everything of a row's own result, and what the row asks of a training by
        the paper's schedule."""
        if self.main:
            return self.row.analyses
        return self.row.paper_schedule if (self.schedule, self.seed, self.split) == (OWN, SEED, 0) else ()

    @property
    def shipped_as(self) -> str:
        """What its weights are called in the zoo."""
        return self.row.name if self.main else self.name

    @property
    def before(self) -> Job | None:
        """The job whose weights it begins with."""
        leads = self.row.recipe(self.schedule).stages[:-1]
        for row in [self.row, *([ROWS[self.row.after]] if self.row.after else [])] if leads else []:
            for name, recipe in row.trainings.items():
                if recipe.stages == leads:
                    return Job(row, name, self.seed, self.split)
        return None

    @property
    def chain(self) -> list[Job]:
        """All jobs whose weights lead to it, from the first on, without itself."""
        return [] if self.before is None else [*self.before.chain, self.before]

    def result(self, place: Place) -> Path:
        """The file of its result."""
        if self.main:
            return place.results / f"{self.row.name}.json"
        return place.results / "seeds" / self.row.name / f"{self.name}.json"

    def run(self, place: Place) -> Path:
        return place.runs / self.name


def read_json(path: Path) -> dict[str, Any] | None:
    """A table of JSON; None if there is none yet."""
    if not path.exists():
        return None
    try:
        table = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        raise MemgenError(f"{path} is damaged: it is not JSON; bring back the last good one, or delete it") from None
    if not isinstance(table, dict):
        raise MemgenError(f"{path} is damaged: it is not a table; bring back the last good one, or delete it")
    return table


def read_result(path: Path) -> dict[str, Any] | None:
    """A job's result as it is written; None if there is none yet."""
    result = read_json(path)
    if result is not None and (lacking := [key for key in NEEDED if key not in result]):
        raise MemgenError(f"{path} is damaged: it has no {lacking[0]}; bring back the last good one, or delete it")
    return result
