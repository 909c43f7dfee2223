"""`memgen classify`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import data_option, device_option, run_argument


@click.command(
    "classify",
    cls=Command,
    epilog=examples("memgen classify runs/digits", "memgen classify runs/mnist --features mean --json"),
)
@run_argument
@data_option
@click.option(
    "--features",
    default="last",
    type=click.Choice(("last", "mean")),
    help="Last layer of Q (default), or mean of q(z|x).",
)
@device_option
def command(path: Path, data: str | None, features: str, device: str) -> dict[str, Any]:
    """Measure how well a linear SVM classifies by the model's features.

    At the paper's regularisation and at the one that is best on validation rows.
    """
    from memgen.cli.reading import data_for
    from memgen.report.classification import compare
    from memgen.runs.run import read_model
    from memgen.runs.session import choose_device

    saved = read_model(path, choose_device(device))
    comparison = compare(saved.model, data_for(saved, data), features)
    for line in comparison.lines():
        say(line)
    return comparison.to_dict()
