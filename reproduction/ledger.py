"""The ledger of every look at test data: results/ledger.json, and the page LEDGER.md that is made of it."""

from __future__ import annotations

from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from memgen.runs.finite import as_json
from reproduction.job import Job, Place, read_json, read_result
from reproduction.text import grid, number

LEDGER, PAGE = "ledger.json", "LEDGER.md"
LIKELIHOOD = "log_likelihood"
REASONS = {
    LIKELIHOOD: "the result of this training",
    "imputation": "Table 2; the number is that of rect-12 with batch statistics",
    "svm": "the linear SVM; the number is the accuracy in percent",
    "inspection": "slot preferences, slots as images",
}
"""What is scored, and why, if a person has not said more."""
Entry = dict[str, Any]
HEADING = """# Every look at test data

Made from `ledger.json` by `python -m reproduction`, which adds a line whenever it scores test data. Recipes have the
names that they had then; results/recipes/ keeps those of version 0.5. Choices of settings
and epochs rest on validation data. A training that was extended after its test number was known had a second chance
that the paper's had not. Its line says so in the last column, and its number carries a mark wherever it stands.

`--verify` repeats a scoring that is listed here, with the same noise. `--ship` compares half precision with full
precision on the first 1,000 test examples. Neither adds a line, because neither gives a new number.
"""


def entries(results: Path) -> list[Entry]:
    """All lines, the oldest first."""
    document = read_json(results / LEDGER) or {"entries": []}
    if not isinstance(document.get("entries"), list):
        raise MemgenError(f"{results / LEDGER} is damaged: it has no list of entries; bring back the last good one")
    return list(document["entries"])


def update(job: Job, place: Place) -> None:
    """Add a line for everything that a job has scored on test data and that has no line yet."""
    result = read_result(job.result(place))
    if result is not None and (lines := added(result, entries(place.results))):
        write(place.results, [*entries(place.results), *lines])


def added(result: dict[str, Any], before: list[Entry]) -> list[Entry]:
    """The lines of a result that are not there yet. The same weights scored in the same way have one line."""
    known = extended_from(result, before)
    lines = [entry(result, *score, known) for score in scores(result)]
    return [line for line in lines if not any(same(line, other) for other in before)]


def scores(result: dict[str, Any]) -> list[tuple[str, int | None, int | None, float | None]]:
    """Every scoring of test data in a result: what, samples, examples, number."""
    scorings = [
        (LIKELIHOOD, scoring["samples"], scoring["examples"], scoring[result["compared"]])
        for scoring in likelihoods(result)
    ]
    analyses = result["analyses"]
    if (scoring := analyses.get("imputation")) is not None:
        errors = scoring["patterns"].get("rect-12", {}).get("batch_statistics", {})
        scorings.append(("imputation", None, scoring["examples"], errors.get("mse")))
    if (scoring := analyses.get("svm")) is not None:
        scorings.append(("svm", None, None, 100 * scoring["accuracy"]))
    if (scoring := analyses.get("memory")) is not None:
        scorings.append(("inspection", None, scoring["rows"], None))
    return scorings


def likelihoods(result: dict[str, Any]) -> list[dict[str, Any]]:
    return [result, *result["more"].values()]


def entry(
    result: dict[str, Any],
    what: str,
    samples: int | None,
    examples: int | None,
    value: float | None,
    known: float | None,
) -> Entry:
    return {
        "date": datetime.now(timezone.utc).date().isoformat(),
        "row": result["row"],
        "recipe": result["recipe"],
        "seed": result["seed"],
        "split": result["split"],
        "last_stage": result.get("stage", ""),
        "what": what,
        "samples": samples,
        "examples": examples,
        "number": value,
        "reason": REASONS[what],
        "extended_after": known,
        "weights_sha256": result["weights_sha256"],
    }


def extended_from(result: dict[str, Any], before: list[Entry]) -> float | None:
    """The test number that was known when a training was carried on: the last one of a part that came before it."""
    known = [line["number"] for line in before if about(line, result) and begins(line, result)]
    return known[-1] if known else None


def begins(line: Entry, result: dict[str, Any]) -> bool:
    """Whether a line is about a training with which this one began. Recipes are compared, and not weights, because
    these may have been shipped in half precision."""
    stage = line["last_stage"]
    legs = result.get("before", [])
    return any(line["recipe"] in names(leg) and leg.get("stage", stage) == stage for leg in legs)


def names(leg: dict[str, Any]) -> set[str]:
    """What the recipe of a part of a training is called, and was called when it was trained.

    >>> sorted(names({"recipe": "mnist-vae --schedule fast", "recipe_file": "recipes/mnist-vae-finish.toml"}))
    ['mnist-vae --schedule fast', 'mnist-vae-finish']
    """
    return {leg["recipe"], Path(leg.get("recipe_file", leg["recipe"])).stem}


def about(line: Entry, result: dict[str, Any]) -> bool:
    """Whether a line is the same kind of likelihood of the same row, seed and split."""
    keys = ("row", "seed", "split", "samples", "examples")
    return line["what"] == LIKELIHOOD and [line[key] for key in keys] == [result[key] for key in keys]


def same(line: Entry, other: Entry) -> bool:
    keys = ("weights_sha256", "what", "samples", "examples")
    return [line[key] for key in keys] == [other[key] for key in keys]


def write(results: Path, lines: list[Entry]) -> None:
    write_atomically(results / LEDGER, as_json({"entries": lines}))
    write_atomically(results / PAGE, page(lines).encode())


def marks(results: Path) -> dict[str, float]:
    """The weights whose training was extended after a test number was known -> that number."""
    extended = [line for line in entries(results) if line["extended_after"] is not None]
    return {line["weights_sha256"]: float(line["extended_after"]) for line in extended if line["weights_sha256"]}


def page(lines: list[Entry]) -> str:
    heads = ("date", "row", "recipe", "last stage", "seed", "split", "scored", "number", "reason", "extended after")
    return f"{HEADING}\n{grid(heads, map(cells, lines))}\n"


def cells(line: Entry) -> tuple[str, ...]:
    return (
        line["date"],
        f"`{line['row']}`",
        f"`{line['recipe']}`" if line["recipe"] else "",
        line["last_stage"],
        "" if line["seed"] is None else str(line["seed"]),
        "" if line["split"] is None else str(line["split"]),
        scored(line),
        "" if line["number"] is None else number(line["number"], digits=4 if line["what"] == "imputation" else 2),
        line["reason"],
        "" if line["extended_after"] is None else f"{line['extended_after']:.2f} was known",
    )


def scored(line: Entry) -> str:
    """What was scored, in words.

    >>> scored({"what": "log_likelihood", "samples": 5000, "examples": 10000})
    'likelihood, K = 5,000, 10,000 examples'
    """
    parts = [line["what"].replace(LIKELIHOOD, "likelihood")]
    parts += [f"K = {line['samples']:,}"] if line["samples"] else []
    parts += [f"{line['examples']:,} examples"] if line["examples"] else []
    return ", ".join(parts)
