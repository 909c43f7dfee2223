"""`memgen inspect`"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, count, examples, say
from memgen.cli.options import FILE, Whole, data_option, device_option, run_argument, seed_option, split_option
from memgen.cli.output import check_folder


@click.command(
    "inspect",
    cls=Command,
    epilog=examples(
        "memgen inspect runs/digits --out look", "memgen inspect runs/mnist --out look --rows 200 --samples 200"
    ),
)
@run_argument
@click.option("--out", "folder", type=FILE, required=True, metavar="FOLDER", help="For figures and numbers.")
@data_option
@split_option("rows")
@click.option("--limit", type=Whole(2), metavar="N", help="Read preferences from the first N rows only.")
@click.option("--rows", type=Whole(2), default=100, help="Rows scored with each slot silenced (default 100).")
@click.option("--samples", type=Whole(1), default=100, help="Importance samples for them (default 100).")
@seed_option("the importance samples")
@device_option
def command(
    path: Path,
    folder: Path,
    data: str | None,
    split: str,
    limit: int | None,
    rows: int,
    samples: int,
    seed: int,
    device: str,
) -> dict[str, Any]:
    """Look inside the memory: who prefers which slot, what each shows, its gain in nats."""
    from memgen.cli.reading import data_for, image_shape
    from memgen.data.output import write_atomically
    from memgen.report.figures.memory import memory_figures
    from memgen.report.inspection import lines, summary_of
    from memgen.runs.finite import as_json
    from memgen.runs.run import read_model
    from memgen.runs.scores import look
    from memgen.runs.session import choose_device
    from memgen.tasks.inspection import require_memory

    saved = read_model(path, choose_device(device))
    require_memory(saved.model)
    given = data_for(saved, data, split)
    check_folder(folder, "--out")
    clock = time.perf_counter()
    inspection = look(saved.model, given, split, limit, rows, samples, seed)
    figures = memory_figures(inspection, given.some("train"), image_shape(saved))
    files = [path.name for figure in figures for path in figure.write(folder)]
    summary = summary_of(inspection, given, split)
    write_atomically(folder / "summary.json", as_json(summary))
    seconds = time.perf_counter() - clock
    for line in lines(inspection, "pixels" if image_shape(saved) else "values"):
        say(line)
    say(f"wrote {count(len(figures), 'figure')} (PNG, PDF, numbers) and summary.json into {folder}, {seconds:.1f} s")
    return summary | {"out": str(folder), "files": [*files, "summary.json"], "seconds": seconds}
