"""The command line: the list of commands. Each is a module, which is imported on use."""

from __future__ import annotations

from collections.abc import Sequence

import click

from memgen import __version__
from memgen.cli.command import LazyGroup, examples, run

SECTIONS = {
    "Train and evaluate": {
        "demo": "Train a VAE and a MEM-VAE on small digits, score them, and draw samples of both.",
        "train": "Train a model and keep it in a run folder.",
        "evaluate": "Estimate log p(x) of held-out data by importance sampling, in nats.",
        "merge": "Merge the results of `--shard 0/N` to `--shard N-1/N` into those of all rows.",
    },
    "Use a model": {
        "score": "Score every row of your own data: log p(x), its error, and how unusual the row is.",
        "sample": "Draw new images or rows from a model: the first N of a seed, nothing picked.",
        "impute": "Fill in missing values: of a data set under a pattern, for a number, or of your own data.",
        "features": "Write features of every row: the mean of q(z|x) and the last deterministic layer of Q.",
    },
    "Look inside": {
        "serve": "Open a page in the browser: play with models, complete images, look inside the memory.",
        "inspect": "Look inside the memory: who prefers which slot, what each shows, its gain in nats.",
        "classify": "Measure how well a linear SVM classifies by the model's features.",
        "report": "Write one page about a run, or several side by side.",
        "show": "Show a run or a recipe: its settings, its parameters by part, its last metrics.",
    },
    "Data and recipes": {
        "recipes": "List the recipes that ship with memgen, and their schedules.",
        "data": "List, fetch and check data sets.",
        "zoo": "List the trained models that come with memgen, with their numbers.",
    },
}
"""Heading of the help -> command -> first sentence of its help, repeated here so that the help imports no command."""

EPILOG = examples(
    "memgen demo                                        a VAE and a MEM-VAE side by side, in a minute",
    "memgen train digits-mem-vae --out runs/digits      train a shipped recipe",
    "memgen train --data table.csv --out runs/table     train on your own table, array or images",
    "memgen evaluate runs/digits                        its log-likelihood on the test set",
    "memgen sample runs/digits -o samples.png           new images",
    "memgen impute runs/digits --pattern half           half of each image filled in",
    "memgen report runs/digits -o report.html           all of it on one page",
    "",
    "Every command explains itself: memgen COMMAND --help",
    'Completion with TAB in bash: eval "$(_MEMGEN_COMPLETE=bash_source memgen)"; zsh_source, fish_source in others',
)

group = LazyGroup(
    "memgen",
    sections=SECTIONS,
    help="Deep generative models with external memory: train, score, sample, fill in, look inside.",
    epilog=EPILOG,
)
click.version_option(__version__, prog_name="memgen", message="%(prog)s %(version)s")(group)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    return run(group, "memgen", arguments)
