"""The figures of a campaign, for docs/robustness.md."""

from __future__ import annotations

import platform
import time
from pathlib import Path

import memgen
from memgen.data.output import write_atomically
from tests.campaign.inputs import Tally
from tests.campaign.kills import Kills

LEAST_INPUTS, LEAST_KILLS = 10_000, 200
"""Of a whole campaign."""
BEGIN, END = "<!-- figures: begin -->\n", "<!-- figures: end -->\n"


def figures(tally: Tally, kills: Kills, seed: int, minutes: float) -> str:
    """What happened, as two tables."""
    found = len(tally.findings) + len(kills.damages)
    lines = [
        f"{time.strftime('%d %B %Y', time.gmtime())}, memgen {memgen.__version__}, Python {platform.python_version()}, "
        f"seed {seed}, {minutes:.0f} minutes: {tally.inputs:,} inputs, {kills.kills.total():,} kills, "
        f"{found} findings.",
        *unfinished(tally, kills),
        "",
        "| file | inputs | accepted | refused in one line | findings |",
        "|---|---|---|---|---|",
    ]
    for kind, counts in sorted(tally.verdicts.items()):
        lines.append(
            f"| {kind} | {counts.total():,} | {counts['accepted']:,} | {counts['refused']:,} | {counts['found']:,} |"
        )
    lines += ["", "| command | kills | ends compared and the same |", "|---|---|---|"]
    lines += [f"| {name} | {n:,} | {kills.ends[name]:,} |" for name, n in sorted(kills.kills.items())]
    lines += ["", f"Kills that left a half-written file under the name that only such files have: {kills.in_write:,}."]
    return "\n".join(lines) + "\n"


def unfinished(tally: Tally, kills: Kills) -> list[str]:
    """A sentence about a campaign that was stopped before its end."""
    if tally.inputs >= LEAST_INPUTS and kills.kills.total() >= LEAST_KILLS:
        return []
    return [f"It was stopped before it had {LEAST_INPUTS:,} inputs and {LEAST_KILLS} kills."]


def rewrite(page: Path, tally: Tally, kills: Kills, seed: int, minutes: float) -> None:
    """The page, with the figures between its two marks replaced."""
    before, _, rest = page.read_text("utf-8").partition(BEGIN)
    _, _, after = rest.partition(END)
    text = before + BEGIN + figures(tally, kills, seed, minutes) + END + after
    write_atomically(page, text.encode())
