"""How long a person waits before anything happens: whole commands in processes of their own."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.speed.clock import Action, alternate, seconds, spread
from benchmarks.speed.record import Record, Scale
from memgen.errors import MemgenError

SECTION = "startup"
TINY = ("model.hidden=[8]", "model.latent=2", "training.epochs=1", "training.batch_size=2000", "training.ema=0")
"""One step, since the batch holds all rows of the digits."""


def run(arguments: list[str]) -> None:
    """A child of this interpreter, which must succeed."""
    done = subprocess.run([sys.executable, *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise MemgenError(f"python {' '.join(arguments)} failed: {(done.stderr.strip().splitlines() or ['?'])[-1]}")


def train_once(folder: Path) -> None:
    """`memgen train` with a single step into a new run folder."""
    out = folder / str(len(list(folder.iterdir())))
    settings = [word for change in (*TINY, "training.evaluate_every=0") for word in ("--set", change)]
    run(["-m", "memgen", "train", "digits-vae", "--out", str(out), "--device", "cpu", *settings])


def startup_section(scale: Scale, tell: Callable[[str], None]) -> list[Record]:
    tell("startup")
    notes = {
        "python -c pass": "for comparison",
        "python -c 'import torch'": "for comparison",
        "memgen train": "a tiny model, one step: the whole command, from the shell to the saved run",
    }
    with TemporaryDirectory() as folder:
        actions: dict[str, Action] = {
            "python -c pass": partial(run, ["-c", "pass"]),
            "python -c 'import torch'": partial(run, ["-c", "import torch"]),
            "python -c 'import memgen'": partial(run, ["-c", "import memgen"]),
            "memgen --help": partial(run, ["-m", "memgen", "--help"]),
            "memgen train": partial(train_once, Path(folder)),
        }
        blocks = alternate({name: partial(seconds, action) for name, action in actions.items()}, scale.commands)
    return [
        Record(SECTION, name, {}, "command", spread(values), note=notes.get(name, ""))
        for name, values in blocks.items()
    ]
