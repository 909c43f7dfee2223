"""The parts of the page about the paper's section 6: missing values, classification, slots."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduction.job import SEED, Job, Place, read_result
from reproduction.pairs import by_schedule
from reproduction.rows import IMPUTATION_PAPER, OWN, ROWS, SLOT_PAPER, SVM_PAPER
from reproduction.text import grid, number

MEMORY_PAIR = ("mnist-mem-vae", "mnist-vae")
"""Whose analyses are compared."""
Results = dict[str, dict[str, Any]]
Compared = dict[str, dict[str, float]]
"""analysis and what it counts -> mean difference and its standard error."""


def memory_differences(folder: Path) -> Compared:
    """MEM-VAE minus VAE, image by image, of what both were analysed for."""
    entries = [pair for pair in by_schedule(folder, MEMORY_PAIR)[1] if pair["seed"] == SEED]
    return entries[0].get("analyses", {}) if entries else {}


def paper_schedule(folder: Path) -> Results:
    """The results of the rows that are analysed after a training by the paper's schedule, too."""
    place = Place(folder, folder)
    by_name = {row.name: read_result(Job(row, OWN).result(place)) for row in ROWS.values() if row.paper_schedule}
    return {name: result for name, result in by_name.items() if result is not None}


def analysed(analysis: str, name: str, results: Results, by_paper: Results) -> list[tuple[str, dict[str, Any]]]:
    """(model and schedule, numbers) of an analysis of a row: its own result, then that by the paper's schedule."""
    whose = ((ROWS[name].model, results), (f"{ROWS[name].model}, the paper's schedule", by_paper))
    return [
        (model, numbers)
        for model, by_row in whose
        if (numbers := by_row.get(name, {}).get("analyses", {}).get(analysis)) is not None
    ]


def imputation(results: Results, by_paper: Results, compared: Compared) -> str:
    """Table 2."""
    rows = []
    for pattern, paper in IMPUTATION_PAPER.items():
        for name, theirs in paper.items():
            for model, analysis in analysed("imputation", name, results, by_paper):
                exact, batch = (analysis["patterns"][pattern][key] for key in ("exact_statistics", "batch_statistics"))
                rows.append(
                    (
                        pattern,
                        model,
                        number(theirs, digits=4),
                        number(exact["mse"], exact["standard_error"], 4),
                        number(batch["mse"], batch["standard_error"], 4),
                        "at or below" if batch["mse"] <= theirs else "above",
                    )
                )
    if not rows:
        return "## Table 2, imputation\n\nNot done."
    heads = (
        "missing",
        "model",
        "paper",
        "ours, exact statistics",
        "ours, statistics of 1,000 images",
        "the latter beside the paper",
    )
    text = (
        "Mean squared error per missing pixel after 100 steps of the paper's method, grey test images, seed 0. The "
        "paper's authors normalised with the statistics of 1,000 images at a time; exact statistics are those of the "
        "training set."
    )
    return f"## Table 2, imputation\n\n{text}\n\n{grid(heads, rows)}{imputation_differences(compared)}"


def imputation_differences(compared: Compared) -> str:
    """The difference that memory makes to Table 2."""
    rows = []
    for pattern, paper in IMPUTATION_PAPER.items():
        both = [compared[key] for s in ("exact", "batch") if (key := f"imputation {pattern} {s}") in compared]
        if len(both) == 2:
            theirs = number(paper[MEMORY_PAIR[0]] - paper[MEMORY_PAIR[1]], digits=4, sign=True)
            ours = [number(difference["mean"], difference["standard_error"], 4, sign=True) for difference in both]
            rows.append((pattern, theirs, *ours))
    heads = (
        "MEM-VAE - VAE, same schedule, paired over images (1 training of each)",
        "paper",
        "ours, exact statistics",
        "ours, statistics of 1,000 images",
    )
    return f"\n\n{grid(heads, rows)}" if rows else ""


def svm(results: Results, by_paper: Results, compared: Compared) -> str:
    rows = []
    for name, paper in SVM_PAPER.items():
        for model, numbers in analysed("svm", name, results, by_paper):
            ours = f"{numbers['accuracy']:.2%} ± {numbers['standard_error']:.2%}"
            ours += "" if numbers["converged"] else " (the solver stopped before its tolerance)"
            rows.append((model, f"{paper:.2%}", ours, f"{100 * (numbers['accuracy'] - paper):+.2f}"))
    text = "## A linear SVM on the last deterministic layer of Q\n\n"
    text += grid(("model", "paper", "ours", "points more"), rows) if rows else "Not done."
    if (analysis := compared.get("svm right")) is not None:
        difference = number(100 * analysis["mean"], 100 * analysis["standard_error"], 2, sign=True)
        theirs = number(100 * (SVM_PAPER["mnist-mem-vae"] - SVM_PAPER["mnist-vae"]), sign=True)
        text += (
            "\n\nMEM-VAE minus VAE, same schedule, paired over images (1 training of each): "
            f"{difference} points; the paper has {theirs}."
        )
    return text


def claims(results: Results) -> str:
    """What the paper says of preferences, in numbers."""
    analysis = memory_of(results)
    if analysis is None:
        return "## Which classes prefer which slots\n\nNot done."
    rows = [
        (
            f"{words(claim)} prefer slots alike in layer {claim['layer']}",
            *(correlations(claim[key]) for key in ("trained", "untrained", "pixels")),
            ", ".join(str(claim[key]["rank"]) for key in ("trained", "untrained", "pixels")),
            str(claim["trained"]["groups"]),
            "holds" if holds(claim) else "does not hold",
        )
        for claim in analysis["alike"]
    ]
    heads = ("the paper says", "MEM-VAE", "the same untrained", "raw pixels", "ranks of these", "among", "verdict")
    resemble = ", ".join(f"{layer['resemblance_to_pixels']:.2f} ({layer['name']})" for layer in analysis["layers"])
    text = (
        "The first number of a cell is the mean correlation between the slot preferences of these classes, with the "
        "least of any class in brackets. The second is their mean correlation with the other classes. The rank is that "
        "of the first number among all groups of as many classes. A claim holds if the rank is in the first tenth, if "
        "every class of the group is more like the rest of the group than the group is like the others, and if the "
        "first number minus the second is larger than in the untrained model. A high rank in the untrained model or in "
        "raw pixels says that the digits themselves are alike. One training.\n\n"
    )
    pixels = (
        "\n\nIn the paper the class correlations of layer 1 resemble those of raw pixels. The correlation between the "
        f"two is {resemble} here (1 training).\n\n"
    )
    off = ", ".join(f"{name}: {value:.3f}" for name, value in analysis["disabled"].items())
    disabled = f"Disabled memory, mean absolute change of a pixel of 20 samples: {off}."
    return "## Which classes prefer which slots\n\n" + text + grid(heads, rows) + pixels + disabled


def memory_of(results: Results, name: str = "mnist-mem-vae") -> dict[str, Any] | None:
    analysis: dict[str, Any] | None = results.get(name, {}).get("analyses", {}).get("memory")
    return analysis


def correlations(group: dict[str, Any]) -> str:
    return f"{group['inside']:.2f} ({group['least']:.2f}) / {group['across']:.2f}"


def words(claim: dict[str, Any]) -> str:
    return ", ".join(map(str, claim["classes"]))


def holds(claim: dict[str, Any]) -> bool:
    trained, untrained = claim["trained"], claim["untrained"]
    high_rank = trained["rank"] <= max(1, trained["groups"] // 10)
    all_alike = trained["least"] > trained["across"]
    return bool(
        high_rank and all_alike and trained["inside"] - trained["across"] > untrained["inside"] - untrained["across"]
    )


def slots(results: Results) -> str:
    """The preference table under the pictures of slots."""
    analysis = memory_of(results, "mnist-vis-mem-vae")
    if analysis is None:
        return "## Slots as images\n\nNot done."
    ours = analysis["layers"][0]["preferences"]
    rows = []
    for rank, name in enumerate(("1st", "2nd", "3rd")):
        rows.append((name, "paper", *(f"{value:.2f}" for value in SLOT_PAPER[rank])))
        rows.append((name, "ours", *(f"{value:.2f}" for value in ours[rank])))
    text = "VIS-MEM-VAE: the preference of each class for its three favourite slots of layer 1 (1 training)."
    return f"## Slots as images\n\n{text}\n\n{grid(('slot', '', *map(str, range(10))), rows)}"


def sweep(result: dict[str, Any] | None) -> str:
    if result is None:
        return "## How to divide 100 slots between the layers\n\nNot done."
    rows = [
        (
            name,
            number(division["log_likelihood"], division["standard_error"]),
            ""
            if name == "70-30"
            else number(division["minus_paper"], division["minus_paper_standard_error"], 3, sign=True),
        )
        for name, division in result["splits"].items()
    ]
    text = (
        f"Trainings of {result['epochs']} epochs by `{result['recipe']}` without the validation images. "
        f"{result['examples']:,} of these are scored with {result['samples']:,} samples; 1 training of each."
    )
    heads = ("slots, layer 1 - layer 2", "log p(x)", "minus 70-30, paired over images")
    return f"## How to divide 100 slots between the layers\n\n{text}\n\n{grid(heads, rows)}"
