"""The page itself: one HTML file with everything inside, for a screen, a phone and paper."""

from __future__ import annotations

import base64
import math
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

import memgen
from memgen.data.output import write_atomically
from memgen.data.values import some
from memgen.report.figures.base import Figure
from memgen.report.gather import STEPS, Gathered, paired_difference, same_data
from memgen.tasks.density import standard_error

HEADS = {
    "training": "Training",
    "samples": "Samples",
    "reconstructions": "Reconstructions",
    "imputation": "Missing values",
    "memory": "Inside the memory",
}
"""Section -> its heading, in the order of the page."""

WIDE = 6.2
"""Inches from which two figures no longer fit beside each other on paper."""

STYLE = """
:root { --ink: #222; --faint: #666; --line: #ddd; --mark: #0072B2; }
* { box-sizing: border-box; }
body { font: 16px/1.5 system-ui, sans-serif; color: var(--ink); background: #fff;
  margin: 0 auto; padding: 1rem; max-width: WIDTH; }
h1 { font-size: 1.6rem; line-height: 1.2; margin: .5rem 0; }
h2 { font-size: 1.2rem; margin: 2.2rem 0 .6rem; padding-top: .5rem; border-top: 2px solid var(--mark); }
h3 { font-size: 1rem; margin: 0 0 .3rem; }
p { margin: .4rem 0; max-width: 46rem; }
.faint, figcaption { color: var(--faint); font-size: .86rem; }
.runs { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, NARROW), 1fr)); gap: 1.2rem;
  align-items: start; margin-bottom: 1.4rem; }
.runs.wide { grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0; break-inside: avoid; }
figure img { display: block; max-width: 100%; height: auto; }
figcaption { margin-top: .3rem; max-width: 46rem; }
.scroll { overflow-x: auto; background: linear-gradient(to right, #fff, #fff) 0 0 / 2rem 100% no-repeat local,
  linear-gradient(to left, #fff, #fff) 100% 0 / 2rem 100% no-repeat local,
  linear-gradient(to left, rgba(0, 0, 0, .18), transparent) 100% 0 / 1rem 100% no-repeat scroll; }
@media screen and (max-width: 40rem) {
  .wide figure > div { overflow-x: auto; }
  .wide figure img { max-width: none; width: 40rem; }
}
table { border-collapse: collapse; font-size: .9rem; margin: .5rem 0; }
th, td { text-align: left; padding: .25rem .8rem .25rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
tr.differs td, tr.differs th { font-weight: 600; }
code { font-size: .9em; }
summary { cursor: pointer; color: var(--mark); }
@media print {
  body { max-width: none; padding: 0; font-size: 10pt; }
  .runs { grid-template-columns: repeat(COLUMNS, 1fr); }
  .runs.wide { grid-template-columns: 1fr; }
  h2 { break-after: avoid; }
}
"""


def figures_folder(page: Path) -> Path:
    """Where the figures of a page lie, beside it."""
    return page.with_name(f"{page.stem}-figures")


def write_report(output: Path, gathered: Sequence[Gathered], seed: int) -> Path:
    """The page, and its figures with their numbers beside it; returns their folder."""
    folder = figures_folder(output)
    text = page(gathered, seed)
    for one in gathered:
        one.write(folder / one.subject.name.replace("/", "-") if len(gathered) > 1 else folder)
    write_atomically(output, text.encode())
    return folder


def page(gathered: Sequence[Gathered], seed: int) -> str:
    """The whole HTML text."""
    names = [one.subject.name for one in gathered]
    title = " and ".join(names) if len(names) < 3 else f"{len(names)} runs"
    style = STYLE.replace("WIDTH", f"{max(60, 32 * len(names))}rem").replace("COLUMNS", str(min(3, len(names))))
    style = style.replace("NARROW", "26rem" if len(names) < 3 else "20rem")
    body = [f"<h1>{escape(title)}</h1>", introduction(gathered), likelihoods(gathered, seed)]
    body += [columns(gathered), *(section(gathered, key) for key in HEADS)]
    body += ["<h2>Settings</h2>", settings(gathered), ending(gathered)]
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)} - memgen</title>\n<style>{style}</style>\n</head>\n<body>\n"
        + "\n".join(filter(None, body))
        + "\n</body>\n</html>\n"
    )


def introduction(gathered: Sequence[Gathered]) -> str:
    lines = []
    for one in gathered:
        about = one.subject.saved.recipe.about
        lines.append(f"<p><strong>{escape(one.subject.name)}</strong>: {escape(about or 'a model of its own')}.</p>")
    return "\n".join(lines)


def with_error(mean: float, error: float, digits: int) -> str:
    """
    >>> with_error(1.25, 0.5, 1), with_error(1.25, math.nan, 1), with_error(math.nan, math.nan, 1)
    ('1.2 ± 0.5', '1.2', '')
    """
    if not math.isfinite(mean):
        return ""
    return f"{mean:.{digits}f} ± {error:.{digits}f}" if math.isfinite(error) else f"{mean:.{digits}f}"


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], differs: Sequence[bool] = (), words: int = 1) -> str:
    """Rows of text, already escaped; the columns from `words` on are numbers."""
    kind = [' class="number"' if j >= words else "" for j in range(len(heads))]
    lines = ["<tr>" + "".join(f"<th{k}>{head}</th>" for k, head in zip(kind, heads, strict=True)) + "</tr>"]
    for i, row in enumerate(rows):
        mark = ' class="differs"' if i < len(differs) and differs[i] else ""
        lines.append(
            f"<tr{mark}>" + "".join(f"<td{k}>{cell}</td>" for k, cell in zip(kind, row, strict=True)) + "</tr>"
        )
    return '<div class="scroll"><table>' + "\n".join(lines) + "</table></div>"


def likelihoods(gathered: Sequence[Gathered], seed: int) -> str:
    """Numbers with their errors, and paired differences to the first run."""
    heads = ["run", "log p(x), nats", "ELBO", "K", "test rows", "parameters", "epochs", "training", "data"]
    rows = []
    for one in gathered:
        own, facts = one.likelihood, one.facts
        rows.append(
            [
                escape(one.subject.name),
                with_error(own.mean, own.standard_error, 2),
                f"{float(own.elbo.mean()):.2f}",
                f"{own.samples:,}",
                f"{len(own.log_p):,}",
                f"{facts['parameters']:,}",
                f"{facts['epochs']:,}",
                "" if facts["seconds"] is None else f"{facts['seconds']:,.0f} s",
                escape(f"{one.subject.data.name}, {one.subject.data.scale}"),
            ]
        )
    if any(one.bits is not None for one in gathered):
        heads.insert(2, "bits per dimension")
        for row, one in zip(rows, gathered, strict=True):
            row.insert(2, "" if one.bits is None else with_error(one.bits.mean, one.bits.standard_error, 3))
    kinds = dict.fromkeys(f"{one.subject.data.name}: {one.subject.data.binarisation}" for one in gathered)
    words = (
        "Test log-likelihood by importance sampling with K samples, mean ± standard error over rows; "
        f"noise seed {seed}; {escape('; '.join(kinds))}."
    )
    return f"<h2>Log-likelihood</h2>\n{table(heads, rows)}\n<p class='faint'>{words}</p>\n{differences(gathered)}"


def columns(gathered: Sequence[Gathered]) -> str:
    """The schema of every table."""
    schemas = {one.subject.data.name: one.subject.data.columns for one in gathered}
    lines = []
    for name, schema in schemas.items():
        if schema is not None:
            rows = [
                [escape(c.name), c.kind, escape(f"{c.why}: {some(c.levels, 5)}" if c.levels else c.why)] for c in schema
            ]
            lines.append(f"<h2>Columns of {escape(name)}</h2>\n{table(['column', 'kind', 'why'], rows, words=99)}")
    return "\n".join(lines)


def differences(gathered: Sequence[Gathered]) -> str:
    lines = []
    for other in gathered[1:]:
        names = f"{escape(other.subject.name)} minus {escape(gathered[0].subject.name)}"
        difference = paired_difference(gathered[0], other)
        if difference is None:
            lines.append(f"<p>{names}: not comparable, they were scored on other data.</p>")
            continue
        mean, error = float(difference.mean()), standard_error(difference)
        verdict = "" if abs(mean) > 2 * error else ": no detectable difference"
        lines.append(f"<p>{names}: {mean:+.2f} ± {error:.2f} nats, paired over rows, one training each{verdict}.</p>")
    return "\n".join(lines)


def section(gathered: Sequence[Gathered], key: str) -> str:
    """Figures of the same name stand side by side."""
    names = list(dict.fromkeys(figure.name for one in gathered for figure in one.sections.get(key, [])))
    lines = [f"<h2>{HEADS[key]}</h2>"]
    if key == "imputation":
        lines.append(imputations(gathered))
    if key == "memory":
        without = [one.subject.name for one in gathered if not one.sections.get(key)]
        lines += [f"<p>{escape(name)} has no memory.</p>" for name in without]
    for name in names:
        found = [(one, figure) for one in gathered for figure in one.sections.get(key, []) if figure.name == name]
        cells = [inlined(figure, one.subject.name if len(gathered) > 1 else "") for one, figure in found]
        wide = " wide" if max(figure.canvas.get_figwidth() for _, figure in found) > WIDE else ""
        lines.append(f'<div class="runs{wide}">{"".join(cells)}</div>')
    return "\n".join(lines) if len(lines) > 1 else ""


def inlined(figure: Figure, run: str) -> str:
    data = base64.b64encode(figure.png).decode()
    width = round(figure.canvas.get_figwidth() * 100)
    head = f"<h3>{escape(run)}</h3>" if run else ""
    image = f'<img width="{width}" alt="{escape(figure.caption)}" src="data:image/png;base64,{data}">'
    return f"<figure>{head}<div>{image}</div><figcaption>{escape(figure.caption)}</figcaption></figure>"


def imputations(gathered: Sequence[Gathered]) -> str:
    """Errors by pattern, how many states carry them, and paired differences to the first run."""
    patterns = list(dict.fromkeys(pattern for one in gathered for pattern in one.imputation))
    rows = []
    for one in gathered:
        cells = [one.imputation.get(pattern) for pattern in patterns]
        numbers = ["" if c is None else with_error(c.error.mean, c.error.standard_error, 4) for c in cells]
        carried = " / ".join(f"{c.effective:.1f}" for c in cells if c is not None)
        rows.append([escape(one.subject.name), *numbers, carried])
    lines = [table(["run", *map(escape, patterns), "effective states"], rows)]
    kinds = dict.fromkeys(
        f"{one.subject.data.name}: {own.values}" for one in gathered for own in one.imputation.values()
    )
    methods = dict.fromkeys(one.subject.method for one in gathered)
    lines.append(
        "<p class='faint'>Mean squared error per missing value ± standard error over rows; method "
        f"{' / '.join(methods)}, {STEPS} decoder passes, of which the effective states carry the answer; masks by "
        f"pattern and row, not by model; {escape('; '.join(kinds))}.</p>"
    )
    for other in gathered[1:]:
        if not same_data(gathered[0], other):
            continue
        parts = []
        for pattern, own in other.imputation.items():
            change = own.per_row - gathered[0].imputation[pattern].per_row
            parts.append(f"{escape(pattern)} {float(change.mean()):+.4f} ± {standard_error(change):.4f}")
        names = f"{escape(other.subject.name)} minus {escape(gathered[0].subject.name)}"
        lines.append(f"<p>{names}, paired over rows: {', '.join(parts)}.</p>")
    return "\n".join(lines)


def settings(gathered: Sequence[Gathered]) -> str:
    """Every setting of every run; those that differ stand out."""
    flat = [flatten(one.subject.saved.recipe.to_dict()) for one in gathered]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [[f"<code>{escape(key)}</code>", *(escape(str(one.get(key, ""))) for one in flat)] for key in keys]
    differs = [len(set(row[1:])) > 1 for row in rows]
    return table(["setting", *(escape(one.subject.name) for one in gathered)], rows, differs, words=99)


def flatten(recipe: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in recipe.items():
        found |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    return found


def ending(gathered: Sequence[Gathered]) -> str:
    shas = "; ".join(f"{escape(one.subject.name)} {one.subject.saved.sha256[:12]}" for one in gathered)
    return f"<p class='faint'>Made by memgen {memgen.__version__}. Weights (sha256): {shas}.</p>"
