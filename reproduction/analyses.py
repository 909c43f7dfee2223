"""The analyses of the paper's section 6: a trained model and its data in, numbers and figures out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import combinations
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from memgen.core.batch import Batch
from memgen.data import Dataset
from memgen.recipes.build import build
from memgen.report.figures.base import Figure
from memgen.report.figures.curves import training_curves
from memgen.report.figures.images import image_grid, image_rows
from memgen.report.figures.memory import Words, class_slots, disabled, graphs, heat_map
from memgen.runs.run import Run, Saved
from memgen.runs.scores import fill, look
from memgen.tasks.classification import classify
from memgen.tasks.features import features
from memgen.tasks.imputation import AUTHORS_BATCH
from memgen.tasks.inspection import Inspection, LayerInspection, by_class, correlation, preferences
from memgen.tasks.patterns import missing_entries
from memgen.tasks.sampling import sample
from memgen.tasks.scores import SquaredError, row_errors, squared_error
from memgen.training.fit import collect_statistics
from reproduction.rows import IMPUTATION_PAPER

GRID = 64
PICTURES = 12
STEPS = 100
SCORED, SAMPLES = 100, 100
"""Rows and importance samples for what each slot is worth."""
ALIKE = ((0, (7, 9)), (1, (7, 9)), (0, (1, 4, 7, 9)), (1, (3, 5, 8)))
"""Which layer (from the data upwards) prefers slots alike for which classes, as the paper says."""
UNTRAINED = 2000
"""Training rows for the batch norm of an untrained model."""
STATISTICS: dict[str, dict[str, Any]] = {
    "exact": {},
    "batch": {"batch_size": AUTHORS_BATCH, "batch_statistics": True},
}
"""Of batch norm, while missing pixels are filled in."""


class Found(NamedTuple):
    """What an analysis finds."""

    numbers: dict[str, Any]
    figures: Sequence[Figure] = ()
    examples: dict[str, Float64[Tensor, " N"]] = {}  # noqa: RUF012
    """name -> a number per test example, to be compared with those of another model, image by image."""


def training(run: Run, saved: Saved, data: Dataset) -> Found:
    """How the bound went."""
    return Found({}, [training_curves(run.metrics())])


def generation(run: Run, saved: Saved, data: Dataset) -> Found:
    """Means of p(x|z), z from the prior: the first 64 of seed 0, nothing picked."""
    caption = f"Means of p(x|z) for the first {GRID} draws of z from the prior, seed 0, nothing picked."
    return Found({"seed": 0}, [image_grid("samples", caption, sample(saved.model, GRID), data.shape)])


def imputation(run: Run, saved: Saved, data: Dataset) -> Found:
    """Table 2: the paper's method on grey test images, by exact statistics and, as its authors did, by those of 1,000
    images at a time."""
    x = data.rows("test")
    numbers: dict[str, Any] = {"method": "paper", "steps": STEPS, "examples": len(x), "patterns": {}}
    pictures: dict[str, Float[Tensor, "n D"]] = {}
    hidden, examples = {}, {}
    for pattern in IMPUTATION_PAPER:
        missing = missing_entries(pattern, data.shape, x.shape[1], len(x))
        own: dict[str, Any] = {}
        for statistics, more in STATISTICS.items():
            guess = fill(
                saved.model, Batch(x, ~missing), "paper", f"imputing {pattern}, {statistics}", steps=STEPS, **more
            ).mean
            own[f"{statistics}_statistics"] = _error(squared_error(guess, x, missing))
            examples[f"{pattern} {statistics}"] = row_errors(guess, x, missing)
            pictures.setdefault(pattern, x[:PICTURES])
            pictures.setdefault(f"{pattern}, filled", guess[:PICTURES].float())
        numbers["patterns"][pattern] = own
        hidden[pattern] = missing[:PICTURES]
    caption = (
        f"The first {PICTURES} test images, what was missing (blue), and what {STEPS} steps fill in (exact statistics)."
    )
    return Found(numbers, [image_rows("imputation", caption, pictures, data.shape, hidden)], examples)


def _error(error: SquaredError) -> dict[str, float]:
    return {"mse": error.mean, "standard_error": error.standard_error}


def svm(run: Run, saved: Saved, data: Dataset) -> Found:
    """A linear Crammer-Singer SVM without intercept on the last deterministic layer of Q, regularisation 1e-4."""
    x = {split: features(saved.model, data.split(split)).last for split in ("train", "valid", "test")}
    train = torch.cat([x["train"], x["valid"]]), torch.cat([data.labels["train"], data.labels["valid"]])
    found = classify(train, (x["test"], data.labels["test"]))
    numbers = {
        "accuracy": found.accuracy,
        "standard_error": found.standard_error,
        "regularisation": found.regularisation,
        "converged": found.converged,
        "examples": len(train[0]),
    }
    return Found(numbers, examples={"right": found.right.double()})


def memory(run: Run, saved: Saved, data: Dataset) -> Found:
    """Preferences of classes for slots, the claims about them in numbers, disabled memory, slots as images."""
    found = look(saved.model, data, "test", None, SCORED, SAMPLES, 0)
    numbers = {
        "rows": found.rows,
        "layers": [_layer(layer) for layer in found.layers],
        "alike": alike([layer.correlation for layer in found.layers], untrained(saved, data), found.pixels),
        "disabled": change_of_images(found),
    }
    words = Words("images", "pixels")
    figures = [heat_map(layer, found.labels, words) for layer in found.layers]
    figures += [
        graphs(found, words),
        disabled(found, data.shape),
        class_slots(found.layers[0], found.labels, data.shape),
    ]
    return Found(numbers, figures)


def _layer(layer: LayerInspection) -> dict[str, Any]:
    assert layer.classes is not None
    best = layer.classes.topk(min(3, layer.classes.shape[1]), -1)
    return {
        "name": layer.name,
        "slots": layer.classes.shape[1],
        "entropy": layer.usage.entropy,
        "dead": len(layer.usage.dead),
        "resemblance_to_pixels": layer.pixel_resemblance,
        "preferred_slots": best.indices.T.tolist(),
        "preferences": [[round(value, 4) for value in row] for row in best.values.T.tolist()],
    }


def untrained(saved: Saved, data: Dataset) -> list[Float[Tensor, "classes classes"]]:
    """Correlations between classes by the slots that a model with random weights prefers: not due to learning."""
    recipe = saved.recipe
    model = build(recipe, saved.model.likelihood.columns)
    rows = data.split("train").rows(slice(UNTRAINED))
    collect_statistics(model, rows, stochastic=data.stochastic, seed=recipe.training.seed)
    h = preferences(model, data.split("test"))
    return [correlation(by_class(own, data.labels["test"])) for own in h.values()]


def alike(
    layers: Sequence[Float[Tensor, "classes classes"] | None],
    random: Sequence[Float[Tensor, "classes classes"]],
    pixels: Float[Tensor, "classes classes"] | None,
) -> list[dict[str, Any]]:
    """What the paper says of classes that prefer the same slots, in correlations between classes."""
    found = []
    for i, classes in ALIKE:
        matrix = layers[i]
        if matrix is not None and pixels is not None:
            own = {"trained": group(matrix, classes), "untrained": group(random[i], classes)}
            found.append({"layer": i + 1, "classes": list(classes), **own, "pixels": group(pixels, classes)})
    return found


def change_of_images(found: Inspection) -> dict[str, float]:
    """Mean absolute change of a pixel when the memory is disabled, for every way of it."""
    intact = next(iter(found.disabled.values()))
    return {name: float((images - intact).abs().mean()) for name, images in found.disabled.items()}


def group(matrix: Float[Tensor, "classes classes"], own: tuple[int, ...]) -> dict[str, float]:
    """Mean correlation of pairs inside the group and of pairs with one class inside; the least mean correlation that
    one of its classes has with the others of it; and the rank of the first among those of all groups of that size.

    >>> group(torch.tensor([[1.0, 0.9, 0.1], [0.9, 1.0, 0.3], [0.1, 0.3, 1.0]]), (0, 1))["inside"]
    0.9
    """
    n = len(matrix)

    def inside(classes: tuple[int, ...]) -> float:
        pairs = list(combinations(classes, 2))
        return sum(float(matrix[i, j]) for i, j in pairs) / len(pairs)

    others = [float(matrix[i, j]) for i in own for j in range(n) if j not in own]
    means = sorted((inside(classes) for classes in combinations(range(n), len(own))), reverse=True)
    mine = inside(own)
    return {
        "inside": round(mine, 4),
        "least": round(min(sum(float(matrix[i, j]) for j in own if j != i) / (len(own) - 1) for i in own), 4),
        "across": round(sum(others) / len(others), 4),
        "rank": 1 + sum(mean > mine + 1e-9 for mean in means),
        "groups": len(means),
    }


ANALYSES: dict[str, Callable[[Run, Saved, Dataset], Found]] = {
    "training": training,
    "generation": generation,
    "imputation": imputation,
    "svm": svm,
    "memory": memory,
}
