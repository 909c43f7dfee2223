"""`python -m tests.campaign`: bad files and kills until the time is up; a finding becomes a test, and fails the run."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.corpus import Corpus, corpus
from tests.campaign.inputs import Finding, Tally, run_inputs
from tests.campaign.kills import Kills, Victim, run_kills, victims
from tests.campaign.page import rewrite

FOUND = Path(__file__).parent / "found"
"""Files that once went wrong; tests/test_campaign.py reads every one."""
LEAST_INPUTS, LEAST_KILLS = 10_000, 200
INPUTS, KILLS = 1000, 20
"""Of a round."""


@dataclass
class Campaign:
    """What came of it so far."""

    seed: int
    started: float = field(default_factory=time.monotonic)
    tally: Tally = field(default_factory=Tally)
    kills: Kills = field(default_factory=Kills)

    @property
    def minutes(self) -> float:
        return (time.monotonic() - self.started) / 60

    def is_over(self, minutes: float) -> bool:
        """When the time is up, but not before the least that a campaign is."""
        enough = self.tally.inputs >= LEAST_INPUTS and self.kills.kills.total() >= LEAST_KILLS
        return enough and self.minutes >= minutes

    def one_round(self, good: Corpus, targets: list[Victim], base: Path) -> None:
        done, found = self.tally.inputs, len(self.tally.findings)
        run_inputs(good, base, base / "scratch", self.seed, range(done, done + INPUTS), self.tally)
        for finding in self.tally.findings[found:]:
            print(f"FOUND {keep(finding, FOUND)}", file=sys.stderr, flush=True)
        found = len(self.kills.damages)
        run_kills(targets, KILLS, self.kills)
        for damage in self.kills.damages[found:]:
            print(f"FOUND {damage}", file=sys.stderr, flush=True)

    @property
    def line(self) -> str:
        found = len(self.tally.findings) + len(self.kills.damages)
        return (
            f"{self.minutes:.0f} min: {self.tally.inputs:,} inputs, {self.kills.kills.total():,} kills, "
            f"{self.kills.ends.total():,} ends compared, {found} findings"
        )


def keep(finding: Finding, folder: Path) -> str:
    """The file, as small as it became, where the tests read it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / finding.name).write_bytes(finding.content)
    return f"{folder / finding.name}: {finding.outcome.verdict}\n{finding.outcome.detail}"


def carry_out(campaign: Campaign, minutes: float, page: Path | None) -> None:
    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        base = Path(name)
        (base / "scratch").mkdir()
        good, targets = corpus(base), victims(base / "victims", campaign.seed)
        while not campaign.is_over(minutes):
            campaign.one_round(good, targets, base)
            print(campaign.line, flush=True)
            if page is not None:
                rewrite(page, campaign.tally, campaign.kills, campaign.seed, campaign.minutes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.25, help="how long (default 0.25)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default 0)")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="put the figures into this page")
    options = parser.parse_args()
    campaign = Campaign(options.seed)
    carry_out(campaign, 60 * options.hours, options.page)
    return 1 if campaign.tally.findings or campaign.kills.damages else 0


if __name__ == "__main__":
    sys.exit(main())
