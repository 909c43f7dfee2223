"""REPRODUCTION.md: every number and figure of the paper beside ours, made of the result files and nothing else."""

from __future__ import annotations

from pathlib import Path

from memgen.data.output import write_atomically
from reproduction import headline, ledger, mismatches
from reproduction.job import read_json, read_result
from reproduction.likelihoods import differences, others, table
from reproduction.overview import LEVEL, MARK, Results, overview
from reproduction.rows import FREY, MNIST, OCR, ROWS
from reproduction.section6 import claims, imputation, memory_differences, paper_schedule, slots, svm, sweep
from reproduction.sweep import swept
from reproduction.text import grid

PAGE = "REPRODUCTION.md"
REMARKS = "remarks.json"
"""What a person adds: a key of `mismatches` -> a sentence on why that may be so."""
OPENING = f"""# The paper's numbers beside ours

Likelihoods are in nats; higher is better. "Level with the paper" means within {LEVEL} nats; on Frey faces, within the
error."""
NOTES = f"""\
± is the standard error over test examples. It is not the error of the difference, because the test examples are the
paper's own, except for Frey faces. Two seeds or two binarisations of the test set
differ by up to about {LEVEL} nats.

{MARK} This training was extended after its test number was known. [The ledger](LEDGER.md) has every look at test data.

The page is made from the JSON files of this folder by `python -m reproduction`. `python -m reproduction --status` shows
how far each row is, and `python -m reproduction --verify ROW` scores shipped weights again.
[docs/reproduction.md](../docs/reproduction.md) says how to train a row,
[reproduction/NOTES.md](../reproduction/NOTES.md) how the settings were chosen."""


def write_page(folder: Path) -> Path:
    path = folder / PAGE
    write_atomically(path, page(folder).encode())
    return path


def page(folder: Path) -> str:
    """The whole page."""
    results = {name: result for name in ROWS if (result := read_result(folder / f"{name}.json")) is not None}
    remarks = read_json(folder / REMARKS) or {}
    shared = swept(folder)
    compared, by_paper = memory_differences(folder), paper_schedule(folder)
    parts = [
        OPENING,
        overview(results, ledger.marks(folder)),
        NOTES,
        *(table(results, name) for name in (MNIST, OCR, FREY)),
        differences(folder),
        others(folder),
        headline.section(folder),
        imputation(results, by_paper, compared),
        svm(results, by_paper, compared),
        claims(results),
        slots(results),
        sweep(shared),
        mismatches.section(mismatches.mismatches(results, shared, folder), results, remarks),
        figures(results),
    ]
    return "\n\n".join(part for part in parts if part) + "\n"


def figures(results: Results) -> str:
    """All of them, those of a kind side by side."""
    kinds: dict[str, list[tuple[str, str, str]]] = {}
    for name, result in results.items():
        for analysis in result["analyses"].values():
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
