"""`memgen evaluate`"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from memgen.cli.command import Command, examples, say
from memgen.cli.options import Whole, data_option, device_option, run_argument, seed_option
from memgen.cli.sharding import Sharding, name_of, shardable

if TYPE_CHECKING:
    from memgen.core.batch import Rows
    from memgen.runs.modelfile import Saved
    from memgen.runs.run import Run
    from memgen.tasks.density import Likelihood


@click.command(
    "evaluate",
    cls=Command,
    epilog=examples(
        "memgen evaluate runs/digits",
        "memgen evaluate runs/mnist --samples 500 --limit 1000",
        "memgen evaluate runs/digits --split valid --json",
        "memgen evaluate runs/digits --shard 0/4                       one of four processes; memgen merge ends it",
        "torchrun --nproc-per-node 2 -m memgen evaluate runs/digits    two processes; the first one merges",
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
@shardable
def command(
    path: Path,
    data: str | None,
    samples: int,
    split: str,
    limit: int | None,
    seed: int,
    fresh: bool,
    device: str,
    sharding: Sharding,
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
    if sharding.asked:
        task = Task(split, samples, limit, seed, loaded.other)
        merged = score_shards(sharding, path, run, saved, x, task, fresh)
        if merged is None:
            return sharding.record()
        result, seconds = merged
    else:
        result, seconds = score(run, saved, x, split, samples, seed, fresh, loaded.other)
    evaluation = Evaluation(saved, loaded.data, split, seed, result, bits_of(saved, result, x), seconds)
    evaluation.check()
    say(f"{path}, {evaluation.summary}")
    for line in evaluation.lines():
        say(line)
    return evaluation.to_dict()


class Task(NamedTuple):
    """What all shards of an evaluation have in common, beside weights and rows."""

    split: str
    samples: int
    limit: int | None
    seed: int
    other: str
    """A name for data other than those of the run."""

    @property
    def name(self) -> str:
        first = "" if self.limit is None else f"first{self.limit}"
        return name_of("evaluate", self.split, self.samples, f"seed{self.seed}", first, self.other[:16])


def score_shards(
    sharding: Sharding, path: Path, run: Run | None, saved: Saved, x: Rows, task: Task, fresh: bool
) -> tuple[Likelihood, float] | None:
    """Score the rows of this process. Where it merges: log p(x) of all rows, which are kept as by one process."""
    from memgen.runs.kept import ShardScores, likelihood, score_layout
    from memgen.runs.scores import keep_all, score_rows
    from memgen.tasks.density import borders, join

    merged = sharding.results(
        sharding.place(path, task.name),
        {"command": "evaluate", **task._asdict(), **sharding.made_with(saved, x)},
        borders(len(x)),
        score_layout(task.samples),
        lambda file: score_rows(
            saved.model, x, task.samples, task.seed, ShardScores(file, task.samples), rows=file.rows
        ),
        fresh,
    )
    if merged is None:
        return None
    result = join([likelihood(task.samples, part) for part in merged.parts])
    if run is not None:
        keep_all(run.scores(task.split, task.samples, task.seed, saved.sha256, task.other), result, merged.seconds)
    return result, merged.seconds
