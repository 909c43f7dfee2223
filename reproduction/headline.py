"""`python -m reproduction.headline`: how much a headline number depends on the binarisation of the test set and on the
number of samples. Shipped weights are scored; a run that was stopped goes on with the same command."""

from __future__ import annotations

import sys
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.noise import BINARISATION_SEED, binarise
from memgen.data.output import write_atomically
from memgen.runs import zoo
from memgen.runs.finite import as_json
from memgen.runs.modelfile import Saved
from memgen.runs.run import read_model
from memgen.tasks.density import log_likelihood
from reproduction import ledger
from reproduction.job import read_json
from reproduction.jobs import data_of
from reproduction.rows import ROWS
from reproduction.text import grid, number

FILE = "headline.json"
NAMES = ("mnist-mem-vae", "mnist-vae")
"""Shipped models that are scored so."""
SEEDS = (BINARISATION_SEED, *range(10))
"""Of the binarisations: that of all other numbers, and ten others."""
SAMPLES = 1000
"""For each test image of a binarisation. Fewer samples give a lower estimate, by the same amount for all of them."""
CURVE_SAMPLES, CURVE_IMAGES = 50_000, 1000
Numbers = dict[str, Any]


def measure(results: Path, name: str) -> None:
    """All scorings of a model that are not there yet; each is written as soon as it is known."""
    saved = read_model(zoo.folder() / f"{name}{zoo.ENDING}", "cpu")
    pixels = data_of(saved).rows("test")
    for seed in SEEDS:
        if str(seed) not in known(results, name, saved)["binarisations"]:
            add(results, name, saved, "binarisations", str(seed), one_binarisation(saved, pixels, seed))
    if "samples" not in known(results, name, saved)["curve"]:
        x = binarise(pixels)[:CURVE_IMAGES]
        for key, value in curve(saved, x).items():
            add(results, name, saved, "curve", key, value)


def one_binarisation(saved: Saved, pixels: Float[Tensor, "N D"], seed: int) -> float:
    return log_likelihood(saved.model, Batch(binarise(pixels, seed)), SAMPLES).mean


def curve(saved: Saved, x: Float[Tensor, "N D"]) -> Numbers:
    """The bound with few samples and with many."""
    result = log_likelihood(saved.model, Batch(x), CURVE_SAMPLES)
    bounds = {str(K): float(values.mean()) for K, values in result.bounds.items()}
    return {
        "bounds": {"1": float(result.elbo.mean()), **bounds, str(CURVE_SAMPLES): result.mean},
        "standard_error": result.standard_error,
        "examples": len(x),
        "samples": CURVE_SAMPLES,
    }


def known(results: Path, name: str, saved: Saved) -> Numbers:
    """What is stored about these weights."""
    stored = (read_json(results / FILE) or {}).get(name, {})
    empty = {"weights_sha256": saved.sha256, "samples": SAMPLES, "binarisations": {}, "curve": {}}
    return stored if stored.get("weights_sha256") == saved.sha256 and stored.get("samples") == SAMPLES else empty


def add(results: Path, name: str, saved: Saved, part: str, key: str, value: Any) -> None:
    """Write one number, and the file's other ones with it."""
    document, numbers = read_json(results / FILE) or {}, known(results, name, saved)
    numbers[part][key] = value
    write_atomically(results / FILE, as_json({**document, name: numbers}))


def note_looks(results: Path, name: str) -> None:
    """Add the looks at test data to the ledger."""
    scores, shipped = (read_json(results / FILE) or {})[name], zoo.result(name)
    others = [mean for seed, mean in scores["binarisations"].items() if seed != str(BINARISATION_SEED)]
    looks = (
        (SAMPLES, 10_000, sum(others) / len(others), "ten other binarisations; the number is their mean"),
        (CURVE_SAMPLES, CURVE_IMAGES, scores["curve"]["bounds"][str(CURVE_SAMPLES)], "how the bound grows with K"),
    )
    lines = [
        {
            "date": datetime.now(timezone.utc).date().isoformat(),
            "row": name,
            "recipe": shipped["recipe"],
            "seed": shipped["seed"],
            "split": None,
            "last_stage": "",
            "what": ledger.LIKELIHOOD,
            "samples": samples,
            "examples": examples,
            "number": value,
            "reason": f"{why}; nothing rests on it",
            "extended_after": None,
            "weights_sha256": scores["weights_sha256"],
        }
        for samples, examples, value, why in looks
    ]
    before = ledger.entries(results)
    ledger.write(results, [*before, *(line for line in lines if not any(ledger.same(line, old) for old in before))])


def section(results: Path) -> str:
    """The part of the page."""
    document = read_json(results / FILE) or {}
    whole = {name: scores for name, scores in document.items() if "samples" in scores["curve"]}
    if not whole:
        return ""
    return "\n\n".join(
        [
            "## Other binarisations, and more samples",
            f"The test set is binarised once, with one seed. Ten other seeds give, with {SAMPLES:,} samples for each "
            f"of the 10,000 images (`python -m reproduction.headline`):",
            grid(
                ("model", "the usual seed", "ten others: mean", "standard deviation", "lowest", "highest"),
                (_spread(name, scores) for name, scores in whole.items()),
            ),
            f"The mean bound on log p(x) with K samples, on the first {CURVE_IMAGES:,} test images of the usual seed. "
            "At K = 1 it is the ELBO.",
            _curves(whole),
        ]
    )


def _spread(name: str, scores: Numbers) -> list[str]:
    usual = scores["binarisations"][str(BINARISATION_SEED)]
    others = torch.tensor([mean for seed, mean in scores["binarisations"].items() if seed != str(BINARISATION_SEED)])
    numbers = (usual, others.mean(), others.std(correction=1), others.min(), others.max())
    return [ROWS[name].model, *(number(float(value)) for value in numbers)]


def _curves(whole: dict[str, Numbers]) -> str:
    counts = sorted({int(K) for scores in whole.values() for K in scores["curve"]["bounds"]})
    rows = (
        [ROWS[name].model, *(number(scores["curve"]["bounds"][str(K)]) for K in counts)]
        for name, scores in whole.items()
    )
    return grid(["model", *(f"K = {K:,}" for K in counts)], rows)


def main() -> int:
    results = Path("results")
    for name in NAMES:
        clock = time.monotonic()
        measure(results, name)
        note_looks(results, name)
        print(f"{name}: {time.monotonic() - clock:.0f} s", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
