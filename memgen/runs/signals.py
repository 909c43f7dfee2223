"""Ctrl-C and SIGTERM during a training: noted when they come, obeyed at the end of a step."""

from __future__ import annotations

import signal
import sys
from types import FrameType, TracebackType
from typing import Any

from memgen.training.distributed import Ranks


class Stopped(KeyboardInterrupt):
    """Ctrl-C or SIGTERM, raised at the end of a step."""


class Signals:
    """`with Signals(go_on) as signals: ... if signals.stop(): ...`

    `go_on`: what a second Ctrl-C, which stops at once, tells the user. Where several ranks train together, a signal to
    one of them stops all of them after the same step.
    """

    def __init__(self, go_on: str = "", ranks: Ranks | None = None) -> None:
        self.go_on, self.ranks = go_on, ranks
        self.noted = False
        self.handlers: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self.handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, handler in self.handlers.items():
            signal.signal(number, handler)

    def stop(self) -> bool:
        """Whether to stop now. All ranks ask at the same places."""
        return self.noted if self.ranks is None else self.ranks.any(self.noted)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.noted:
            raise KeyboardInterrupt("stopped at once; the last checkpoint is whole: " + self.go_on)
        print("\nstopping: the state is being saved", file=sys.stderr)
        self.noted = True
