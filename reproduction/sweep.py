"""How 100 slots are best shared by two layers: short trainings, compared on validation images."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from memgen.recipes.settings import Recipe
from memgen.runs.scores import score
from memgen.tasks.density import standard_error
from reproduction.job import MADE, Place, read_json
from reproduction.jobs import data_of, keep, train_folder
from reproduction.results import recipe_sha256
from reproduction.rows import SLOT_SPLITS, SWEEP

BASE = "mnist-mem-vae"
SCHEDULE, STAGE = "fast", "main"
EPOCHS = 20
EXAMPLES, SAMPLES = 2000, 500
PAPER = (70, 30)


def recipe_of(slots: tuple[int, int]) -> Recipe:
    return (
        Recipe.named(BASE, SCHEDULE)
        .until(STAGE)
        .override(
            [
                f"model.slots={list(slots)}",
                "data.train_on=train",
                f"training.epochs={EPOCHS}",
                "training.evaluate_every=0",
            ]
        )
    )


def sweep(place: Place) -> dict[str, Any]:
    """Train and score every split of the slots; what is there already is not done again."""
    if (before := swept(place.results)) is not None:
        return before
    scores, made = {}, {}
    for slots in SLOT_SPLITS:
        run, saved = train_folder(place.runs / f"slots-{name_of(slots)}", recipe_of(slots), place)
        x = data_of(saved).fixed("valid", EXAMPLES)
        scores[slots] = score(run, saved, x, "valid", SAMPLES)[0].log_p
        seconds = round(run.metrics()[-1]["seconds"], 1)
        made[slots] = {"weights_sha256": saved.sha256, "seconds": seconds, **(read_json(run.folder / MADE) or {})}
    splits = {
        name_of(slots): {
            "log_likelihood": float(log_p.mean()),
            "standard_error": standard_error(log_p),
            "minus_paper": float((log_p - scores[PAPER]).mean()),
            "minus_paper_standard_error": standard_error(log_p - scores[PAPER]),
            **made[slots],
        }
        for slots, log_p in scores.items()
    }
    result = {
        "recipe": f"{BASE} --schedule {SCHEDULE} --until {STAGE}",
        "recipe_sha256": recipes(),
        "seed": Recipe.named(BASE).training.seed,
        "epochs": EPOCHS,
        "examples": EXAMPLES,
        "samples": SAMPLES,
        "data": "the first rows of the validation images",
        "splits": splits,
    }
    keep(place.results / f"{SWEEP}.json", result)
    return result


def swept(results: Path) -> dict[str, Any] | None:
    """What was found by the recipes as they are now."""
    result = read_json(results / f"{SWEEP}.json")
    return result if result is not None and result.get("recipe_sha256") == recipes() else None


def recipes() -> dict[str, str]:
    """Of every split of the slots, the hash of its recipe."""
    return {name_of(slots): recipe_sha256(recipe_of(slots)) for slots in SLOT_SPLITS}


def name_of(slots: tuple[int, int]) -> str:
    return f"{slots[0]}-{slots[1]}"
