"""What does not match the paper: every number that falls short of it, and a sentence on why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduction.job import Job
from reproduction.jobs import missing
from reproduction.likelihoods import effort, of_paper
from reproduction.overview import LEVEL, Results, gap, verdict
from reproduction.pairs import by_schedule, over
from reproduction.rows import FREY, IMPUTATION_PAPER, PAIRS, ROWS, SVM_PAPER
from reproduction.section6 import holds, memory_of, words
from reproduction.text import number

CURVE_SAMPLES = 50
"""Of the bounds that are taken while training."""


def mismatches(results: Results, swept: dict[str, Any] | None, folder: Path) -> dict[str, str]:
    """Everything that is worse than the paper's or otherwise: a key for remarks -> a sentence with the number."""
    sentences = below(results) | differences(folder) | imputation(results) | svm(results) | slots(results)
    return sentences | (shared(swept) if swept is not None else {})


def below(results: Results) -> dict[str, str]:
    """Rows whose number is below the paper's."""
    sentences = {}
    for name, result in results.items():
        if verdict(result) == "below":
            text = f"`{name}` is {-gap(result):.2f} nats below the paper after {effort(result)[0]} epochs"
            sentences[name] = text + gap_to_training(result)
    return sentences


def gap_to_training(result: dict[str, Any]) -> str:
    """How much better the model knows the rows that it was trained on."""
    if not result["curve"] or str(CURVE_SAMPLES) not in result["bounds"]:
        return ""
    train, test = result["curve"][-1][2], result["bounds"][str(CURVE_SAMPLES)]
    return f"; the bound with {CURVE_SAMPLES} samples is {train:.2f} on training rows, {test:.2f} on test examples"


def differences(folder: Path) -> dict[str, str]:
    """Pairs of which the first is less ahead than in the paper."""
    sentences = {}
    for pair in PAIRS:
        schedule, entries = by_schedule(folder, pair)
        if entries and of_paper(pair) - (ours := over(entries, schedule)["mean"]) > tolerance(pair, entries):
            paper, n = number(of_paper(pair), sign=True), len(entries)
            text = f"The difference {' - '.join(pair)} is {number(ours, sign=True)} nats where the paper has {paper}"
            sentences[" - ".join(pair)] = f"{text} ({n} training{'s' if n > 1 else ''} of each)"
    return sentences


def tolerance(pair: tuple[str, str], entries: list[dict[str, Any]]) -> float:
    """The faces are others than the paper's."""
    return max(entry["standard_error"] for entry in entries) if ROWS[pair[0]].table == FREY else LEVEL


def imputation(results: Results) -> dict[str, str]:
    sentences = {}
    for pattern, paper in IMPUTATION_PAPER.items():
        for name, theirs in paper.items():
            analysis = results.get(name, {}).get("analyses", {}).get("imputation")
            if analysis is not None and (error := analysis["patterns"][pattern]["batch_statistics"])["mse"] > theirs:
                ours = number(error["mse"], error["standard_error"], 4)
                sentences[f"{name} {pattern}"] = f"`{name}`, {pattern}: error {ours} where the paper has {theirs:.4f}"
    return sentences


def svm(results: Results) -> dict[str, str]:
    sentences = {}
    for name, theirs in SVM_PAPER.items():
        analysis = results.get(name, {}).get("analyses", {}).get("svm")
        if analysis is not None and analysis["accuracy"] < theirs:
            ours = f"{analysis['accuracy']:.2%} ± {analysis['standard_error']:.2%}"
            sentences[f"{name} svm"] = f"`{name}`, SVM: {ours} where the paper has {theirs:.2%}"
    return sentences


def slots(results: Results) -> dict[str, str]:
    """Claims about classes that prefer the same slots."""
    claims = (memory_of(results) or {"alike": []})["alike"]
    return {
        f"layer {claim['layer']}: {words(claim)}": f"The classes {words(claim)} do not prefer the same slots in layer "
        f"{claim['layer']} (1 training)"
        for claim in claims
        if not holds(claim)
    }


def shared(swept: dict[str, Any]) -> dict[str, str]:
    """Ways to divide 100 slots between the layers."""
    best = max(swept["splits"], key=lambda name: swept["splits"][name]["log_likelihood"])
    if best == "70-30":
        return {}
    division = swept["splits"][best]
    gain = number(division["minus_paper"], division["minus_paper_standard_error"], sign=True)
    return {"slots": f"Of the ways to divide 100 slots, {best} was best here, not 70-30 ({gain}, paired over images)"}


def section(sentences: dict[str, str], results: Results, remarks: dict[str, str]) -> str:
    """What does not match, and why that may be."""
    lines = [f"- {text}. {remarks.get(key, '')}".rstrip() for key, text in sentences.items()]
    for name, result in results.items():
        if to_do := missing(Job(ROWS[name], ROWS[name].schedule), result):
            lines.append(f"- `{name}` is scored; not done yet: {', '.join(to_do)}.")
    if undone := [f"`{name}`" for name in ROWS if name not in results]:
        lines.append(f"- Not done yet: {', '.join(undone)}.")
    text = "\n".join(lines) or "Everything that is done is level with the paper or better."
    return f"## What does not match\n\n{text}"
