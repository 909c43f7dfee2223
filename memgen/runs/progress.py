"""Progress of long work on stderr: a bar on a terminal, elsewhere a plain line every few seconds."""

from __future__ import annotations

import os
import sys
import time
from types import TracebackType

LINE_EVERY = 10.0
"""Seconds between plain lines."""


class Progress:
    """`with Progress("training", total, "step") as progress: progress.to(done, "bound -90.1")`"""

    def __init__(self, what: str, total: int, unit: str, initial: int = 0, *, brief: bool = False) -> None:
        """`brief`: no plain line about work that ends before the first one is due."""
        self.what, self.total, self.unit = what, total, unit
        self.started = self.spoken = time.monotonic()
        self.reported = -1
        self.brief = brief
        self.bar = None
        if sys.stderr.isatty():
            from tqdm import tqdm

            # A terminal that does not know its width says 0.
            width = None if os.get_terminal_size(sys.stderr.fileno()).columns else 80
            layout = "{desc}: {percentage:3.0f}%|{bar}| {n_fmt}/{total_fmt} [{elapsed}<{remaining}{postfix}]"
            self.bar = tqdm(
                desc=what,
                total=total or None,
                initial=initial,
                unit=unit,
                unit_scale=unit == "byte",
                file=sys.stderr,
                ncols=width,
                dynamic_ncols=width is None,
                bar_format=layout if total else None,
            )

    def __enter__(self) -> Progress:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self.bar is not None:
            self.bar.close()

    def to(self, done: int, note: str = "", total: int | None = None) -> None:
        """Show how many units are done."""
        if total is not None:
            self.total = total
        if self.bar is not None:
            self.bar.total = self.total or None
            self.bar.set_postfix_str(note, refresh=False)
            self.bar.update(done - self.bar.n)
        elif done != self.reported and (time.monotonic() - self.spoken >= LINE_EVERY or self._ends(done)):
            self.spoken, self.reported = time.monotonic(), done
            of = f"/{self.total}" if self.total else ""
            seconds = self.spoken - self.started
            print(f"{self.what}: {done}{of} {self.unit}s, {seconds:.0f} s  {note}".rstrip(), file=sys.stderr)

    def _ends(self, done: int) -> bool:
        return done == self.total and not (self.brief and self.reported < 0)
