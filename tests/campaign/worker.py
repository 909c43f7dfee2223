"""Reads one file after the other in a process of its own, with little memory and time, and says how each one went."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import shutil
import signal
import traceback
import warnings
from collections.abc import Callable
from multiprocessing.connection import Connection
from pathlib import Path
from typing import NamedTuple

import torch

from tests.campaign.corpus import SHARD

MEMORY = 2 << 30
"""Bytes of address space in all, the program and its libraries included."""
SECONDS = 20
"""Of computing for one input; more ends the process."""
LONGEST_LINE = 4000


class Outcome(NamedTuple):
    """How it went: "accepted", "refused", or a finding, which is anything else."""

    verdict: str
    detail: str = ""

    @property
    def is_finding(self) -> bool:
        return self.verdict not in ("accepted", "refused")


def tables(path: Path, base: Path) -> None:
    """To train on; to impute in, with the schema that was seen and without; and written back."""
    from memgen.data.incomplete import read_incomplete
    from memgen.data.own import read_own

    output = path.with_name("out" + path.suffix)
    columns = read_own(path).columns
    if columns is not None:
        data = read_incomplete(path, len(columns), (), 255, empty=True, schema=columns)
        data.write(output, data.x.nan_to_num(0.0))


def rows(path: Path, base: Path) -> None:
    """To train on."""
    from memgen.data.own import read_own

    read_own(path)


def stored(path: Path, base: Path) -> None:
    """Rows that are read while they are used."""
    from memgen.core.batch import pieces
    from memgen.data.dataset import SPLITS
    from memgen.data.own import read_own

    data = read_own(path, stream="yes")
    for split in SPLITS:
        rows = data.split(split)
        for piece in pieces(rows):
            rows.rows(piece)


def pictures(path: Path, base: Path) -> None:
    from memgen.data.incomplete import read_images
    from memgen.data.own import read_own

    folder = path.parent / "images"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    for i in range(10):
        os.link(path, folder / f"{i}{path.suffix}")
    read_own(folder, size=(8, 8))
    read_images(folder, 192, (8, 8, 3), 255)


def idx(path: Path, base: Path) -> None:
    from memgen.data import source

    folder = path.parent / "mnist"
    folder.mkdir(exist_ok=True)
    shutil.copy(path, folder / "train-images-idx3-ubyte.gz")
    source("mnist").check(folder)


def models(path: Path, base: Path) -> None:
    from memgen.runs.run import load

    load(path)


def estimators(path: Path, base: Path) -> None:
    from memgen.estimators import MemImputer

    MemImputer.load(path)


def copied_run(path: Path, base: Path) -> Path:
    """The run of the campaign, beside the input."""
    run = path.parent / "run"
    shutil.rmtree(run, ignore_errors=True)
    shutil.copytree(base / "run", run)
    return run


def checkpoints(path: Path, base: Path) -> None:
    run = copied_run(path, base)
    (run / "metrics.jsonl").write_bytes((base / "run" / "metrics.jsonl").read_bytes())
    shutil.copy(path, run / "checkpoint.safetensors")
    command("train", "--resume", "--out", str(run))


def shards(path: Path, base: Path) -> None:
    """Merged with the other part, which is good."""
    run = copied_run(path, base)
    (file,) = (run / "shards").glob("*/shard-1-of-2.safetensors")
    shutil.copy(path, file)
    name, *options = SHARD
    command("merge", name, str(run), *options)


def recipes(path: Path, base: Path) -> None:
    command("show", str(path))


def command(*arguments: str) -> None:
    """The command line in this process; more than one line beside an exit code of 2 is an error."""
    from memgen.cli.main import main
    from memgen.errors import MemgenError

    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        code = main(list(arguments))
    lines = [line for line in said.getvalue().splitlines() if not line.startswith("memgen: warning:")]
    if code not in (0, 1, 2):
        raise RuntimeError(f"exit code {code}: {said.getvalue()[-2000:]}")
    if code:
        raise MemgenError("\n".join(lines))


READERS: dict[str, Callable[[Path, Path], None]] = {
    **dict.fromkeys(("csv", "tsv", "parquet", "npy", "npz"), tables),
    **dict.fromkeys(("png", "tiff"), pictures),
    **dict.fromkeys(("feather", "images"), rows),
    "stored": stored,
    "idx": idx,
    "toml": recipes,
    "model": models,
    "checkpoint": checkpoints,
    "estimator": estimators,
    "shard": shards,
}
"""Kind of file -> what reads it; `base` is the folder with the run that the campaign has trained."""


def attempt(kind: str, path: Path, base: Path) -> Outcome:
    """Read one file; all but success and one line of MemgenError is a finding."""
    from memgen.errors import MemgenError

    try:
        READERS[kind](path, base)
    except MemgenError as error:
        text = str(error)
        if "MemoryError" in text or "out of memory" in text:
            return Outcome("memory", text)
        if "\n" in text or len(text) > LONGEST_LINE:
            return Outcome("not one line", text[:LONGEST_LINE])
        return Outcome("refused", text)
    except MemoryError:
        return Outcome("memory", traceback.format_exc())
    except Exception as error:
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{type(error).__name__} at {Path(place.filename).name}:{place.lineno}"
        return Outcome(where, traceback.format_exc())
    return Outcome("accepted")


def work(connection: Connection, base: str) -> None:
    """Until the other end closes: a kind and a path come in, an outcome goes out."""
    os.setsid()  # Ctrl-C in the terminal is for the campaign alone, which lets its round end
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY, MEMORY))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    os.dup2(os.open(os.devnull, os.O_WRONLY), 2)  # where libraries in C print of their own accord
    with contextlib.suppress(EOFError):
        while True:
            kind, path = connection.recv()
            signal.setitimer(signal.ITIMER_PROF, SECONDS)  # of computing; SIGPROF ends the process
            outcome = attempt(kind, Path(path), Path(base))
            signal.setitimer(signal.ITIMER_PROF, 0)
            connection.send(outcome)
