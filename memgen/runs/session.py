"""Training in a run folder, from the start or the last checkpoint to the end, a stage, or an interruption."""

from __future__ import annotations

import shlex
import time
import warnings
from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, cast

from memgen.core.model import DGM
from memgen.data.form import Origin
from memgen.errors import MemgenError, reason
from memgen.recipes import document
from memgen.runs.execution import COMPILED as COMPILED
from memgen.runs.execution import choose_device as choose_device
from memgen.runs.execution import choose_execution as choose_execution
from memgen.runs.following import send
from memgen.runs.modelfile import Saved, warm_start
from memgen.runs.progress import Progress
from memgen.runs.ranks import neighbours
from memgen.runs.run import CHECKPOINT, RECIPE, Checkpoint, Run
from memgen.runs.signals import Signals
from memgen.runs.signals import Stopped as Stopped
from memgen.runs.tensorboard import Writer
from memgen.training.distributed import Ranks
from memgen.training.fit import Epoch, NonFiniteError, check_finite, stages
from memgen.training.losses import check_compilable
from memgen.training.prepare import Prepared, adapt
from memgen.training.restoring import check_order, check_progress
from memgen.training.state import State, begin
from memgen.training.statistics import collect_statistics
from memgen.training.trial import try_out


@dataclass(frozen=True)
class Start:
    """The initial weights of a run, and their name."""

    saved: Saved
    name: str

    def about(self, stages: int) -> dict[str, Any]:
        """The content of start.json; `stages`: how many stages of the run the weights have completed."""
        saved = self.saved
        return {
            "name": self.name,
            "weights_sha256": saved.sha256,
            "epochs": saved.epoch,
            "seed": saved.recipe.training.seed,
            "stages": stages,
        }


@dataclass(frozen=True)
class Options:
    """Options of training that are not part of a recipe."""

    device: str = "auto"
    until: str | None = None
    """The last stage to be trained; None for all."""
    checkpoint_every: int = 120
    """Seconds."""
    compiled: bool = False
    tensorboard: bool = False
    timeout: int = 600
    """Seconds that a rank waits for the others."""


def train_in(
    folder: Path,
    ready: Prepared,
    options: Options | None = None,
    *,
    origin: Origin | None = None,
    start: Start | None = None,
    ranks: Ranks | None = None,
    begun: Callable[[Session], None] = lambda session: None,
) -> Run:
    """Train in a run folder: a new one is created, an existing one is resumed. `origin`: of the user's own data;
    `start`: the initial weights; `ranks`: the processes that train together, of which this is rank 0; `begun` is called
    before the first step."""
    recipe, options = ready.recipe, Options() if options is None else options
    document.position(options.until or recipe.stages[-1].name, [stage.name for stage in recipe.stages])
    if options.compiled:
        for index in range(len(recipe.stages)):
            check_compilable(ready.model, recipe.stage(index))
    run = Run.open(folder) if (folder / RECIPE).exists() else None
    if run is not None and (changed := run.recipe.differences(recipe)):
        raise MemgenError(f"{folder} was begun with other settings ({'; '.join(changed)}); move it away")
    first = _first_stage(run, ready, start)
    about = None if start is None else start.about(first)
    if run is None:
        run = Run.create(folder, recipe, origin, about)
    elif about is not None and not (folder / CHECKPOINT).exists():
        run.remember_start(about)
    run = run.remembering(origin)
    with run.locked(), Session(run, ready, options, first, ranks) as session:
        begun(session)
        session.train()
    return run


def _first_stage(run: Run | None, ready: Prepared, start: Start | None) -> int:
    """The index of the first stage to train. Sets the initial values of the model."""
    if run is not None and (run.folder / CHECKPOINT).exists():
        return 0  # the checkpoint knows
    adapt(ready)
    return 0 if start is None else warm_start(cast(DGM, ready.model), start.saved, ready.recipe)


class Session:
    """`with Session(run, ready, options) as session: session.train()`

    Ctrl-C and SIGTERM stop the training at the end of the current step, when the state is consistent. A second Ctrl-C
    stops at once: the last checkpoint remains.
    """

    def __init__(self, run: Run, ready: Prepared, options: Options, first: int = 0, ranks: Ranks | None = None) -> None:
        self.run, self.options, self.ranks = run, options, ranks
        checkpoint = run.checkpoint()
        if checkpoint is not None:
            self._check(checkpoint, ready)
        previous = None if checkpoint is None else checkpoint.execution
        self.execution = choose_execution(
            options.device, previous, options.compiled, 1 if ranks is None else ranks.size
        )
        self.ready = ready.on(self.execution["device"])
        stage = first if checkpoint is None else checkpoint.counts["stage"]
        foreign = run.start is not None
        self.state = begin(self.ready.model, run.recipe, self.execution["path"] == COMPILED, stage, foreign, ranks)
        run.restore(self.state, checkpoint)
        names = [entry.name for entry in run.recipe.stages]
        self.until = len(names) if options.until is None else names.index(options.until) + 1
        """The number of stages to complete."""
        self.signals = Signals(self._go_on(), ranks)
        self.note = ""
        self.saved_at = time.monotonic()
        if ranks is not None:
            send(ranks, self.state, self.finished)

    def _check(self, checkpoint: Checkpoint, ready: Prepared) -> None:
        """Refuse counts that this training cannot have reached."""
        counts, tensors = checkpoint.counts, checkpoint.tensors
        try:
            check_progress(counts, tensors, ready.sizes, [stage.training.epochs for stage in ready.recipe.stages])
            if counts["step"]:
                check_order(tensors["order"], ready.rows)
        except (RuntimeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise MemgenError(f"{self.run.folder / CHECKPOINT} is damaged: {reason(error)}") from None

    @property
    def epochs(self) -> int:
        """Finished epochs of all stages."""
        return self.run.recipe.epochs_before(self.state.stage) + self.state.epoch

    @property
    def to_do(self) -> int:
        """The number of epochs to complete."""
        return self.run.recipe.epochs_before(self.until)

    @property
    def finished(self) -> bool:
        return self.epochs >= self.to_do

    def __enter__(self) -> Session:
        self.signals.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.signals.__exit__(kind, error, trace)

    def _go_on(self) -> str:
        return f"go on with: memgen train --resume --out {shlex.quote(str(self.run.folder))}"

    def train(self) -> list[dict[str, Any]]:
        """Train to the end; returns the metrics of all epochs."""
        run = self.run
        if self.finished:
            if not run.weights_are_whole():  # lost or damaged since: they are computed from the checkpoint
                self._save_result()
            return run.metrics()
        if not (run.folder / CHECKPOINT).exists():
            run.save_checkpoint(self.state, self.execution)
        self._try_out()
        writer = Writer(run, self.epochs) if self.options.tensorboard else None
        with Progress("training", self._steps(self.until), "step", self._steps_done(self.state)) as progress:
            try:
                with closing(stages(self.ready, self.state, until=self.until, tick=self._tick(progress))) as stream:
                    for epoch, self.state in stream:
                        self._finish(epoch, writer)
            except NonFiniteError as error:
                remains = f"the last good checkpoint is kept in {run.folder}; other settings need another --out"
                raise NonFiniteError(f"{error}; {remains}") from None
        if self.signals.noted:  # it came while the last epoch was being saved
            raise Stopped(f"stopped after all of {self.to_do} epochs, and saved")
        return run.metrics()

    def _try_out(self) -> None:
        """Warn if several ranks take longer for a step than one."""
        if self.ranks is None:
            return
        trial = try_out(self.ready, self.state, neighbours())
        if not trial.pays:
            warnings.warn(f"{self.ranks.size} ranks do not pay here: {trial}", stacklevel=2)

    def _steps(self, stages: int) -> int:
        """The number of steps of the first stages."""
        pairs = zip(self.run.recipe.stages[:stages], self.ready.sizes, strict=False)
        return sum(stage.training.epochs * len(sizes) for stage, sizes in pairs)

    def _steps_done(self, state: State) -> int:
        return self._steps(state.stage) + state.epoch * len(self.ready.sizes[state.stage]) + state.step

    def _tick(self, progress: Progress) -> Callable[[State, int], None]:
        def tick(state: State, steps: int) -> None:
            self.state = state
            progress.to(self._steps_done(state), f"epoch {self.epochs + 1}/{self.to_do}{self.note}")
            if self.signals.stop():
                self._interrupt()
            if time.monotonic() - self.saved_at >= self.options.checkpoint_every:
                check_finite(state)
                self._checkpoint()

        return tick

    def _finish(self, epoch: Epoch, writer: Writer | None) -> None:
        """Save the results of an epoch. Metrics are written before the checkpoint that counts the epoch: if the process
        is killed between the two, `Run.restore` removes them."""
        self.run.log(epoch)
        if writer is not None:
            writer.add(epoch)
        self.note = f" ({epoch.epoch}: {epoch.bound:.2f})"
        stage_ends = self.state.epoch == self.run.recipe.stages[self.state.stage].training.epochs
        if epoch.train_bound is not None or stage_ends:
            self.run.save_weights(self.state)
        if stage_ends or time.monotonic() - self.saved_at >= self.options.checkpoint_every:
            self._checkpoint()
        if self.signals.stop() and not self.finished:
            self._interrupt()

    def _checkpoint(self) -> None:
        self.run.save_checkpoint(self.state, self.execution)
        self.saved_at = time.monotonic()

    def _save_result(self) -> None:
        """Save the current weights with batch-norm statistics, ready to be evaluated."""
        settings, ready = self.run.recipe.stages[self.state.stage].training, self.ready
        self.state.optimizer.catch_up(settings.ema)
        collect_statistics(self.state.result, ready.rows, stochastic=ready.data.stochastic, seed=settings.seed)
        self.run.save_weights(self.state)

    def _interrupt(self) -> None:
        check_finite(self.state)
        self._checkpoint()
        self._save_result()
        done = f"{self.epochs} of {self.to_do} epochs and {self.state.step} steps"
        raise Stopped(f"stopped after {done}, and saved; {self._go_on()}")
