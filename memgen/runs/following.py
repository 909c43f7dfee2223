"""What the ranks do that do not write: they take the state from rank 0 and go the same steps.

Only rank 0 reads and writes the run folder, so the others need not reach it.
"""

from __future__ import annotations

import json

from memgen.recipes import document
from memgen.runs.ranks import neighbours
from memgen.runs.signals import Signals, Stopped
from memgen.training.distributed import Ranks
from memgen.training.fit import stages
from memgen.training.prepare import Prepared
from memgen.training.state import State, begin
from memgen.training.trial import try_out


def send(ranks: Ranks, state: State, finished: bool) -> None:
    """Give the other ranks the state of rank 0. `finished`: whether there is nothing to do."""
    ranks.words(json.dumps({"stage": state.stage, "epoch": state.epoch, "step": state.step, "finished": finished}))
    ranks.tensors(state.tensors())


def follow(ready: Prepared, ranks: Ranks, until: str | None, device: str) -> None:
    """Train together with rank 0, to the end or up to the stage `until`."""
    with Signals(ranks=ranks) as signals:
        ready = ready.on(device)
        state, finished = receive(ready, ranks)
        if finished:
            return
        try_out(ready, state, neighbours())
        names = [stage.name for stage in ready.recipe.stages]
        last = len(names) if until is None else document.position(until, names) + 1
        for _ in stages(ready, state, until=last, tick=lambda state, steps: _obey(signals)):
            _obey(signals)


def receive(ready: Prepared, ranks: Ranks) -> tuple[State, bool]:
    """The state that rank 0 gives by `send`, and whether there is nothing to do."""
    counts, tensors = json.loads(ranks.words()), ranks.tensors()
    state = begin(ready.model, ready.recipe, stage=counts["stage"], ranks=ranks)
    state.restore(tensors)
    state.epoch, state.step = counts["epoch"], counts["step"]
    return state, counts["finished"]


def _obey(signals: Signals) -> None:
    if signals.stop():
        raise Stopped("stopped")
