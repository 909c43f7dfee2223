"""REPRODUCTION.md: every number and figure of the paper beside ours, made of the result files and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from memgen.data.output import write_atomically
from memgen.runs.session import COMPILED
from reproduction.jobs import Job, missing, read_json, read_result
from reproduction.pairs import by_schedule, over, valid
from reproduction.rows import FREY, IMPUTATION_PAPER, MNIST, OCR, PAIRS, ROWS, SVM_PAPER, Row
from reproduction.section6 import (
    Results,
    claims,
    holds,
    imputation,
    memory_differences,
    memory_of,
    slots,
    svm,
    sweep,
    words,
)
from reproduction.sweep import swept
from reproduction.text import duration, grid, number, trained_for

PAGE = "REPRODUCTION.md"
CURVE_SAMPLES = 50
"""Of the bounds that are taken while training."""
REMARKS = "remarks.json"
"""What a person adds: a row, or another key of `mismatches`, -> a sentence on why that may be so."""
QUOTED = {
    MNIST: "Quoted there from others: VAE, IWAE-5, IWAE-50 and two-layer IWAE-50 of Burda et al. -86.76, -85.54, "
    "-84.78, -82.90; DBN -84.55; DRAW -80.97 (at other scales or binarisations: not for this column). "
    "On a fixed binarisation: RWS-SBN/SBN -85.48, RWS-NADE/NADE -85.23, NADE -88.86, DARN -84.13.",
    OCR: "Quoted there from others: RWS-SBN/SBN -29.99, RWS-NADE/NADE -26.43, NADE -27.22, DARN -28.17.",
}


def write_page(folder: Path) -> Path:
    path = folder / PAGE
    write_atomically(path, page(folder).encode())
    return path


def page(folder: Path) -> str:
    """The whole page."""
    results = {name: found for name in ROWS if (found := read_result(folder / f"{name}.json")) is not None}
    remarks = read_json(folder / REMARKS) or {}
    shared = swept(folder)
    compared = memory_differences(folder)
    parts = [
        heading(results),
        *(table(results, name) for name in (MNIST, OCR, FREY)),
        differences(folder),
        others(folder),
        imputation(results, compared),
        svm(results, compared),
        claims(results),
        slots(results),
        sweep(shared),
        short_of(mismatches(results, shared, folder), results, remarks),
        figures(results),
        curves(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(results: Results) -> str:
    whole = sum(not lacking(name, own) for name, own in results.items())
    done = f"{len(results)} of {len(ROWS)} rows are scored, {whole} of them with all their analyses"
    machines = sorted({f"{own['hardware']['cpu']}, {own['hardware']['cores']} cores" for own in results.values()})
    return (
        "# The paper's numbers beside ours\n\n"
        "Made by `python -m reproduction` from the JSON files of this folder, not edited by hand. Likelihoods are in "
        "nats, the higher the better; ± is the standard error over test examples. The paper gives none, and its "
        "examples are the same but for Frey faces, so ± is not the error of ours - paper; how much two trainings "
        "differ, other seeds show. Recipes that end in `-fast`, `-finish`, `-more`, `-most`, `-first` or `-long` have "
        "the architecture, data, bound, local reconstruction and number of parameters of their row; batch size, "
        "optimizer with its weight decay, schedule, clipping, averages, gradient estimator and starting values are "
        "others, and `-first` raises the weight of the KL term from 0 to 1 over its first epochs "
        "([docs/reproduction.md](../docs/reproduction.md) says how they were chosen, and that `-most` was added to "
        "`mnist-mem-vae`, and `-more` to the letters with K = 50, when the test number before them was known). "
        f"{done}, on: {'; '.join(machines) or 'no machine yet'}.\n\n"
        "`python -m reproduction --status` shows how far all rows are, "
        "`python -m reproduction ROW --results OTHER --runs OTHER` does one again, "
        "from shipped weights of an earlier part of its training where there are any, "
        "`python -m reproduction --verify ROW` scores shipped weights again."
    )


def table(results: Results, name: str) -> str:
    """A table of the paper, row by row; a row that is not done says so."""
    rows = [table_row(row, results.get(row.name)) for row in ROWS.values() if row.table == name]
    quantity = "ELBO" if name == FREY else "log p(x)"
    heads = ("model", "paper", f"ours, {quantity}", "ours - paper", "how", "epochs", "training", "recipe, seed")
    text = f"## {name}\n\n{grid(heads, rows)}"
    if name == OCR:
        text += "\n\n" + letters(results)
    if name == FREY and (more := faces(results)):
        text += "\n\n" + more
    return text + (f"\n\n{QUOTED[name]}" if name in QUOTED else "")


def table_row(row: Row, own: dict[str, Any] | None) -> Sequence[str]:
    theirs = number(row.paper, digits=0 if row.table == FREY else 2)
    if own is None:
        return (row.model, theirs, "not done", "", "", "", "", f"`{row.name}`")
    digits = 1 if row.table == FREY else 2
    return (
        row.model,
        theirs,
        number(own[row.quantity], own["difference_standard_error"], digits),
        number(own["difference"], digits=digits, sign=True),
        f"K = {own['samples']:,}, {own['examples']:,} examples",
        *effort(own),
        f"`{own['recipe']}`, {own['seed']}",
    )


def effort(own: dict[str, Any]) -> tuple[str, str]:
    """Epochs and time, threads, and whether it was compiled."""
    threads = own["hardware"]["threads"]
    how = f" on {threads} thread{'s' if threads > 1 else ''}"
    return trained_for(own, how + (", compiled" if own["execution"].get("path") == COMPILED else ""))


def letters(results: Results) -> str:
    """The paper's 100,000 samples, on fewer letters."""
    rows = [
        (
            row.model,
            f"{int(samples):,}",
            f"{own['examples']:,}",
            number(own["log_likelihood"], own["standard_error"], 3),
            number(own["gain"], own["gain_standard_error"], 3, sign=True),
            number(results[row.name]["log_likelihood"] + own["gain"]),
            number(gap(results[row.name]), sign=True),
        )
        for row in ROWS.values()
        if row.table == OCR and row.name in results
        for samples, own in results[row.name]["more"].items()
    ]
    if not rows:
        return "The paper took 100,000 samples a letter; here 10,000 on all letters."
    gain = "more than with 10,000, same letters"
    heads = ("model", "samples", "letters", "log p(x)", gain, "added to that of all letters", "minus paper")
    return (
        "The paper took 100,000 samples a letter; here 10,000 on all letters, and 100,000 on 2,000 of them, chosen by "
        "a seed. What these gain, added to the number of all letters, is to be compared with the paper's:\n\n"
        + grid(heads, rows)
    )


def gap(own: dict[str, Any]) -> float:
    """Ours - paper, with as many samples as the paper where these were taken: the estimate rises with their number."""
    return float(own["difference"] + max((more["gain"] for more in own["more"].values()), default=0.0))


def faces(results: Results) -> str:
    rows = [
        (row.model, number(own["log_likelihood"], own["standard_error"], 1), f"{own['samples']:,}")
        for row in ROWS.values()
        if row.table == FREY and (own := results.get(row.name)) is not None
    ]
    text = (
        "Compared is the bound with one sample (the mean of it over 5,000 draws); beside it the estimate of log p(x):"
    )
    return f"{text}\n\n{grid(('model', 'log p(x)', 'samples'), rows)}" if rows else ""


def differences(folder: Path) -> str:
    """One row minus another."""
    rows: list[tuple[str, ...]] = []
    totals: list[tuple[str, ...]] = []
    for pair in PAIRS:
        found = valid(folder, pair)
        name = f"`{pair[0]}` - `{pair[1]}`"
        for own in found:
            values = number(own["mean"], own["standard_error"], 2, sign=True)
            rows.append((name, own["schedule"], str(own["seed"]), str(own["split"]), values))
        for schedule in sorted({own["schedule"] for own in found}):
            own = over(found, schedule)
            values = number(own["mean"], own["standard_error"], 2, sign=True)
            trainings = f"{own['trainings']} {own['over'] if own['trainings'] > 1 else own['over'].removesuffix('s')}"
            said = verdict(own["mean"], own["standard_error"], own["trainings"])
            totals.append((name, schedule, trainings, values, number(of_paper(pair), sign=True), said))
    if not rows:
        return ""
    each = grid(("pair", "schedule", "seed", "split", "difference in nats, ± over images"), rows)
    mean = grid(("pair", "schedule", "over", "mean difference, ± over trainings", "paper", ""), totals)
    text = (
        "± over images says how well the difference of these two trained models is known. Whether one kind of model is "
        "better is asked of several trainings, in the second table: a difference counts where the interval of 95% "
        "(Student's t) leaves out zero. The splits of Frey faces overlap, so that their interval is rather narrow; and "
        "of comparisons at 95% one in twenty errs."
    )
    return f"## Differences, the same schedule, image by image\n\n{text}\n\n{each}\n\n{mean}"


def of_paper(pair: tuple[str, str]) -> float:
    """The difference between two rows of the paper."""
    return ROWS[pair[0]].paper - ROWS[pair[1]].paper


def verdict(mean: float, error: float | None, n: int) -> str:
    """By Student's t over n trainings.

    >>> verdict(1.0, 0.2, 2), verdict(1.0, 0.2, 5), verdict(1.0, None, 1)
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
        own = read_result(path)
        if own is None:
            continue
        rows.append(
            (
                f"`{own['recipe']}`",
                str(own["seed"]),
                str(own["split"]),
                number(own[own["compared"]], own["difference_standard_error"]),
                number(own["difference"], digits=2, sign=True),
                f"K = {own['samples']:,}, {own['examples']:,} examples",
                *effort(own),
            )
        )
    if not rows:
        return ""
    heads = ("recipe", "seed", "split", "ours", "ours - paper", "how", "epochs", "training")
    return "## Other seeds, schedules and splits\n\n" + grid(heads, rows)


def mismatches(results: Results, swept: dict[str, Any] | None, folder: Path) -> dict[str, str]:
    """Everything that is worse than the paper's or otherwise: a key for remarks -> a sentence with the number."""
    found = {}
    for name, own in results.items():
        if gap(own) < 0:
            text = f"`{name}` is {-gap(own):.2f} nats below the paper after {effort(own)[0]} epochs"
            if own["table"] == FREY:  # the paper's faces were others
                error = own["difference_standard_error"]
                text += f", where the standard error over test faces is {error:.1f}"
            found[name] = text + gap_to_training(own)
    for pair in PAIRS:
        schedule, entries = by_schedule(folder, pair)
        if entries and (ours := over(entries, schedule)["mean"]) < of_paper(pair):
            key = " - ".join(pair)
            paper_has = number(of_paper(pair), sign=True)
            found[key] = f"The difference {key} is {number(ours, sign=True)} nats where the paper has {paper_has}"
    for pattern, paper in IMPUTATION_PAPER.items():
        for name, theirs in paper.items():
            own = results.get(name, {}).get("analyses", {}).get("imputation")
            if own is not None and (one := own["patterns"][pattern]["batch_statistics"])["mse"] > theirs:
                ours = number(one["mse"], one["standard_error"], 4)
                found[f"{name} {pattern}"] = f"`{name}`, {pattern}: error {ours} where the paper has {theirs:.4f}"
    for name, theirs in SVM_PAPER.items():
        own = results.get(name, {}).get("analyses", {}).get("svm")
        if own is not None and own["accuracy"] < theirs:
            ours = f"{own['accuracy']:.2%} ± {own['standard_error']:.2%}"
            found[f"{name} svm"] = f"`{name}`, SVM: {ours} where the paper has {theirs:.2%}"
    for claim in (memory_of(results) or {"alike": []})["alike"]:
        if not holds(claim):
            key = f"layer {claim['layer']}: {words(claim)}"
            found[key] = f"That {words(claim)} prefer slots alike in layer {claim['layer']} does not hold here"
    if swept is not None:
        best = max(swept["splits"], key=lambda name: swept["splits"][name]["log_likelihood"])
        if best != "70-30":
            one = swept["splits"][best]
            gain = number(one["minus_paper"], one["minus_paper_standard_error"], sign=True)
            found["slots"] = f"Of the ways to share 100 slots, {best} was best here, not 70-30 ({gain} image by image)"
    return found


def short_of(found: dict[str, str], results: Results, remarks: dict[str, str]) -> str:
    """What does not match, and why that may be."""
    lines = [f"- {text}. {remarks.get(key, '')}".rstrip() for key, text in found.items()]
    for name, own in results.items():
        if to_do := lacking(name, own):
            lines.append(f"- `{name}` is scored; not done yet: {', '.join(to_do)}.")
    if undone := [f"`{name}`" for name in ROWS if name not in results]:
        lines.append(f"- Not done yet: {', '.join(undone)}.")
    text = "\n".join(lines) or "Everything that is done is at the paper's number or better."
    return f"## What does not match\n\n{text}"


def gap_to_training(own: dict[str, Any]) -> str:
    """How much better the model knows the rows that it was trained on."""
    if not own["curve"] or str(CURVE_SAMPLES) not in own["bounds"]:
        return ""
    train, test = own["curve"][-1][2], own["bounds"][str(CURVE_SAMPLES)]
    return f"; the bound with {CURVE_SAMPLES} samples is {train:.2f} on training rows, {test:.2f} on test examples"


def lacking(name: str, own: dict[str, Any]) -> list[str]:
    """What of a row is still to be done."""
    return missing(Job(ROWS[name], ROWS[name].schedule), own)


def figures(results: Results) -> str:
    """All of them, those of a kind side by side."""
    kinds: dict[str, list[tuple[str, str, str]]] = {}
    for name, own in results.items():
        for analysis in own["analyses"].values():
            for file, caption in analysis["figures"].items():
                kind = file.removeprefix(f"{name}-").removesuffix(".png")
                kinds.setdefault(kind, []).append((name, file, caption))
    parts = [f"### {kind.replace('-', ' ').capitalize()}\n\n{side_by_side(shown)}" for kind, shown in kinds.items()]
    return "## Figures\n\n" + "\n\n".join(parts) if parts else ""


def side_by_side(shown: list[tuple[str, str, str]]) -> str:
    """Two in a row, under the names of their rows; what their captions say, each once."""
    lines = []
    for two in (shown[i : i + 2] for i in range(0, len(shown), 2)):
        heads = [f"{ROWS[name].model}, `{name}`" for name, _, _ in two]
        lines.append(grid(heads, [[f"![{ROWS[name].model}](figures/{file})" for name, file, _ in two]]))
    captions = list(dict.fromkeys(caption for _, _, caption in shown))
    return "\n\n".join([*lines, *captions])


def curves(results: Results) -> str:
    """How each row got there."""
    rows = []
    for own in results.values():
        points = own["curve"]
        some = [points[round(i * (len(points) - 1) / 5)] for i in range(6)] if len(points) > 6 else points
        text = ", ".join(
            f"{bound:.2f}{'' if valid is None else f' / {valid:.2f}'} ({epoch:,}; {duration(seconds)})"
            for epoch, seconds, bound, valid in some
        )
        rows.append((f"`{own['recipe']}`", text))
    if not rows:
        return ""
    text = (
        "Bound on 1,000 training rows, and on 1,000 validation rows where these are not trained on, with "
        f"{CURVE_SAMPLES} samples (after so many epochs; time)."
    )
    return f"## How the training went\n\n{text}\n\n{grid(('recipe', 'bound'), rows)}"
