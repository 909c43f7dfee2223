"""The command line: parse, call, write. torch is imported only when a command needs it."""

from __future__ import annotations

import argparse
import json
import os
import sys
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from memgen import __version__
from memgen.errors import MemgenError, unknown

BAD_INPUT = 2
FAILED = 1
INTERRUPTED = 130


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
        description="Deep generative models with external memory: train, score, sample.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="examples:\n"
        "  memgen demo                                        a VAE and a MEM-VAE side by side, in a minute\n"
        "  memgen train digits-mem-vae --out runs/digits      train a shipped recipe\n"
        "  memgen evaluate runs/digits                        its log-likelihood on the test set\n"
        "  memgen sample runs/digits -o samples.png           what it dreams of\n\n"
        "Every command explains itself: memgen COMMAND --help",
    )
    top.add_argument("--version", action="version", version=f"memgen {__version__}")
    commands = top.add_subparsers(dest="command", metavar="command", required=True)
    _add_train(commands)
    _add_evaluate(commands)
    _add_sample(commands)
    _add_show(commands)
    _add_recipes(commands)
    _add_data(commands)
    _add_demo(commands)
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
    command.add_argument(
        "--json", action="store_true", help="print one JSON object on stdout, everything else on stderr"
    )
    command.set_defaults(run=run, own=command)
    return command


def _add_device(command: Parser) -> None:
    command.add_argument(
        "--device", default="auto", help="cpu, cuda, cuda:1, ...; auto (default): a GPU if there is one"
    )


def _add_train(commands: Any) -> None:
    command = _command(
        commands,
        "train",
        "train",
        "Train a model and keep it in a run folder.\n\nCtrl-C saves and stops; --resume goes on, also after a crash, "
        "to the very weights that an uninterrupted run would have had.",
        [
            "memgen train digits-mem-vae --out runs/digits",
            "memgen train mnist-mem-vae --out runs/mnist --set training.epochs=10 --set training.seed=1",
            "memgen train my-recipe.toml --out runs/mine",
            "memgen train --resume --out runs/mnist",
            "OMP_NUM_THREADS=1 memgen train ...      beside other work on the same cores: much faster then",
        ],
    )
    command.add_argument("recipe", nargs="?", help="name of a shipped recipe (memgen recipes), or a TOML file")
    command.add_argument("--out", required=True, type=Path, metavar="RUN", help="the run folder")
    command.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="change a setting of the recipe"
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
    _add_device(command)


def _add_evaluate(commands: Any) -> None:
    command = _command(
        commands,
        "evaluate",
        "evaluate",
        "Estimate log p(x) of held-out data by importance sampling, in nats.\n\nResults per example are kept in "
        "RUN/likelihood, so an interrupted evaluation goes on where it was.",
        [
            "memgen evaluate runs/digits",
            "memgen evaluate runs/mnist --samples 500 --limit 1000",
            "memgen evaluate runs/digits --split valid --json",
        ],
    )
    command.add_argument("path", metavar="RUN", type=Path, help="a run folder")
    command.add_argument("--samples", type=whole(1), default=5000, help="importance samples per example (default 5000)")
    command.add_argument("--split", default="test", help="train, valid or test (default)")
    command.add_argument("--limit", type=whole(1), metavar="N", help="score the first N examples only")
    command.add_argument("--seed", type=whole(0), default=0, help="of the importance samples (default 0)")
    command.add_argument("--fresh", action="store_true", help="score anew what an earlier evaluation has scored")
    _add_device(command)


def _add_sample(commands: Any) -> None:
    command = _command(
        commands,
        "sample",
        "sample",
        "Draw new images from a model: the first N of a seed, nothing picked.",
        [
            "memgen sample runs/digits -n 64 -o samples.png",
            "memgen sample runs/digits -n 1000 --draw --npy draws.npy",
        ],
    )
    command.add_argument("path", metavar="RUN", type=Path, help="a run folder or a model file")
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
    command.add_argument("--draw", action="store_true", help="draws of x instead of the means of p(x|z)")
    command.add_argument("--seed", type=whole(0), default=0, help="default 0")
    _add_device(command)


def _add_show(commands: Any) -> None:
    command = _command(
        commands,
        "show",
        "show",
        "Show a run or a recipe: its settings, its parameters by part, its last metrics.",
        ["memgen show mnist-mem-vae", "memgen show runs/digits --json"],
    )
    command.add_argument(
        "what", metavar="RUN|RECIPE", help="a run folder, a recipe's name, a TOML file or a model file"
    )


def _add_recipes(commands: Any) -> None:
    _command(commands, "recipes", "recipes", "List the recipes that ship with memgen.", ["memgen recipes"])


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
    _command(actions, "list", "data_list", "List the data sets and where their files are.", examples[:1])
    fetch = _command(actions, "fetch", "data_fetch", "Bring a data set into the cache.", examples[1:3])
    fetch.add_argument("name", help="name of a data set (memgen data list)")
    fetch.add_argument("--from", dest="origin", type=Path, metavar="FOLDER", help="copy the files from there")
    check = _command(actions, "check", "data_check", "Read a data set and check its content.", examples[3:])
    check.add_argument("name", help="name of a data set (memgen data list)")


def _add_demo(commands: Any) -> None:
    command = _command(
        commands,
        "demo",
        "demo",
        "Train a VAE and a MEM-VAE on small digits, score them, and draw samples of both.",
        ["memgen demo", "memgen demo --out demo"],
    )
    command.add_argument(
        "--out", type=Path, default=Path("demo"), metavar="FOLDER", help="for models and pictures (default demo)"
    )
    command.add_argument("--epochs", type=whole(1), help="instead of the recipes' own")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command; returns its exit code."""
    options = parse(arguments)
    warnings.showwarning = _show_warning
    try:
        from memgen import commands

        result: dict[str, Any] = getattr(commands, options.run)(options)
        if options.json:
            print(json.dumps(result, allow_nan=False))
        sys.stdout.flush()
    except MemgenError as error:
        from memgen.train import NonFiniteError

        print(f"{options.own.prog}: {error}", file=sys.stderr)
        return FAILED if isinstance(error, NonFiniteError) else BAD_INPUT
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
