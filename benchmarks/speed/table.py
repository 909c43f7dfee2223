"""Records as a table for people."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.speed.record import Record


def table(records: Sequence[Record]) -> str:
    """One line per record of one section; columns without any value are left out. "against" is how
    many times faster a row is than another.

    >>> from benchmarks.speed.clock import Spread
    >>> print(table([Record("steps", "memgen", {"K": 5}, "step", Spread(0.02, 0.01, 0.03), limit=0.005)]))
    steps, time per step
    name    K    median    lowest   highest  per second    limit  of the limit  at best
    memgen  5  20.00 ms  10.00 ms  30.00 ms       50.00  5.00 ms           25%      50%
    """
    lines = [_cells(record) for record in records]
    names = list(dict.fromkeys(name for line in lines for name in line))
    shown = [name for name in names if any(line.get(name) for line in lines)]
    rows = [shown, *([line.get(name, "") for name in shown] for line in lines)]
    widths = [max(len(row[i]) for row in rows) for i in range(len(shown))]
    left = ("name", "note", "recipe", "grows")
    text = [
        "  ".join(
            cell.ljust(width) if name in left else cell.rjust(width)
            for name, cell, width in zip(shown, row, widths, strict=True)
        ).rstrip()
        for row in rows
    ]
    kinds = " or ".join(dict.fromkeys(record.per for record in records))
    return "\n".join([f"{records[0].section}, time per {kinds}", *text])


def _cells(record: Record) -> dict[str, str]:
    """Column -> text."""
    settings = {name: f"{value:,}" if isinstance(value, int) else str(value) for name, value in record.settings.items()}
    median, low, high = record.seconds or (None, None, None)
    faster = {f"against {name}": f"{ratio:.2f} x" for name, ratio in record.faster_than.items()}
    return {
        "name": record.name,
        **settings,
        "median": duration(median),
        "lowest": duration(low if low != high else None),
        "highest": duration(high if low != high else None),
        "per second": "" if median is None or record.per == "command" else f"{1 / median:,.2f}",
        "limit": duration(record.limit),
        "of the limit": "" if record.fraction is None else f"{record.fraction:.0%}",
        "at best": "" if record.best_fraction is None or low == high else f"{record.best_fraction:.0%}",
        "in its round": "" if record.paired is None else f"{record.paired:.0%}",
        "GFLOP/s": "" if record.gigaflops is None else f"{record.gigaflops:.1f}",
        "peak memory": "" if record.peak_bytes is None else f"{record.peak_bytes / 1e6:,.0f} MB",
        **faster,
        "note": record.note,
    }


def duration(seconds: float | None) -> str:
    """
    >>> duration(2.5), duration(0.0025), duration(2.5e-6)
    ('2.50 s', '2.50 ms', '2.5 us')
    """
    if seconds is None:
        return ""
    if seconds >= 1:
        return f"{seconds:.2f} s"
    return f"{1e3 * seconds:.2f} ms" if seconds >= 1e-3 else f"{1e6 * seconds:.1f} us"
