"""The command line: parse, call, write. torch is imported only when a command needs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from memgen import __version__
from memgen.errors import FailedError, MemgenError, unknown
from memgen.runs.finite import finite

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130
IMPUTATION, COMPLETIONS, MASKED = "importance", "gibbs", "observed"
"""The default methods; said here too, so that --help need not wait for torch (a test holds them together)."""


DATA_HELP = "other data of the same form, or the new place of the run's own (default: the run's own)"


class Parser(argparse.ArgumentParser):
    """argparse with errors of one line, and with a hint for a mistyped command."""

    def error(self, message: str) -> NoReturn:
        if "invalid choice: " in message and "command" in message.partition(":")[0]:
            wrong = message.partition("invalid choice: ")[2].split(" (choose")[0].strip("'\"")
            choices = [name for action in self._actions for name in action.choices or ()]
            message = str(unknown("command", wrong, choices))
        print(f"{self.prog}: {message} (see {self.prog} --help)", file=sys.stderr)
        sys.exit(BAD_INPUT)


def whole(at_least: int) -> Callable[[str], int]:
    """A type for arguments: a whole number from `at_least` on."""

    def convert(text: str) -> int:
        try:
            value = int(text.replace(",", "").replace("_", ""))
        except ValueError:
            raise argparse.ArgumentTypeError(f"{text!r} is not a whole number") from None
        if value < at_least:
            raise argparse.ArgumentTypeError(f"must be at least {at_least}, not {value}")
        return value

    return convert


def parser() -> Parser:
    top = Parser(
        prog="memgen",
        description="Deep generative models with external memory: train, score, sample, fill in, look inside.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  memgen demo                                        a VAE and a MEM-VAE side by side, in a minute\n"
        "  memgen train digits-mem-vae --out runs/digits      train a shipped recipe\n"
        "  memgen train --data table.csv --out runs/table     train on your own table, array or images\n"
        "  memgen evaluate runs/digits                        its log-likelihood on the test set\n"
        "  memgen sample runs/digits -o samples.png           what it dreams of\n"
        "  memgen impute runs/digits --pattern half           what it makes of half an image\n"
        "  memgen report runs/digits -o report.html           all of it on one page\n\n"
        "Every command explains itself: memgen COMMAND --help",
    )
    top.add_argument("--version", action="version", version=f"memgen {__version__}")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)
    _add_train(commands)
    _add_evaluate(commands)
    _add_sample(commands)
    _add_impute(commands)
    _add_features(commands)
    _add_classify(commands)
    _add_inspect(commands)
    _add_report(commands)
    _add_show(commands)
    _add_recipes(commands)
    _add_data(commands)
    _add_demo(commands)
    _add_zoo(commands)
    _add_serve(commands)
    return top


def parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    """The options of a command; what it does not know is reported in its own name."""
    options, unread = parser().parse_known_args(arguments)
    if unread:
        known = [name for action in options.own._actions for name in action.option_strings]
        wrong = unread[0]
        if wrong in known:
            options.own.error(f"{wrong} comes after the command")
        options.own.error(str(unknown("option", wrong, known)) if wrong.startswith("-") else f"what is {wrong!r}?")
    return options


def _command(commands: Any, name: str, run: str, about: str, examples: Sequence[str]) -> Parser:
    """A sub-command with help, examples and --json; `run` names the function that does it."""
    lines = "\n".join(f"  {example}" for example in examples)
    command: Parser = commands.add_parser(
        name,
        help=about.splitlines()[0],
        description=about,
        epilog=f"examples:\n{lines}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_json(command)
    command.set_defaults(run=run, own=command)
    return command


def standalone(prog: str, about: str, examples: Sequence[str]) -> Parser:
    """The parser of a program beside memgen that speaks as its commands do."""
    command = Parser(
        prog=prog,
        description=about,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add_json(command)
    command.set_defaults(own=command)
    return command


def add_json(command: Parser) -> None:
    command.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout, everything else on stderr"
    )


def _add_model(command: Parser) -> None:
    command.add_argument("path", metavar="RUN", type=Path, help="a run folder, a model file or zoo:NAME")


def add_compile(command: Parser) -> None:
    command.add_argument(
        "--compile",
        action="store_true",
        help="torch.compile the loss, in half a minute: for models whose steps memgen does not write down itself",
    )


def add_device(command: Parser) -> None:
    command.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1, ...; auto (default): a GPU if there is one"
    )


def _add_train(commands: Any) -> None:
    command = _command(
        commands,
        "train",
        "training.train",
        "Train a model and keep it in a run folder.\n\nCtrl-C saves and stops; --resume goes on, also after a crash, "
        "to the very weights that an uninterrupted run would have had.",
        [
            "memgen train digits-mem-vae --out runs/digits",
            "memgen train mnist-mem-vae --out runs/mnist --set training.epochs=10 --set training.seed=1",
            "memgen train my-recipe.toml --out runs/mine",
            "memgen train --data table.csv --out runs/table              your own data: settings by their size",
            "memgen train --data photos --size 32x32 --out runs/photos   a folder of images, made 32 x 32",
            "memgen train digits-mem-vae --data scans.npz --out runs/scans",
            "memgen train --resume --out runs/mnist",
            "OMP_NUM_THREADS=1 memgen train ...      beside other work on the same cores: much faster then",
        ],
    )
    command.add_argument(
        "recipe",
        nargs="?",
        help="name of a shipped recipe (memgen recipes), or a TOML file; auto, the default with --data: made from them",
    )
    command.add_argument("--out", required=True, type=Path, metavar="RUN", help="the run folder")
    command.add_argument(
        "--data",
        metavar="PATH|NAME",
        help="your own data: a .csv, .tsv, .parquet, .npy or .npz file or a folder of images; or a data set's name",
    )
    command.add_argument("--size", metavar="HxW", help="make your images this size, as in 28x28: cropped, then resized")
    command.add_argument(
        "--likelihood",
        metavar="NAME",
        help="p(x|z); auto: mixed for tables, bernoulli or discretised_logistic for images",
    )
    command.add_argument(
        "--kind",
        action="append",
        default=[],
        metavar="COLUMN=KIND",
        help="real, positive, count, binary or categorical, where the values do not show it; may be repeated",
    )
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the recipe"
    )
    command.add_argument(
        "--start",
        type=Path,
        metavar="RUN",
        help="begin with the weights of this run, model file or zoo:NAME, as recipes with training.start_from ask for",
    )
    command.add_argument("--resume", action="store_true", help="go on with the run in RUN")
    command.add_argument(
        "--checkpoint-every",
        type=whole(0),
        default=120,
        metavar="SECONDS",
        help="time between checkpoints (default 120)",
    )
    command.add_argument(
        "--tensorboard", action="store_true", help="also write metrics for TensorBoard into RUN/tensorboard"
    )
    add_compile(command)
    add_device(command)


def _add_evaluate(commands: Any) -> None:
    command = _command(
        commands,
        "evaluate",
        "evaluation.evaluate",
        "Estimate log p(x) of held-out data by importance sampling, in nats.\n\nResults per example are kept in "
        "RUN/likelihood, so an interrupted evaluation goes on where it was.",
        [
            "memgen evaluate runs/digits",
            "memgen evaluate runs/mnist --samples 500 --limit 1000",
            "memgen evaluate runs/digits --split valid --json",
        ],
    )
    _add_model(command)
    command.add_argument("--data", metavar="PATH|NAME", help=DATA_HELP)
    command.add_argument("--samples", type=whole(1), default=5000, help="importance samples per example (default 5000)")
    command.add_argument("--split", default="test", help="train, valid or test (default)")
    command.add_argument("--limit", type=whole(1), metavar="N", help="score the first N examples only")
    command.add_argument("--seed", type=whole(0), default=0, help="of the importance samples (default 0)")
    command.add_argument("--fresh", action="store_true", help="score anew what an earlier evaluation has scored")
    add_device(command)


def _add_rows(command: Parser, what: str) -> None:
    """Which data: --data, --split."""
    command.add_argument("--data", metavar="PATH|NAME", help=DATA_HELP)
    command.add_argument("--split", default="test", help=f"{what}: train, valid or test (default)")


def _add_sample(commands: Any) -> None:
    command = _command(
        commands,
        "sample",
        "sampling.sample",
        "Draw new images or rows from a model: the first N of a seed, nothing picked.",
        [
            "memgen sample runs/digits -n 64 -o samples.png",
            "memgen sample runs/digits -n 1000 --draw --npy draws.npy",
            "memgen sample runs/table -n 100 --csv rows.csv",
            "memgen sample runs/digits --both -o both.png",
            "memgen sample runs/digits --reconstruct -o reconstructions.png",
            "memgen sample runs/digits --interpolate 3 8 -o between.png",
            "memgen sample runs/digits --walk 0 -o walk.png",
        ],
    )
    _add_model(command)
    command.add_argument("-n", type=whole(1), default=64, help="how many (default 64)")
    command.add_argument(
        "-o", dest="output", type=Path, metavar="FILE.png", help="a grid of images (default samples.png)"
    )
    command.add_argument(
        "--npy",
        nargs="?",
        const="",
        metavar="FILE.npy",
        help="the raw arrays (n, columns); without a name: beside the grid",
    )
    command.add_argument(
        "--csv", type=Path, metavar="FILE.csv", help="models of tables: draws of whole rows, in your own values"
    )
    command.add_argument("--overwrite", action="store_true", help="replace FILE.csv and FILE.npy if they exist")
    command.add_argument("--draw", action="store_true", help="draws of x instead of the means of p(x|z)")
    command.add_argument("--both", action="store_true", help="means and draws of the same z, one above the other")
    command.add_argument(
        "--reconstruct", action="store_true", help="the first images of the data and what is kept of them"
    )
    command.add_argument(
        "--interpolate",
        nargs="*",
        type=whole(0),
        metavar="I",
        action=TwoOrNone,
        help="from image I to image J of the data, spherical in z; without numbers: the first ones, two by two",
    )
    command.add_argument("--walk", type=whole(0), metavar="I", help="circles around image I of the data, in z")
    command.add_argument(
        "--hold", type=whole(0), default=0, metavar="L", help="share the top L levels of z among all images (default 0)"
    )
    _add_rows(command, "images for --reconstruct, --interpolate and --walk")
    command.add_argument("--seed", type=whole(0), default=0, help="default 0")
    add_device(command)


class TwoOrNone(argparse.Action):
    """Two numbers or none."""

    def __call__(self, parser: Any, namespace: argparse.Namespace, values: Any, option: str | None = None) -> None:
        if len(values) not in (0, 2):
            parser.error(f"argument {option}: give two images, as in {option} 3 8, or none")
        setattr(namespace, self.dest, values)


def _add_impute(commands: Any) -> None:
    command = _command(
        commands,
        "impute",
        "imputation.impute",
        "Fill in missing values: of a data set under a pattern, for a number, or of your own data.\n\n"
        "Patterns: rect-N (a centred square of N x N pixels), rand-P (each value with probability P), half (the left\n"
        "one), half-left, half-right, half-top, half-bottom. Masks are seeded, so two models meet the same ones.\n\n"
        "Your own data: in a .csv, .parquet, .npy or .npz, NaN or an empty cell is missing, and values are those that\n"
        "the model was trained on (grey levels lie in [0, 1]; a model of a table reads and writes your own values,\n"
        "text too); in a folder of 8-bit images, a pixel with alpha 0 is missing, and completed images are PNG\n"
        "without alpha.",
        [
            "memgen impute runs/digits --pattern half",
            "memgen impute runs/mnist --pattern rect-12 --method paper --limit 1000",
            "memgen impute runs/mnist --input holes.csv --output whole.csv",
            "memgen impute runs/mnist --input pictures --output completed --draws 5 --mean",
        ],
    )
    _add_model(command)
    command.add_argument("--pattern", help="rect-N, rand-P, half, half-left, -right, -top or -bottom")
    command.add_argument("--input", type=Path, metavar="FILE|FOLDER", help="your own incomplete data")
    command.add_argument("--output", type=Path, metavar="FILE|FOLDER", help="where they go, completed")
    command.add_argument(
        "--method",
        help=f"paper, gibbs, mwg, {IMPUTATION} (default; with --draws {COMPLETIONS}) or {MASKED} (default with "
        "model.mask=true)",
    )
    command.add_argument("--steps", type=whole(2), default=100, help="decoder passes a row (default 100)")
    command.add_argument("--keep", type=whole(1), metavar="N", help="the last N states count (default: half; paper: 1)")
    command.add_argument(
        "--draws", type=whole(0), default=0, metavar="M", help="M completions: OUTPUT-1, OUTPUT-2, ..."
    )
    command.add_argument("--mean", action="store_true", help="the average completion (default without --draws)")
    command.add_argument(
        "--values",
        default="auto",
        choices=("auto", "grey", "binary"),
        help="of a data set of grey levels (default auto)",
    )
    command.add_argument("--allow-empty-columns", action="store_true", help="columns without a single value are meant")
    command.add_argument("--header", default="auto", choices=("auto", "yes", "no"), help="of a table (default auto)")
    command.add_argument("--overwrite", action="store_true", help="replace outputs that exist")
    command.add_argument("--npz", type=Path, metavar="FILE.npz", help="with --pattern: rows, masks and means as arrays")
    command.add_argument("-o", dest="figure", type=Path, metavar="FILE.png", help="the figure (default imputed.png)")
    _add_rows(command, "rows for --pattern")
    command.add_argument("--limit", type=whole(1), metavar="N", help="the first N rows only")
    command.add_argument("--seed", type=whole(0), default=0, help="of the masks and of the chains (default 0)")
    add_device(command)


def _add_features(commands: Any) -> None:
    command = _command(
        commands,
        "features",
        "looking.features",
        "Write features of every row: the mean of q(z|x) and the last deterministic layer of Q, with labels.",
        ["memgen features runs/mnist -o features.npz", "memgen features runs/mnist --data mnist-255 -o features.npz"],
    )
    _add_model(command)
    command.add_argument("--data", metavar="PATH|NAME", help=DATA_HELP)
    command.add_argument(
        "-o", dest="output", type=Path, default=Path("features.npz"), metavar="FILE.npz", help="default features.npz"
    )
    command.add_argument("--overwrite", action="store_true", help="replace FILE.npz if it exists")
    add_device(command)


def _add_classify(commands: Any) -> None:
    command = _command(
        commands,
        "classify",
        "looking.classify",
        "How well a linear SVM classifies by the model's features: at the paper's regularisation and at the best one.",
        ["memgen classify runs/digits", "memgen classify runs/mnist --features mean --json"],
    )
    _add_model(command)
    command.add_argument("--data", metavar="PATH|NAME", help=DATA_HELP)
    command.add_argument(
        "--features", default="last", choices=("last", "mean"), help="last layer of Q (default), or mean of q(z|x)"
    )
    add_device(command)


def _add_inspect(commands: Any) -> None:
    command = _command(
        commands,
        "inspect",
        "looking.inspect",
        "Look inside the memory: who prefers which slot, what each slot looks like, what it is worth in nats.",
        ["memgen inspect runs/digits --out look", "memgen inspect runs/mnist --out look --rows 200 --samples 200"],
    )
    _add_model(command)
    command.add_argument("--out", type=Path, required=True, metavar="FOLDER", help="for figures and numbers")
    _add_rows(command, "rows")
    command.add_argument("--limit", type=whole(2), metavar="N", help="read preferences from the first N rows only")
    command.add_argument("--rows", type=whole(2), default=100, help="rows scored with each slot silenced (default 100)")
    command.add_argument("--samples", type=whole(1), default=100, help="importance samples for them (default 100)")
    command.add_argument("--seed", type=whole(0), default=0, help="default 0")
    add_device(command)


def _add_report(commands: Any) -> None:
    command = _command(
        commands,
        "report",
        "reporting.report",
        "One page about a run, or several side by side: settings, curves, likelihood, samples, imputations, memory.",
        [
            "memgen report runs/digits -o report.html",
            "memgen report runs/vae runs/mem-vae -o comparison.html --samples 5000",
        ],
    )
    command.add_argument("paths", metavar="RUN", type=Path, nargs="+", help="run folders")
    command.add_argument("--data", metavar="PATH|NAME", help=DATA_HELP)
    command.add_argument(
        "-o", dest="output", type=Path, default=Path("report.html"), metavar="FILE.html", help="default report.html"
    )
    command.add_argument(
        "--samples",
        type=whole(1),
        default=1000,
        help="importance samples (default 1000; or more, where all runs have kept an evaluation)",
    )
    command.add_argument(
        "--limit", type=whole(2), default=500, metavar="N", help="rows for likelihood and imputation (default 500)"
    )
    command.add_argument("--seed", type=whole(0), default=0, help="default 0")
    add_device(command)


def _add_show(commands: Any) -> None:
    command = _command(
        commands,
        "show",
        "showing.show",
        "Show a run or a recipe: its settings, its parameters by part, its last metrics.",
        ["memgen show mnist-mem-vae", "memgen show runs/digits --json"],
    )
    command.add_argument(
        "what", metavar="RUN|RECIPE", help="a run folder, a recipe's name, a TOML file, a model file or zoo:NAME"
    )


def _add_recipes(commands: Any) -> None:
    _command(commands, "recipes", "showing.recipes", "List the recipes that ship with memgen.", ["memgen recipes"])


def _add_data(commands: Any) -> None:
    about = (
        "List, fetch and check data sets.\n\nFiles are looked for in the folder that MEMGEN_DATA names, then in the "
        "cache (MEMGEN_CACHE, else the user's cache folder), where fetch puts them. Their content is always checked."
    )
    examples = [
        "memgen data list",
        "memgen data fetch mnist",
        "memgen data fetch mnist --from Downloads",
        "memgen data check mnist",
    ]
    data = commands.add_parser(
        "data",
        help=about.splitlines()[0],
        description=about,
        epilog="examples:\n" + "\n".join(f"  {example}" for example in examples),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    actions = data.add_subparsers(dest="action", metavar="command", required=True)
    _command(actions, "list", "showing.data_list", "List the data sets and where their files are.", examples[:1])
    fetch = _command(actions, "fetch", "showing.data_fetch", "Bring a data set into the cache.", examples[1:3])
    fetch.add_argument("name", help="name of a data set (memgen data list)")
    fetch.add_argument("--from", dest="origin", type=Path, metavar="FOLDER", help="copy the files from there")
    check = _command(actions, "check", "showing.data_check", "Read a data set and check its content.", examples[3:])
    check.add_argument("name", help="name of a data set (memgen data list)")


def _add_demo(commands: Any) -> None:
    command = _command(
        commands,
        "demo",
        "demonstration.demo",
        "Train a VAE and a MEM-VAE on small digits, score them, and draw samples of both.",
        ["memgen demo", "memgen demo --out demo"],
    )
    command.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="FOLDER", help="for models and pictures (default demo)"
    )
    command.add_argument("--epochs", type=whole(1), help="instead of the recipes' own")


def _add_zoo(commands: Any) -> None:
    _command(
        commands,
        "zoo",
        "showing.zoo",
        "List the trained models that come with memgen, with their numbers.",
        [
            "memgen zoo",
            "memgen sample zoo:mnist-mem-vae -o samples.png",
            "memgen evaluate zoo:mnist-mem-vae --limit 100",
        ],
    )


def _add_serve(commands: Any) -> None:
    command = _command(
        commands,
        "serve",
        "serving.serve",
        "Open a page in the browser: play with models, complete images, look inside the memory.\n\n"
        "The page is served to this machine alone, and asks nothing of any other.",
        [
            "memgen serve --open",
            "memgen serve runs/digits zoo:mnist-vae",
            "memgen serve runs/table --runs runs",
        ],
    )
    command.add_argument(
        "models", metavar="RUN", nargs="*", help="run folders, model files or zoo:NAME (default: a MEM-VAE and a VAE)"
    )
    command.add_argument("--runs", type=Path, metavar="FOLDER", help="show the curves of all runs in this folder")
    command.add_argument("--port", type=whole(0), default=8765, help="default 8765; 0: any that is free")
    command.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="default 127.0.0.1, this machine alone")
    command.add_argument("--allow-remote", action="store_true", help="let other machines in, with --host 0.0.0.0")
    command.add_argument("--open", action="store_true", help="open the browser")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = parse(arguments)
    module, _, function = options.run.partition(".")
    return execute(lambda: getattr(import_module(f"memgen.cli.{module}"), function), options)


def execute(load: Callable[[], Callable[[argparse.Namespace], dict[str, Any]]], options: argparse.Namespace) -> int:
    """Load the function of a command and call it; its errors become one line and an exit code."""
    warnings.showwarning = _show_warning
    try:
        result = load()(options)
        if options.json:
            print(json.dumps(finite(result), allow_nan=False))
        sys.stdout.flush()
    except MemgenError as error:
        print(f"{options.own.prog}: {error}", file=sys.stderr)
        return FAILED if isinstance(error, FailedError) else BAD_INPUT
    except KeyboardInterrupt as interrupt:
        print(f"{options.own.prog}: {str(interrupt) or 'interrupted'}", file=sys.stderr)
        return INTERRUPTED
    except BrokenPipeError:
        # The reader of our output has gone, as in `memgen recipes | head`; that is not an error of ours.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except (OSError, MemoryError) as error:
        print(f"{options.own.prog}: {str(error) or 'out of memory'}", file=sys.stderr)
        return BAD_INPUT
    return 0


def _show_warning(message: Warning | str, *details: object, **more: object) -> None:
    print(f"memgen: warning: {message}", file=sys.stderr)
