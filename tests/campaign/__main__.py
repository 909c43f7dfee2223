"""`python -m tests.campaign`: bad files and kills until the time is up; a finding becomes a test, and fails the run."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.corpus import Corpus, corpus
from tests.campaign.inputs import Finding, run_inputs
from tests.campaign.kills import Victim, run_kills, victims
from tests.campaign.page import LEAST_INPUTS, LEAST_KILLS, rewrite
from tests.campaign.record import Record, read_record, write_record

FOUND = Path(__file__).parent / "found"
"""Files that once went wrong; tests/test_campaign.py reads every one."""
INPUTS, KILLS = 1000, 20
"""Of a round."""


@dataclass
class Campaign:
    """A campaign and its results so far."""

    record: Record
    started: float = field(default_factory=time.monotonic)

    @property
    def minutes(self) -> float:
        return self.record.minutes + (time.monotonic() - self.started) / 60

    def is_over(self, minutes: float) -> bool:
        """When the time is up, but not before the least that a campaign is."""
        record = self.record
        enough = record.tally.inputs >= LEAST_INPUTS and record.kills.kills.total() >= LEAST_KILLS
        return enough and self.minutes >= minutes

    def one_round(self, good: Corpus, targets: list[Victim], base: Path) -> None:
        """Inputs and kills at once: both mostly wait for the processes that they start."""
        with ThreadPoolExecutor(2) as pool:
            parts = [pool.submit(self._inputs, good, base), pool.submit(self._kills, targets)]
        for part in parts:
            part.result()

    def _inputs(self, good: Corpus, base: Path) -> None:
        tally = self.record.tally
        done, found = tally.inputs, len(tally.findings)
        run_inputs(good, base, base / "scratch", self.record.seed, range(done, done + INPUTS), tally)
        for finding in tally.findings[found:]:
            print(f"FOUND {keep(finding, FOUND)}", file=sys.stderr, flush=True)

    def _kills(self, targets: list[Victim]) -> None:
        kills = self.record.kills
        found = len(kills.damages)
        run_kills(targets, KILLS, kills)
        for damage in kills.damages[found:]:
            print(f"FOUND {damage}", file=sys.stderr, flush=True)

    @property
    def line(self) -> str:
        tally, kills = self.record.tally, self.record.kills
        return (
            f"{self.minutes:.0f} min: {tally.inputs:,} inputs, {kills.kills.total():,} kills, "
            f"{kills.ends.total():,} ends compared, {self.record.found} findings"
        )


def keep(finding: Finding, folder: Path) -> str:
    """The file, as small as it became, where the tests read it."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / finding.name).write_bytes(finding.content)
    return f"{folder / finding.name}: {finding.outcome.verdict}\n{finding.outcome.detail}"


def carry_out(campaign: Campaign, minutes: float, page: Path | None, state: Path | None) -> None:
    """Round after round. The figures are written after each of them; Ctrl-C lets the present one end."""
    record = campaign.record
    with tempfile.TemporaryDirectory(prefix="campaign-") as name:
        base = Path(name)
        (base / "scratch").mkdir()
        good, targets = corpus(base), victims(base / "victims", f"{record.seed}/{record.kills.kills.total()}")
        while not campaign.is_over(minutes):
            try:
                campaign.one_round(good, targets, base)
            finally:
                print(campaign.line, flush=True)
                if page is not None:
                    rewrite(page, record.tally, record.kills, record.seed, campaign.minutes)
                if state is not None:
                    write_record(state, record, campaign.minutes)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    parser.add_argument("--hours", type=float, default=0.25, help="how long (default 0.25)")
    parser.add_argument("--seed", type=int, default=0, help="of all that is random (default 0)")
    parser.add_argument("--page", type=Path, metavar="FILE.md", help="put the figures into this page")
    parser.add_argument("--state", type=Path, metavar="FILE.json", help="keep the figures here, and go on from them")
    options = parser.parse_args()
    record = Record(options.seed)
    if options.state is not None and options.state.exists():
        record = read_record(options.state)
        print(f"going on with seed {record.seed} from {options.state}; without that file a new campaign begins")
    campaign = Campaign(record)
    try:
        carry_out(campaign, 60 * options.hours, options.page, options.state)
    except KeyboardInterrupt:
        return 130
    if options.state is not None:
        options.state.unlink(missing_ok=True)
    return 1 if record.found else 0


if __name__ == "__main__":
    sys.exit(main())
