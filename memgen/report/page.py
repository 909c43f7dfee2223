"""The report as one self-contained HTML file: templates/page.html has its layout, this module its content."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

import memgen
from memgen.data.output import write_atomically
from memgen.data.values import some
from memgen.report.figures.base import Figure
from memgen.report.gather import STEPS, Gathered, Subject, paired_difference, same_data
from memgen.report.quality import quality
from memgen.report.sections import ALL_WORDS, Group, Section, Shown, Table
from memgen.tasks.density import standard_error

HEADS = {
    "training": "Training",
    "columns": "Columns, training rows and synthetic rows",
    "dependence": "Pairs of columns",
    "privacy": "Distance to training rows",
    "samples": "Samples",
    "reconstructions": "Reconstructions",
    "imputation": "Missing values",
    "memory": "Inside the memory",
}
"""Kind of figures -> heading of their section, in the order of the page."""

WIDE = 6.2
"""Width in inches from which two figures do not fit side by side on paper."""


def figures_folder(page: Path) -> Path:
    """The folder of a page's figures, beside the page."""
    return page.with_name(f"{page.stem}-figures")


def write_report(output: Path, gathered: Sequence[Gathered], seed: int) -> Path:
    """Write the page, and its figures with their numbers beside it. Returns the folder of the figures."""
    folder = figures_folder(output)
    text = page(gathered, seed)
    for one in gathered:
        one.write(folder / one.subject.name.replace("/", "-") if len(gathered) > 1 else folder)
    write_atomically(output, text.encode())
    return folder


def page(gathered: Sequence[Gathered], seed: int) -> str:
    """The whole HTML text."""
    several = len(gathered)
    loader = PackageLoader("memgen.report")
    pages = Environment(loader=loader, autoescape=True, trim_blocks=True, lstrip_blocks=True, undefined=StrictUndefined)
    text: str = pages.get_template("page.html").render(
        title=title(gathered),
        width=max(60, 32 * several),
        columns=min(3, several),
        narrow=26 if several < 3 else 20,
        introduction=[(one.subject.name, about(one.subject)) for one in gathered],
        sections=list(sections(gathered, seed)),
        ending=ending(gathered),
    )
    return text + "\n"


def title(gathered: Sequence[Gathered]) -> str:
    """The names of the runs and of their data."""
    names = [one.subject.name for one in gathered]
    data = dict.fromkeys(one.subject.data.name for one in gathered)
    return f"{' and '.join(names) if len(names) < 3 else f'{len(names)} runs'} on {' and '.join(data)}"


def about(subject: Subject) -> str:
    """The description in the recipe. That of a recipe for other data is replaced when training begins."""
    return subject.saved.recipe.about or f"a model of {subject.data.name}"


def sections(gathered: Sequence[Gathered], seed: int) -> Iterator[Section]:
    """All sections of the page, from the top."""
    yield likelihoods(gathered, seed)
    yield from schemas(gathered)
    yield from quality(gathered)
    for key in HEADS:
        section = figures(gathered, key)
        if section.groups or section.table or section.lines:
            yield section
    yield settings(gathered)


def with_error(mean: float, error: float, digits: int) -> str:
    """
    >>> with_error(1.25, 0.5, 1), with_error(1.25, math.nan, 1), with_error(math.nan, math.nan, 1)
    ('1.2 ± 0.5', '1.2', '')
    """
    if not math.isfinite(mean):
        return ""
    return f"{mean:.{digits}f} ± {error:.{digits}f}" if math.isfinite(error) else f"{mean:.{digits}f}"


def likelihoods(gathered: Sequence[Gathered], seed: int) -> Section:
    """Numbers with their errors, and paired differences to the first run."""
    rows = [likelihood_row(one) for one in gathered]
    heads = [head for head in rows[0] if any(row[head] for row in rows)]
    kinds = dict.fromkeys(f"{one.subject.data.name}: {one.subject.data.binarisation}" for one in gathered)
    note = (
        "Test log-likelihood by importance sampling with K samples, mean ± standard error over rows; "
        f"noise seed {seed}; {'; '.join(kinds)}."
    )
    table = Table(heads, [[row[head] for head in heads] for row in rows])
    return Section("Log-likelihood", table, note, differences(gathered))


def likelihood_row(one: Gathered) -> dict[str, str]:
    likelihood, facts, data = one.likelihood, one.facts, one.subject.data
    return {
        "run": one.subject.name,
        "log p(x), nats": with_error(likelihood.mean, likelihood.standard_error, 2),
        "bits per dimension": "" if one.bits is None else with_error(one.bits.mean, one.bits.standard_error, 3),
        "ELBO": f"{float(likelihood.elbo.mean()):.2f}",
        "K": f"{likelihood.samples:,}",
        "test rows": f"{len(likelihood.log_p):,}",
        "parameters": f"{facts['parameters']:,}",
        "epochs": f"{facts['epochs']:,}",
        "training": "" if facts["seconds"] is None else f"{facts['seconds']:,.0f} s",
        "data": f"{data.name}, {data.scale}",
    }


def differences(gathered: Sequence[Gathered]) -> list[str]:
    lines = []
    for other in gathered[1:]:
        names = f"{other.subject.name} minus {gathered[0].subject.name}"
        difference = paired_difference(gathered[0], other)
        if difference is None:
            lines.append(f"{names}: not comparable, they were scored on other data.")
            continue
        mean, error = float(difference.mean()), standard_error(difference)
        verdict = "" if abs(mean) > 2 * error else ": no detectable difference"
        lines.append(f"{names}: {mean:+.2f} ± {error:.2f} nats, paired over rows, one training each{verdict}.")
    return lines


def schemas(gathered: Sequence[Gathered]) -> Iterator[Section]:
    """The columns of every table."""
    columns = {one.subject.data.name: one.subject.data.columns for one in gathered}
    for name, schema in columns.items():
        if schema is not None:
            rows = [[c.name, c.kind, f"{c.why}: {some(c.levels, 5)}" if c.levels else c.why] for c in schema]
            yield Section(f"Columns of {name}", Table(["column", "kind", "why"], rows, ALL_WORDS))


def figures(gathered: Sequence[Gathered], key: str) -> Section:
    """Figures of the same name stand side by side."""
    shown = [(one, figure) for one in gathered for figure in one.sections.get(key, [])]
    names = dict.fromkeys(figure.name for _, figure in shown)
    section = imputations(gathered) if key == "imputation" else Section(HEADS[key])
    if key == "memory":
        without = [one.subject.name for one in gathered if not one.sections.get(key)]
        section = section._replace(lines=[f"{name} has no memory to show." for name in without])
    groups = [group([pair for pair in shown if pair[1].name == name], len(gathered) > 1) for name in names]
    return section._replace(groups=groups)


def group(shown: Sequence[tuple[Gathered, Figure]], several: bool) -> Group:
    wide = max(figure.canvas.get_figwidth() for _, figure in shown) > WIDE
    return Group(wide, [inlined(figure, one.subject.name if several else "") for one, figure in shown])


def inlined(figure: Figure, run: str) -> Shown:
    png = base64.b64encode(figure.png).decode()
    return Shown(run, round(figure.canvas.get_figwidth() * 100), figure.caption, png)


def imputations(gathered: Sequence[Gathered]) -> Section:
    """Errors by pattern, numbers of effective states, and paired differences to the first run."""
    patterns = list(dict.fromkeys(pattern for one in gathered for pattern in one.imputation))
    rows = []
    for one in gathered:
        cells = [one.imputation.get(pattern) for pattern in patterns]
        numbers = ["" if c is None else with_error(c.error.mean, c.error.standard_error, 4) for c in cells]
        carried = " / ".join(f"{c.effective:.1f}" for c in cells if c is not None)
        rows.append([one.subject.name, *numbers, carried])
    values = {f"{one.subject.data.name}: {filled.values}" for one in gathered for filled in one.imputation.values()}
    methods = dict.fromkeys(one.subject.method for one in gathered)
    note = (
        f"Mean squared error per missing value ± standard error over rows; method {' / '.join(methods)}, {STEPS} "
        "decoder passes, of which the effective states carry the answer; masks by pattern and row, not by model; "
        f"{'; '.join(sorted(values))}."
    )
    table = Table(["run", *patterns, "effective states"], rows)
    lines = [imputation_difference(gathered[0], other) for other in gathered[1:] if same_data(gathered[0], other)]
    return Section(HEADS["imputation"], table, note, lines)


def imputation_difference(first: Gathered, other: Gathered) -> str:
    parts = []
    for pattern, filled in other.imputation.items():
        change = filled.per_row - first.imputation[pattern].per_row
        parts.append(f"{pattern} {float(change.mean()):+.4f} ± {standard_error(change):.4f}")
    return f"{other.subject.name} minus {first.subject.name}, paired over rows: {', '.join(parts)}."


def settings(gathered: Sequence[Gathered]) -> Section:
    """Every setting of every run; those that differ are highlighted."""
    flat = [flatten(one.subject.saved.recipe.to_dict()) for one in gathered]
    keys = list(dict.fromkeys(key for one in flat for key in one))
    rows = [[key, *(str(one.get(key, "")) for one in flat)] for key in keys]
    differing = [i for i, row in enumerate(rows) if len(set(row[1:])) > 1]
    table = Table(["setting", *(one.subject.name for one in gathered)], rows, ALL_WORDS, differing)
    return Section("Settings", table, kind="settings")


def flatten(recipe: dict[str, Any]) -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in recipe.items():
        flat |= {f"{key}.{name}": item for name, item in value.items()} if isinstance(value, dict) else {key: value}
    return flat


def ending(gathered: Sequence[Gathered]) -> str:
    shas = "; ".join(f"{one.subject.name} {one.subject.saved.sha256[:12]}" for one in gathered)
    return f"Made by memgen {memgen.__version__}. Weights (sha256): {shas}."
