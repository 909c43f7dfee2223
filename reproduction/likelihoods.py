"""The sections of the page about log p(x): the paper's tables row by row, differences, other trainings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memgen.runs.session import COMPILED
from reproduction.job import read_result
from reproduction.overview import Results, digits_of, gap
from reproduction.pairs import over, valid
from reproduction.rows import FREY, MNIST, OCR, PAIRS, ROWS, Row
from reproduction.text import grid, number, trained_for

QUOTED = {
    MNIST: "The paper quotes from others: VAE, IWAE-5, IWAE-50 and two-layer IWAE-50 of Burda et al. -86.76, -85.54, "
    "-84.78, -82.90; DBN -84.55; DRAW -80.97. These have other scales or binarisations and cannot be compared with the "
    "column above. On a fixed binarisation: RWS-SBN/SBN -85.48, RWS-NADE/NADE -85.23, NADE -88.86, DARN -84.13.",
    OCR: "The paper quotes from others: RWS-SBN/SBN -29.99, RWS-NADE/NADE -26.43, NADE -27.22, DARN -28.17.",
}
TRAINED = ("samples and examples", "epochs", "training time", "recipe", "seed")


def table(results: Results, name: str) -> str:
    """A table of the paper: how each of its rows was measured and trained."""
    rows = [table_row(row, results[row.name]) for row in ROWS.values() if row.table == name and row.name in results]
    quantity = "ELBO" if name == FREY else "log p(x)"
    parts = [f"## {name}", grid(("model", "paper", f"ours, {quantity}", *TRAINED), rows) if rows else "Not done."]
    parts += [letters(results)] if name == OCR else []
    parts += [faces(results)] if name == FREY else []
    return "\n\n".join(part for part in [*parts, QUOTED.get(name, "")] if part)


def table_row(row: Row, result: dict[str, Any]) -> Sequence[str]:
    digits = 1 if row.table == FREY else 2
    return (
        row.model,
        number(row.paper, digits=digits_of(row)),
        number(result[row.quantity], result["difference_standard_error"], digits),
        *measured(result),
    )


def measured(result: dict[str, Any]) -> tuple[str, ...]:
    """Samples, examples, epochs, time, recipe and seed."""
    return (
        f"K = {result['samples']:,}, {result['examples']:,}",
        *effort(result),
        f"`{result['recipe']}`",
        str(result["seed"]),
    )


def effort(result: dict[str, Any]) -> tuple[str, str]:
    """Epochs and time, threads, and whether it was compiled."""
    threads = result["hardware"]["threads"]
    how = f" on {threads} thread{'s' if threads > 1 else ''}"
    return trained_for(result, how + (", compiled" if result["execution"].get("path") == COMPILED else ""))


def letters(results: Results) -> str:
    """The paper's 100,000 samples, on fewer letters."""
    rows = [
        (
            row.model,
            f"{int(samples):,}",
            f"{scoring['examples']:,}",
            number(scoring["log_likelihood"], scoring["standard_error"], 3),
            number(scoring["gain"], scoring["gain_standard_error"], 3, sign=True),
            number(results[row.name]["log_likelihood"] + scoring["gain"]),
            number(gap(results[row.name]), sign=True),
        )
        for row in ROWS.values()
        if row.table == OCR and row.name in results
        for samples, scoring in results[row.name]["more"].items()
    ]
    if not rows:
        return "The paper took 100,000 samples for each letter. Here they are 10,000."
    heads = ("model", "samples", "letters", "log p(x)", "gain over 10,000 samples", "all letters + gain", "minus paper")
    return (
        "The paper took 100,000 samples for each letter. Here all letters have 10,000, and 2,000 letters that were "
        "chosen by a seed have 100,000. The opening table has the number of all letters plus this gain:\n\n"
        + grid(heads, rows)
    )


def faces(results: Results) -> str:
    """log p(x) beside the bound that the paper reports."""
    rows = [
        (row.model, number(result["log_likelihood"], result["standard_error"], 1), f"{result['samples']:,}")
        for row in ROWS.values()
        if row.table == FREY and (result := results.get(row.name)) is not None
    ]
    text = (
        "The paper reports the bound with one sample; ours is the mean of it over 5,000 draws. Its 100 test faces are "
        "not known, and splits differ by more than a standard error, so the comparison of models below is over five "
        "splits. The estimate of log p(x):"
    )
    return f"{text}\n\n{grid(('model', 'log p(x)', 'samples'), rows)}" if rows else ""


def differences(folder: Path) -> str:
    """One row minus another: over trainings, and each training image by image."""
    rows: list[tuple[str, ...]] = []
    totals: list[tuple[str, ...]] = []
    for pair in PAIRS:
        entries, name = valid(folder, pair), f"`{pair[0]}` - `{pair[1]}`"
        for entry in entries:
            values = number(entry["mean"], entry["standard_error"], 2, sign=True)
            rows.append((name, entry["schedule"], str(entry["seed"]), str(entry["split"]), values))
        schedules = sorted({entry["schedule"] for entry in entries})
        totals += [(name, schedule, *total(pair, entries, schedule)) for schedule in schedules]
    if not rows:
        return ""
    mean = grid(("pair", "schedule", "trainings", "difference ± over trainings", "paper", "verdict"), totals)
    each = grid(("pair", "schedule", "seed", "split", "difference ± over images"), rows)
    text = (
        "Both models of a pair have the same schedule, seed and split. Whether one kind of model is better is a "
        "question about several trainings: a difference counts where the interval of 95% (Student's t over trainings) "
        "leaves out zero. The splits of Frey faces overlap, so their interval is rather narrow."
    )
    single = "The same differences, training by training. ± is over images: how well these two trained models are told "
    return f"## Differences between models\n\n{text}\n\n{mean}\n\n{single}apart.\n\n{each}"


def total(pair: tuple[str, str], entries: list[dict[str, Any]], schedule: str) -> tuple[str, ...]:
    mean = over(entries, schedule)
    n, kind = mean["trainings"], mean["over"]
    values = number(mean["mean"], mean["standard_error"], 2, sign=True)
    verdict = better(mean["mean"], mean["standard_error"], n)
    return (f"{n} {kind if n > 1 else kind.removesuffix('s')}", values, number(of_paper(pair), sign=True), verdict)


def of_paper(pair: tuple[str, str]) -> float:
    """The difference between two rows of the paper."""
    return ROWS[pair[0]].paper - ROWS[pair[1]].paper


def better(mean: float, error: float | None, n: int) -> str:
    """By Student's t over n trainings.

    >>> better(1.0, 0.2, 2), better(1.0, 0.2, 5), better(1.0, None, 1)
    ('no detectable difference', 'the first is better', 'one training: open')
    """
    if error is None or n < 2:
        return "one training: open"
    from scipy.stats import t  # takes half a second to import

    if abs(mean) < float(t.ppf(0.975, n - 1)) * error:
        return "no detectable difference"
    return "the first is better" if mean > 0 else "the second is better"


def others(folder: Path) -> str:
    """Other seeds, schedules and splits."""
    rows = []
    for path in sorted((folder / "seeds").glob("*/*.json")):
        if (result := read_result(path)) is not None:
            value = number(result[result["compared"]], result["difference_standard_error"])
            difference = number(result["difference"], digits=2, sign=True)
            rows.append((f"`{result['row']}`", value, difference, *measured(result), str(result["split"])))
    heads = ("row", "ours", "ours - paper", *TRAINED, "split")
    return f"## Other seeds, schedules and splits\n\n{grid(heads, rows)}" if rows else ""
