"""The figures of a campaign in a file, from which it can go on."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import memgen
from memgen.data.output import write_atomically
from memgen.errors import MemgenError
from tests.campaign.inputs import Finding, Tally
from tests.campaign.kills import Kills
from tests.campaign.worker import Outcome


@dataclass
class Record:
    """The results of a campaign so far."""

    seed: int
    tally: Tally = field(default_factory=Tally)
    kills: Kills = field(default_factory=Kills)
    minutes: float = 0.0
    """Of the sessions before this one."""

    @property
    def found(self) -> int:
        return len(self.tally.findings) + len(self.kills.damages)


def write_record(path: Path, record: Record, minutes: float) -> None:
    """All figures; of a finding its kind and its verdict, since its file is in found/."""
    about = {
        "memgen": memgen.__version__,
        "seed": record.seed,
        "minutes": minutes,
        "verdicts": record.tally.verdicts,
        "findings": [[finding.kind, finding.outcome.verdict] for finding in record.tally.findings],
        "kills": vars(record.kills),
    }
    write_atomically(path, (json.dumps(about, indent=1) + "\n").encode())


def read_record(path: Path) -> Record:
    about = json.loads(path.read_text())
    if about["memgen"] != memgen.__version__:
        raise MemgenError(f"{path} has the figures of memgen {about['memgen']}; move it away")
    findings = [Finding(kind, b"", Outcome(verdict)) for kind, verdict in about["findings"]]
    tally = Tally({kind: Counter(counts) for kind, counts in about["verdicts"].items()}, findings)
    kills = about["kills"]
    counts = Counter(kills["kills"]), Counter(kills["ends"])
    return Record(about["seed"], tally, Kills(*counts, kills["in_write"], kills["damages"]), about["minutes"])
