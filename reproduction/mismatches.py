"""What does not match the paper: every number that falls short of it, and a sentence on why."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from reproduction.jobs import Job, missing
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
    found = below(results) | differences(folder) | imputation(results) | svm(results) | slots(results)
    return found | (shared(swept) if swept is not None else {})


def below(results: Results) -> dict[str, str]:
    """Rows whose number is below the paper's."""
    found = {}
    for name, own in results.items():
        if verdict(own) == "below":
            text = f"`{name}` is {-gap(own):.2f} nats below the paper after {effort(own)[0]} epochs"
            found[name] = text + gap_to_training(own)
    return found


def gap_to_training(own: dict[str, Any]) -> str:
    """How much better the model knows the rows that it was trained on."""
    if not own["curve"] or str(CURVE_SAMPLES) not in own["bounds"]:
        return ""
    train, test = own["curve"][-1][2], own["bounds"][str(CURVE_SAMPLES)]
    return f"; the bound with {CURVE_SAMPLES} samples is {train:.2f} on training rows, {test:.2f} on test examples"


def differences(folder: Path) -> dict[str, str]:
    """Pairs of which the first is less ahead than in the paper."""
    found = {}
    for pair in PAIRS:
        schedule, entries = by_schedule(folder, pair)
        if entries and of_paper(pair) - (ours := over(entries, schedule)["mean"]) > tolerance(pair, entries):
            paper, n = number(of_paper(pair), sign=True), len(entries)
            text = f"The difference {' - '.join(pair)} is {number(ours, sign=True)} nats where the paper has {paper}"
            found[" - ".join(pair)] = f"{text} ({n} training{'s' if n > 1 else ''} of each)"
    return found


def tolerance(pair: tuple[str, str], entries: list[dict[str, Any]]) -> float:
    """The faces are others than the paper's."""
    return max(own["standard_error"] for own in entries) if ROWS[pair[0]].table == FREY else LEVEL


def imputation(results: Results) -> dict[str, str]:
    found = {}
    for pattern, paper in IMPUTATION_PAPER.items():
        for name, theirs in paper.items():
            own = results.get(name, {}).get("analyses", {}).get("imputation")
            if own is not None and (one := own["patterns"][pattern]["batch_statistics"])["mse"] > theirs:
                ours = number(one["mse"], one["standard_error"], 4)
                found[f"{name} {pattern}"] = f"`{name}`, {pattern}: error {ours} where the paper has {theirs:.4f}"
    return found


def svm(results: Results) -> dict[str, str]:
    found = {}
    for name, theirs in SVM_PAPER.items():
        own = results.get(name, {}).get("analyses", {}).get("svm")
        if own is not None and own["accuracy"] < theirs:
            ours = f"{own['accuracy']:.2%} ± {own['standard_error']:.2%}"
            found[f"{name} svm"] = f"`{name}`, SVM: {ours} where the paper has {theirs:.2%}"
    return found


def slots(results: Results) -> dict[str, str]:
    """Claims about classes that prefer the same slots."""
    claims = (memory_of(results) or {"alike": []})["alike"]
    return {
        f"layer {one['layer']}: {words(one)}": f"The classes {words(one)} do not prefer the same slots in layer "
        f"{one['layer']} (1 training)"
        for one in claims
        if not holds(one)
    }


def shared(swept: dict[str, Any]) -> dict[str, str]:
    """Ways to divide 100 slots between the layers."""
    best = max(swept["splits"], key=lambda name: swept["splits"][name]["log_likelihood"])
    if best == "70-30":
        return {}
    one = swept["splits"][best]
    gain = number(one["minus_paper"], one["minus_paper_standard_error"], sign=True)
    return {"slots": f"Of the ways to divide 100 slots, {best} was best here, not 70-30 ({gain}, paired over images)"}


def section(found: dict[str, str], results: Results, remarks: dict[str, str]) -> str:
    """What does not match, and why that may be."""
    lines = [f"- {text}. {remarks.get(key, '')}".rstrip() for key, text in found.items()]
    for name, own in results.items():
        if to_do := missing(Job(ROWS[name], ROWS[name].schedule), own):
            lines.append(f"- `{name}` is scored; not done yet: {', '.join(to_do)}.")
    if undone := [f"`{name}`" for name in ROWS if name not in results]:
        lines.append(f"- Not done yet: {', '.join(undone)}.")
    text = "\n".join(lines) or "Everything that is done is level with the paper or better."
    return f"## What does not match\n\n{text}"
