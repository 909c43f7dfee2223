"""One training session in a run folder: from its start or last checkpoint to its end or an interruption."""

from __future__ import annotations

import shlex
import signal
import sys
import time
import warnings
from contextlib import closing
from types import FrameType, TracebackType
from typing import Any

import torch

from memgen.accelerate.library import library
from memgen.core.model import DGM
from memgen.data import Dataset
from memgen.data.form import Form
from memgen.errors import MemgenError
from memgen.progress import Progress
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs.run import CHECKPOINT, Run, Saved, warm_start
from memgen.training.fit import (
    Epoch,
    NonFiniteError,
    State,
    adapt,
    as_read_by,
    begin,
    check_compilable,
    check_finite,
    collect_statistics,
    fit,
    steps_per_epoch,
    training_rows,
)

COMPILED = "compiled"
"""The path of a run whose loss torch.compile has made."""


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, taken at the end of a step."""


def prepared(recipe: Recipe, data: Dataset, form: Form, start: Saved | None = None, compiled: bool = False) -> DGM:
    """The model before its first step, in which a checkpoint replaces everything. The recipe is checked against the
    data, before a folder is made: what fails here leaves nothing behind.
    """
    model = build(recipe, data.train.shape[1], form.kinds)
    training_rows(model, as_read_by(model, data), recipe)
    steps_per_epoch(data, recipe)
    if compiled:
        check_compilable(model, recipe)
    adapt(model, data, recipe)
    if start is not None:
        warm_start(model, start, recipe)
    return model


class Session:
    """`with Session(run, model, data, device, seconds) as session: session.train()`

    Inside, Ctrl-C and SIGTERM are noted and taken at the end of the current step, when the state is whole; a second
    Ctrl-C stops at once, with what the last checkpoint holds.
    """

    def __init__(
        self,
        run: Run,
        model: DGM,
        data: Dataset,
        device: str,
        checkpoint_every: int,
        compiled: bool = False,
    ) -> None:
        self.run, self.checkpoint_every = run, checkpoint_every
        checkpoint = run.checkpoint()
        self.execution = choose_execution(device, None if checkpoint is None else checkpoint.execution, compiled)
        model = model.to(self.execution["device"])
        self.data = as_read_by(model, data)
        self.state = begin(model, run.recipe, self.execution["path"] == COMPILED)
        run.restore(self.state, checkpoint)
        self.stop = False
        self.note = ""
        self.saved_at = time.monotonic()
        self.handlers: dict[int, Any] = {}

    def __enter__(self) -> Session:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.stop:
            raise KeyboardInterrupt("stopped at once; the last checkpoint is whole: " + self._go_on())
        print("\nstopping: the state is being saved", file=sys.stderr)
        self.stop = True

    def _go_on(self) -> str:
        return f"go on with: memgen train --resume --out {shlex.quote(str(self.run.folder))}"

    def train(self, tensorboard: bool = False) -> list[dict[str, Any]]:
        """Train to the end; returns the metrics of all epochs."""
        run, state, epochs = self.run, self.state, self.run.recipe.training.epochs
        if state.epoch == epochs:
            if not run.weights_are_whole():  # lost or damaged since; the checkpoint has all that they are made of
                self._save_result()
            return run.metrics()
        if not (run.folder / CHECKPOINT).exists():
            run.save_checkpoint(state, self.execution)
        writer = _Writer(run, state) if tensorboard else None
        steps = steps_per_epoch(self.data, run.recipe)
        with Progress("training", epochs * steps, "step", state.epoch * steps + state.step) as progress:

            def tick(state: State, steps: int) -> None:
                progress.to(state.epoch * steps + state.step, f"epoch {state.epoch + 1}/{epochs}{self.note}")
                if self.stop:
                    self._interrupt(state)
                if time.monotonic() - self.saved_at >= self.checkpoint_every:
                    check_finite(state)
                    self._checkpoint(state)

            try:
                with closing(fit(state.model, self.data, run.recipe, state=state, tick=tick)) as stream:
                    for epoch in stream:
                        self._finish(epoch, writer)
            except NonFiniteError as error:
                kept = f"the last good checkpoint is kept in {run.folder}; other settings need another --out"
                raise NonFiniteError(f"{error}; {kept}") from None
        if self.stop:  # it came while the last epoch was being saved
            raise Stopped(f"stopped after all of {epochs} epochs, and saved")
        return run.metrics()

    def _finish(self, epoch: Epoch, writer: _Writer | None) -> None:
        """Keep what an epoch has brought. Metrics come before the checkpoint that counts the epoch: if a kill falls
        between, they are cut back."""
        self.run.log(epoch)
        if writer is not None:
            writer.add(epoch)
        self.note = f" ({epoch.epoch}: {epoch.bound:.2f})"
        last = epoch.epoch == self.run.recipe.training.epochs
        if epoch.train_bound is not None or last:
            self.run.save_weights(self.state)
        if last or time.monotonic() - self.saved_at >= self.checkpoint_every:
            self._checkpoint(self.state)
        if self.stop and not last:
            self._interrupt(self.state)

    def _checkpoint(self, state: State) -> None:
        self.run.save_checkpoint(state, self.execution)
        self.saved_at = time.monotonic()

    def _save_result(self) -> None:
        """What there is, ready to be evaluated."""
        recipe = self.run.recipe
        rows = self.data.split(recipe.data.train_on)
        self.state.optimizer.catch_up(recipe.training.ema)
        collect_statistics(self.state.result, rows, stochastic=self.data.stochastic, seed=recipe.training.seed)
        self.run.save_weights(self.state)

    def _interrupt(self, state: State) -> None:
        check_finite(state)
        self._checkpoint(state)
        self._save_result()
        done = f"{state.epoch} of {self.run.recipe.training.epochs} epochs and {state.step} steps"
        raise Stopped(f"stopped after {done}, and saved; {self._go_on()}")


def choose_device(name: str) -> str:
    """A device that works; "auto" is a GPU if there is one."""
    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    try:
        torch.zeros(1, device=name).item()
    except (RuntimeError, AssertionError, NotImplementedError):
        raise MemgenError(f"--device {name}: there is no such device here; use cpu, or auto") from None
    return name


def choose_execution(device: str, kept: dict[str, Any] | None, compiled: bool = False) -> dict[str, Any]:
    """What else the bits of a result depend on: decided when a run starts, kept when it is resumed."""
    path = COMPILED if compiled else "plain" if library() is None else "native"
    if kept is None:
        threads, version = torch.get_num_threads(), torch.__version__
        return {"device": choose_device(device), "threads": threads, "torch": str(version), "path": path}
    if device not in ("auto", kept["device"]):
        raise MemgenError(f"this run was started on {kept['device']} and stays there; leave out --device {device}")
    choose_device(kept["device"])
    torch.set_num_threads(kept["threads"])
    if kept["torch"] != torch.__version__:
        warnings.warn(
            f"this run was started with torch {kept['torch']}, this is {torch.__version__}: its end may differ in the "
            "last bits from that of an uninterrupted run",
            stacklevel=2,
        )
    if COMPILED in (kept["path"], path):
        return kept
    if kept["path"] != path:
        warnings.warn(
            f"this run was started with {kept['path']} kernels, here are {path} ones: its end may differ in the last "
            "bits from that of an uninterrupted run",
            stacklevel=2,
        )
    return kept


class _Writer:
    """Metrics for TensorBoard, an optional extra."""

    def __init__(self, run: Run, state: State) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError:
            raise MemgenError("--tensorboard needs an extra: pip install 'memgen[tensorboard]'") from None
        self.writer = SummaryWriter(str(run.folder / "tensorboard"), purge_step=state.epoch + 1)

    def add(self, epoch: Epoch) -> None:
        for key, value in epoch._asdict().items():
            if key != "epoch" and value is not None:
                self.writer.add_scalar(key, value, epoch.epoch)
        self.writer.flush()
