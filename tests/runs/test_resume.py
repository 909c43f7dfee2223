"""Runs that are killed, interrupted or out of space: nothing is lost, and the end is the same to the bit."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import time
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

import pytest

from memgen.runs.run import CHECKPOINT, METRICS, WEIGHTS
from memgen.runs.storage import load_tensors
from tests.runs.child import child

# Children are forked from a server process that has imported torch but never used it: a start costs milliseconds.
FORK = multiprocessing.get_context("forkserver")
FORK.set_forkserver_preload(["memgen.cli", "sklearn.datasets", "torch._dynamo"])

SETTINGS = ["model.hidden=[16]", "model.latent=4", "model.slots=[5]", "training.epochs=20", "training.ema=0.9"]
SETTINGS += ["training.evaluate_every=7", "training.evaluate_rows=20", "training.batch_size=50"]


def command(folder: Path, *more: str) -> list[str]:
    settings = [part for setting in SETTINGS for part in ("--set", setting)]
    return [
        "train",
        "digits-mem-vae",
        "--set",
        "objective.local_reconstruction=[0.1]",
        *settings,
        "--out",
        str(folder),
        *more,
    ]


def start(arguments: list[str], log: Path, limit: int | None = None) -> BaseProcess:
    process = FORK.Process(target=child, args=(arguments, str(log), limit))
    process.start()
    return process


def finish(arguments: list[str], log: Path, limit: int | None = None) -> int:
    process = start(arguments, log, limit)
    process.join(120)
    assert process.exitcode is not None, "still running after two minutes"
    return process.exitcode


def metrics(folder: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (folder / METRICS).read_text().splitlines()]
    for line in lines:
        del line["seconds"]
    return lines


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that was not disturbed."""
    folder = tmp_path_factory.mktemp("reference") / "run"
    assert finish(command(folder), folder.parent / "log") == 0
    return folder


def assert_same_end(folder: Path, reference: Path) -> None:
    ours, about = load_tensors(folder / WEIGHTS)
    theirs, _ = load_tensors(reference / WEIGHTS)
    assert ours.keys() == theirs.keys()
    assert all(ours[name].equal(theirs[name]) for name in ours)
    assert about["weights"] == "averaged"
    assert metrics(folder) == metrics(reference)


def kill_at_random(arguments: list[str], log: Path, folder: Path, chance: random.Random, in_write: bool) -> bool:
    """Start a training and kill it after a random number of checkpoints, with `in_write` while it writes; False: it
    ended before.
    """
    process = start(arguments, log)
    left, last = chance.randrange(9), checkpointed(folder)
    while process.is_alive() and not (left <= 0 and (not in_write or stopped_in_write(process, folder))):
        now = checkpointed(folder)
        left, last = left - (now != last), now
        time.sleep(0.0002)
    process.kill()
    process.join()
    return process.exitcode == -signal.SIGKILL


def checkpointed(folder: Path) -> int:
    """When the last checkpoint was written; 0 where there is none."""
    try:
        return (folder / CHECKPOINT).stat().st_mtime_ns
    except FileNotFoundError:
        return 0


def is_running(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] in "RSD"
    except FileNotFoundError:
        return False


def stopped_in_write(process: BaseProcess, folder: Path) -> bool:
    """Stop a process if a file is half written, and see that it still is."""
    if not any(folder.glob("*.tmp")):
        return False
    assert process.pid is not None
    os.kill(process.pid, signal.SIGSTOP)
    while is_running(process.pid):
        time.sleep(0.0001)
    if any(folder.glob("*.tmp")):
        return True
    os.kill(process.pid, signal.SIGCONT)
    return False


def test_kills_at_random_moments_change_nothing(reference: Path, tmp_path: Path) -> None:
    """24 times SIGKILL, every second one aimed at a write; a checkpoint after every step. A run that gets to its end
    before they are used up is compared and followed by another."""
    log, chance = tmp_path / "log", random.Random(0)
    kills = in_write = runs = 0
    while kills < 24:
        folder = tmp_path / f"run-{runs}"
        arguments = command(folder, "--resume", "--checkpoint-every", "0")
        if kill_at_random(arguments, log, folder, chance, in_write=kills % 2 == 1):
            kills += 1
            in_write += any(folder.glob("*.tmp"))
        else:
            assert_same_end(folder, reference)
            runs += 1
    folder = tmp_path / f"run-{runs}"
    assert finish(command(folder, "--resume"), log) == 0
    assert_same_end(folder, reference)
    assert log.read_text().count("going on with") >= 5
    assert in_write >= 3  # a file was half written when the process died


def test_ctrl_c_saves_and_says_how_to_go_on(reference: Path, tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    process = start(command(folder, "--checkpoint-every", "0"), log)  # which takes long enough
    while process.is_alive() and not ((folder / METRICS).exists() and (folder / METRICS).read_text()):
        time.sleep(0.001)
    assert process.pid is not None
    os.kill(process.pid, signal.SIGINT)
    process.join(60)
    assert process.exitcode == 130, log.read_text()
    last = log.read_text().splitlines()[-1]
    assert f"memgen train --resume --out {folder}" in last
    assert "Traceback" not in log.read_text()
    assert (folder / WEIGHTS).exists()  # what there is can be evaluated
    assert finish(["train", "--resume", "--out", str(folder)], log) == 0
    assert_same_end(folder, reference)


def test_sigterm_is_taken_like_ctrl_c(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    process = start(command(folder), log)
    while process.is_alive() and not (folder / CHECKPOINT).exists():
        time.sleep(0.01)
    process.terminate()
    process.join(60)
    assert process.exitcode == 130
    assert ", and saved; go on with" in log.read_text()


def test_no_space_left_keeps_the_previous_checkpoint_whole(reference: Path, tmp_path: Path) -> None:
    """A file-size limit between the small first checkpoint (no moments yet) and the next: every later write fails."""
    folder, log = tmp_path / "run", tmp_path / "log"
    process = start(command(folder, "--checkpoint-every", "1000"), log)
    while process.is_alive() and not (folder / CHECKPOINT).exists():
        time.sleep(0.001)
    process.kill()
    process.join()
    first = (folder / CHECKPOINT).read_bytes()
    assert finish(command(folder, "--resume", "--checkpoint-every", "0"), log, limit=len(first) + 1000) == 2
    last = log.read_text().splitlines()[-1]
    assert "cannot write" in last
    assert "File too large" in last
    assert (folder / CHECKPOINT).read_bytes() == first
    assert not list(folder.glob("*.tmp"))
    assert finish(command(folder, "--resume"), log) == 0
    assert_same_end(folder, reference)


def test_a_second_training_in_the_same_folder_is_refused(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    process = start(command(folder, "--set", "training.epochs=2000"), log)
    while process.is_alive() and not (folder / CHECKPOINT).exists():
        time.sleep(0.01)
    assert finish(["train", "--resume", "--out", str(folder)], tmp_path / "second") == 2
    assert "another process is training" in (tmp_path / "second").read_text()
    process.kill()
    process.join()


def test_metrics_are_cut_back_to_the_checkpoint(reference: Path, tmp_path: Path) -> None:
    """A kill between an epoch's line and its checkpoint, or in the middle of a line."""
    folder, log = tmp_path / "run", tmp_path / "log"
    process = start(command(folder, "--checkpoint-every", "1000"), log)
    while process.is_alive() and not ((folder / METRICS).exists() and (folder / METRICS).read_text().count("\n") >= 3):
        time.sleep(0.01)
    process.kill()
    process.join()
    with (folder / METRICS).open("a") as file:
        file.write('{"epoch": 9, "lo')
    assert load_tensors(folder / CHECKPOINT)[1]["counts"].startswith('{"stage": 0, "epoch": 0, "step": 0')
    assert finish(["train", "--resume", "--out", str(folder)], log) == 0
    assert_same_end(folder, reference)
    shutil.rmtree(folder)


def test_a_finished_run_is_left_alone(reference: Path, tmp_path: Path) -> None:
    before = {path.name: path.read_bytes() for path in reference.iterdir() if path.name != METRICS}
    assert finish(["train", "--resume", "--out", str(reference)], tmp_path / "log") == 0
    assert {path.name: path.read_bytes() for path in reference.iterdir() if path.name != METRICS} == before
    assert "trained 20 epochs" in (tmp_path / "log").read_text()


def test_a_non_finite_loss_keeps_the_last_good_checkpoint(tmp_path: Path) -> None:
    folder, log = tmp_path / "run", tmp_path / "log"
    more = (
        "--checkpoint-every",
        "0",
        "--set",
        "training.rate=1e30",
        "--set",
        "training.clip_norm=0",
        "--set",
        "model.norm=none",
    )
    assert finish(command(folder, *more), log) == 1
    last = log.read_text().splitlines()[-1]
    assert "was not finite in epoch" in last
    assert "the last good checkpoint is kept" in last
    tensors, _ = load_tensors(folder / CHECKPOINT)
    assert all(
        value.isfinite().all() for name, value in tensors.items() if name.startswith("model.") and "norm" not in name
    )
