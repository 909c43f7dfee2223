"""`memgen evaluate`"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import Whole, data_option, device_option, run_argument, seed_option


@click.command(
    "evaluate",
    cls=Command,
    epilog=examples(
        "memgen evaluate runs/digits",
        "memgen evaluate runs/mnist --samples 500 --limit 1000",
        "memgen evaluate runs/digits --split valid --json",
    ),
)
@run_argument
@data_option
@click.option("--samples", type=Whole(1), default=5000, help="Importance samples per example (default 5000).")
@click.option("--split", default="test", help="train, valid or test (default).")
@click.option("--limit", type=Whole(1), metavar="N", help="Score the first N examples only.")
@seed_option("the importance samples")
@click.option("--fresh", is_flag=True, help="Score anew what an earlier evaluation has scored.")
@device_option
def command(
    path: Path, data: str | None, samples: int, split: str, limit: int | None, seed: int, fresh: bool, device: str
) -> dict[str, Any]:
    """Estimate log p(x) of held-out data by importance sampling, in nats.

    Results per example are kept in RUN/likelihood, so an interrupted evaluation goes on where it was.
    """
    from memgen.cli.reading import read_for
    from memgen.report.evaluation import Evaluation
    from memgen.runs.run import Run, read_model
    from memgen.runs.scores import bits_of, score
    from memgen.runs.session import choose_device

    run = Run.open(path) if path.is_dir() else None
    saved = read_model(path, choose_device(device))
    loaded = read_for(saved, data, split, whole=True)
    x = loaded.data.to_score(split, limit)
    result, seconds = score(run, saved, x, split, samples, seed, fresh, loaded.other)
    evaluation = Evaluation(saved, loaded.data, split, seed, result, bits_of(saved, result, x), seconds)
    evaluation.check()
    say(f"{path}, {evaluation.summary}")
    for line in evaluation.lines():
        say(line)
    return evaluation.to_dict()
