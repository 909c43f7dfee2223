"""REPRODUCTION.md: every number and figure of the paper beside ours, made of the result files and nothing else."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from memgen.errors import MemgenError
from memgen.reproduce.jobs import read_result
from memgen.reproduce.rows import FREY, IMPUTATION_PAPER, MNIST, OCR, PAIRS, ROWS, SLOT_PAPER, SVM_PAPER, SWEEP, Row
from memgen.storage import write_atomically

PAGE = "REPRODUCTION.md"
REMARKS = "remarks.json"
"""What a person adds: row -> a sentence on why a number is what it is."""
QUOTED = {
    MNIST: "Quoted there from others: VAE, IWAE-5, IWAE-50 and two-layer IWAE-50 of Burda et al. -86.76, -85.54, "
    "-84.78, -82.90; DBN -84.55; DRAW -80.97 (these at other scales or binarisations: not for this column).",
    OCR: "Quoted there from others: RWS-SBN/SBN -29.99, RWS-NADE/NADE -26.43, NADE -27.22, DARN -28.17.",
}
Results = dict[str, dict[str, Any]]


def write_page(folder: Path) -> Path:
    path = folder / PAGE
    write_atomically(path, page(folder).encode())
    return path


def page(folder: Path) -> str:
    """The whole page."""
    results = {name: found for name in ROWS if (found := read_result(folder / f"{name}.json")) is not None}
    remarks = read_result(folder / REMARKS) or {}
    if unknown := [name for name in remarks if name not in ROWS]:
        raise MemgenError(f"{folder / REMARKS} speaks of {unknown[0]}, which is no row")
    parts = [
        heading(results),
        *(table(results, name) for name in (MNIST, OCR, FREY)),
        differences(folder),
        others(folder),
        imputation(results),
        svm(results),
        claims(results),
        slots(results),
        sweep(read_result(folder / f"{SWEEP}.json")),
        short_of(results, remarks),
        figures(results),
        curves(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def heading(results: Results) -> str:
    done = f"{len(results)} of {len(ROWS)} rows are done"
    machines = sorted({f"{own['hardware']['cpu']}, {own['hardware']['cores']} cores" for own in results.values()})
    return (
        "# The paper's numbers beside ours\n\n"
        "Made by `memgen reproduce` from the JSON files of this folder; not edited by hand. Likelihoods are in nats,\n"
        "the higher the better, ± is the standard error over test examples; the paper gives none. A `-fast` recipe \n"
        "has the architecture, data, losses and parameters of its row and another schedule of training, chosen on\n"
        "validation data; the test set was scored once, at the end. "
        f"{done}, on: {'; '.join(machines) or 'no machine yet'}.\n\n"
        "Run a row again with `memgen reproduce ROW`, see how far all are with `memgen reproduce --status`, score\n"
        "shipped weights again with `memgen reproduce --verify ROW`."
    )


def number(value: float, error: float | None = None, digits: int = 2, sign: bool = False) -> str:
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text if error is None else f"{text} ± {error:.{digits}f}"


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def table(results: Results, name: str) -> str:
    """A table of the paper, row by row; a row that is not done says so."""
    rows = [table_row(row, results.get(row.name)) for row in ROWS.values() if row.table == name]
    digits = "ELBO" if name == FREY else "log p(x)"
    heads = ("model", "paper", f"ours, {digits}", "ours - paper", "how", "epochs", "training", "recipe, seed")
    text = f"## {name}\n\n{grid(heads, rows)}"
    if name == OCR:
        text += "\n\n" + letters(results)
    if name == FREY:
        text += "\n\n" + faces(results)
    return text + (f"\n\n{QUOTED[name]}" if name in QUOTED else "")


def table_row(row: Row, own: dict[str, Any] | None) -> Sequence[str]:
    digits = 0 if row.table == FREY else 2
    if own is None:
        return (row.model, number(row.paper, digits=digits), "not done", "", "", "", "", f"`{row.name}`")
    error = own["standard_error"] if row.quantity == "log_likelihood" else own["elbo_standard_error"]
    more = 1 if row.table == FREY else 2
    return (
        row.model,
        number(row.paper, digits=digits),
        number(own[row.quantity], error, more),
        number(own["difference"], digits=more, sign=True),
        f"K = {own['samples']:,}, {own['examples']:,} examples",
        f"{own['epochs']:,}",
        duration(own["seconds"]),
        f"`{own['recipe']}`, {own['seed']}",
    )


def duration(seconds: float) -> str:
    """
    >>> duration(59), duration(150), duration(7300)
    ('59 s', '2.5 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def letters(results: Results) -> str:
    """The paper's 100,000 samples, on fewer letters."""
    rows = [
        (
            row.model,
            f"{int(samples):,}",
            f"{own['examples']:,}",
            number(own["log_likelihood"], own["standard_error"], 3),
            number(own["gain"], own["gain_standard_error"], 3, sign=True),
        )
        for row in ROWS.values()
        if row.table == OCR and row.name in results
        for samples, own in results[row.name]["more"].items()
    ]
    if not rows:
        return "The paper took 100,000 samples a letter; here 10,000 on all letters."
    heads = ("model", "samples", "letters", "log p(x)", "more than with 10,000, same letters")
    return (
        "The paper took 100,000 samples a letter; here 10,000 on all letters, and 100,000 on 2,000 of them, chosen by "
        "a seed:\n\n" + grid(heads, rows)
    )


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
    """With memory minus without."""
    rows: list[tuple[str, ...]] = []
    totals: list[tuple[str, ...]] = []
    for name in PAIRS:
        found = read_result(folder / "differences" / f"{name}.json")
        if found is None:
            continue
        rows += [
            (
                f"`{name}` - `{found['without']}`",
                own["schedule"],
                str(own["seed"]),
                str(own["split"]),
                number(own["mean"], own["standard_error"], 2, sign=True),
                verdict(own["mean"], own["standard_error"]),
            )
            for own in found["pairs"]
        ]
        totals += [
            (
                f"`{name}` - `{found['without']}`",
                schedule,
                str(own["trainings"]),
                number(own["mean"], own["standard_error"], 2, sign=True),
                verdict(own["mean"], own["standard_error"]),
            )
            for schedule, own in sorted(found["over_pairs"].items())
        ]
    if not rows:
        return ""
    each = grid(("pair", "schedule", "seed", "split", "difference in nats, ± over images", ""), rows)
    mean = grid(("pair", "schedule", "trainings", "mean difference, ± over trainings", ""), totals)
    return f"## With memory minus without, the same recipe, image by image\n\n{each}\n\n{mean}"


def verdict(mean: float, error: float | None) -> str:
    """Two standard errors are what is called a difference.

    >>> verdict(0.1, 0.2), verdict(1.0, 0.2), verdict(1.0, None)
    ('no detectable difference', 'memory helps', 'one training')
    """
    if error is None:
        return "one training"
    if abs(mean) < 2 * error:
        return "no detectable difference"
    return "memory helps" if mean > 0 else "memory hurts"


def others(folder: Path) -> str:
    """Other seeds, schedules and splits."""
    rows = []
    for path in sorted((folder / "seeds").glob("*/*.json")):
        own = read_result(path)
        if own is None:
            continue
        quantity = own["compared"]
        error = own["standard_error"] if quantity == "log_likelihood" else own["elbo_standard_error"]
        rows.append(
            (
                f"`{own['recipe']}`",
                str(own["seed"]),
                str(own["split"]),
                number(own[quantity], error),
                number(own["difference"], digits=2, sign=True),
                f"K = {own['samples']:,}, {own['examples']:,} examples",
                f"{own['epochs']:,}",
                duration(own["seconds"]),
            )
        )
    if not rows:
        return ""
    heads = ("recipe", "seed", "split", "ours", "ours - paper", "how", "epochs", "training")
    return "## Other seeds, schedules and splits\n\n" + grid(heads, rows)


def imputation(results: Results) -> str:
    """Table 2."""
    rows = []
    for pattern, paper in IMPUTATION_PAPER.items():
        for name, theirs in paper.items():
            own = results.get(name, {}).get("analyses", {}).get("imputation")
            if own is None:
                continue
            exact, batch = (own["patterns"][pattern][key] for key in ("exact_statistics", "batch_statistics"))
            rows.append(
                (
                    pattern,
                    ROWS[name].model,
                    number(theirs, digits=4),
                    number(exact["mse"], exact["standard_error"], 4),
                    number(batch["mse"], batch["standard_error"], 4),
                    "at or below" if min(exact["mse"], batch["mse"]) <= theirs else "above",
                )
            )
    if not rows:
        return "## Table 2, imputation\n\nNot done."
    heads = (
        "missing",
        "model",
        "paper",
        "ours, exact statistics",
        "ours, statistics of 1,000 images as its authors",
        "",
    )
    text = "Mean squared error per missing pixel after 100 steps of the paper's method, grey test images, seed 0."
    return f"## Table 2, imputation\n\n{text}\n\n{grid(heads, rows)}"


def svm(results: Results) -> str:
    rows = []
    for name, theirs in SVM_PAPER.items():
        if (own := results.get(name, {}).get("analyses", {}).get("svm")) is not None:
            ours = f"{own['accuracy']:.2%} ± {own['standard_error']:.2%}"
            rows.append((ROWS[name].model, f"{theirs:.2%}", ours, f"{100 * (own['accuracy'] - theirs):+.2f}"))
    text = "## A linear SVM on the last deterministic layer of Q\n\n"
    return text + (grid(("model", "paper", "ours", "points more"), rows) if rows else "Not done.")


def claims(results: Results) -> str:
    """What the paper says of preferences, in numbers."""
    own = results.get("mnist-mem-vae", {}).get("analyses", {}).get("memory")
    if own is None:
        return "## Claims about the slots\n\nNot done."
    found = own["claims"]
    seven, one, two = (
        found[key]
        for key in (
            "7 and 9 correlate",
            "1, 4, 7, 9 share a pattern in layer 1",
            "3, 5, 8 share a pattern in layer 2",
        )
    )
    alike = found["layer 1 resembles raw pixels"]
    rows = [
        (
            "7 and 9 correlate",
            f"correlation {seven['layer 1']:.2f} in layer 1, {seven['layer 2']:.2f} in layer 2; raw pixels "
            f"{own['pixels']['7 and 9']:.2f}",
            "holds" if min(seven.values()) > 0.5 else "does not hold in both layers",
        ),
        ("layer 1 has a pattern shared by 1, 4, 7, 9", *shared(one)),
        ("layer 2 has a pattern shared by 3, 5, 8", *shared(two)),
        (
            "layer 1's class correlations resemble those of raw pixels",
            "correlation between the two sets: " + ", ".join(f"{value:.2f} ({name})" for name, value in alike.items()),
            "holds" if alike["layer 1"] > 0.5 else "does not hold",
        ),
    ]
    return "## Claims about the slots\n\n" + grid(("the paper says", "MEM-VAE here", ""), rows)


def shared(group: dict[str, Any]) -> tuple[str, str]:
    text = (
        f"mean correlation {group['inside']:.2f} inside, {group['across']:.2f} to the other classes; rank "
        f"{group['rank']} of the {group['groups']} groups of that size"
    )
    return text, "holds" if group["rank"] <= max(1, group["groups"] // 10) else "is not among the first tenth of groups"


def slots(results: Results) -> str:
    """The preference table under the pictures of slots."""
    own = results.get("mnist-vis-mem-vae", {}).get("analyses", {}).get("memory")
    if own is None:
        return "## Slots as images\n\nNot done."
    ours = own["layers"][0]["preferences"]
    rows = []
    for rank, name in enumerate(("1st", "2nd", "3rd")):
        rows.append((name, "paper", *(f"{value:.2f}" for value in SLOT_PAPER[rank])))
        rows.append((name, "ours", *(f"{value:.2f}" for value in ours[rank])))
    text = "VIS-MEM-VAE: how strongly each class prefers its three slots of layer 1."
    return f"## Slots as images\n\n{text}\n\n{grid(('slot', '', *map(str, range(10))), rows)}"


def sweep(own: dict[str, Any] | None) -> str:
    if own is None:
        return "## How to share 100 slots\n\nNot done."
    rows = [
        (
            name,
            number(one["log_likelihood"], one["standard_error"]),
            "" if name == "70-30" else number(one["minus_paper"], one["minus_paper_standard_error"], 3, sign=True),
        )
        for name, one in own["splits"].items()
    ]
    text = (
        f"Trainings of {own['epochs']} epochs by `{own['recipe']}` without the validation images, {own['examples']:,} "
        f"of which are scored with {own['samples']:,} samples; one seed."
    )
    heads = ("slots, layer 1 - layer 2", "log p(x)", "minus 70-30, image by image")
    return f"## How to share 100 slots\n\n{text}\n\n{grid(heads, rows)}"


def short_of(results: Results, remarks: dict[str, str]) -> str:
    """What does not match, and why that may be."""
    lines = []
    for name, own in results.items():
        gap, error = own["difference"], own["difference_standard_error"]
        if gap < 0:
            line = f"- `{name}` is {-gap:.2f} ± {error:.2f} nats below the paper after {own['epochs']:,} epochs"
            line += f"; {still_rising(own)}" if len(own["curve"]) > 1 else ""
            lines.append(line + f". {remarks.get(name, '')}".rstrip())
        elif name in remarks:
            lines.append(f"- `{name}`: {remarks[name]}")
    undone = [f"`{name}`" for name in ROWS if name not in results]
    if undone:
        lines.append(f"- Not done yet: {', '.join(undone)}.")
    text = "\n".join(lines) or "Every row that is done is at or above the paper's number."
    return f"## What does not match\n\n{text}"


def still_rising(own: dict[str, Any]) -> str:
    """Of the bound on training rows, at the end."""
    (epoch, _, before), (last, _, after) = own["curve"][-2:]
    return f"the bound on training rows still changed by {after - before:+.2f} from epoch {epoch} to {last}"


def figures(results: Results) -> str:
    parts = []
    for name, own in results.items():
        for analysis in own["analyses"].values():
            for file, caption in analysis["figures"].items():
                parts.append(f"### {ROWS[name].model}, `{name}`\n\n![{caption}](figures/{file})\n\n{caption}")
    return "## Figures\n\n" + "\n\n".join(parts) if parts else ""


def curves(results: Results) -> str:
    """How each row got there."""
    rows = []
    for own in results.values():
        points = own["curve"]
        some = [points[round(i * (len(points) - 1) / 5)] for i in range(6)] if len(points) > 6 else points
        text = ", ".join(f"{bound:.2f} ({epoch:,}; {duration(seconds)})" for epoch, seconds, bound in some)
        rows.append((f"`{own['recipe']}`", text))
    if not rows:
        return ""
    text = "Bound on 1,000 training rows, with 50 samples (after so many epochs; time)."
    return f"## How the training went\n\n{text}\n\n{grid(('recipe', 'bound'), rows)}"
