"""`memgen report`"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import FILE, RunPath, Whole, data_option, device_option, seed_option
from memgen.cli.output import check_folder, check_output


@click.command(
    "report",
    cls=Command,
    epilog=examples(
        "memgen report runs/digits -o report.html",
        "memgen report runs/vae runs/mem-vae -o comparison.html --samples 5000",
    ),
)
@click.argument("paths", metavar="RUN...", type=RunPath(), nargs=-1, required=True)
@data_option
@click.option("-o", "output", type=FILE, default=Path("report.html"), metavar="FILE.html", help="Default report.html.")
@click.option(
    "--samples",
    type=Whole(1),
    default=1000,
    help="Importance samples (default 1000; or more, where all runs have kept an evaluation).",
)
@click.option(
    "--limit", type=Whole(2), default=500, metavar="N", help="Rows for likelihood and imputation (default 500)."
)
@seed_option("everything random")
@device_option
def command(
    paths: tuple[Path, ...], data: str | None, output: Path, samples: int, limit: int, seed: int, device: str
) -> dict[str, Any]:
    """Write one page about a run, or several side by side.

    Settings, curves, likelihood, samples, imputations, memory; figures and their numbers lie beside the page.
    """
    check_output(output, ".html")

    from memgen.cli.subjects import subject
    from memgen.report.gather import gather_all, names
    from memgen.report.numbers import difference, numbers
    from memgen.report.page import figures_folder, write_report

    clock = time.perf_counter()
    subjects = [subject(path, name, device, data) for path, name in zip(paths, names(paths), strict=True)]
    check_folder(figures_folder(output), "-o")
    gathered, samples = gather_all(subjects, samples, limit, seed, say if len(subjects) > 1 else None)
    figures = write_report(output, gathered, seed)
    say(f"wrote {output} and its figures into {figures}, {time.perf_counter() - clock:.1f} s")
    say(f"open it in a browser: {output.resolve().as_uri()}")
    return {
        "output": str(output),
        "figures": str(figures),
        "runs": [numbers(one) for one in gathered],
        "differences": [difference(gathered[0], other) for other in gathered[1:]],
        "samples": samples,
        "seed": seed,
        "seconds": time.perf_counter() - clock,
    }
