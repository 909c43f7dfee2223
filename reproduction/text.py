"""Numbers and tables as people read them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any


def number(value: float, error: float | None = None, digits: int = 2, sign: bool = False) -> str:
    text = f"{value:+.{digits}f}" if sign else f"{value:.{digits}f}"
    return text if error is None else f"{text} ± {error:.{digits}f}"


def grid(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def duration(seconds: float) -> str:
    """
    >>> duration(59.0), duration(150.0), duration(7300.0)
    ('59 s', '2.5 min', '2.0 h')
    """
    if seconds < 60:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.1f} min" if seconds < 3600 else f"{seconds / 3600:.1f} h"


def trained_for(result: dict[str, Any], how: str = "") -> tuple[str, str]:
    """Epochs and time of a training, and how it was done; and of those whose weights it began with.

    >>> trained_for({"epochs": 200, "seconds": 30.0, "before": [{"epochs": 3000, "seconds": 90.0}]}, " compiled")
    ('200 (+ 3,000 before)', '30 s compiled (+ 1.5 min before)')
    """
    epochs, seconds = f"{result['epochs']:,}", duration(result["seconds"]) + how
    if result["before"]:
        epochs += f" (+ {sum(leg['epochs'] for leg in result['before']):,} before)"
        seconds += f" (+ {duration(sum(leg['seconds'] for leg in result['before']))} before)"
    return epochs, seconds
