"""A campaign that is stopped goes on with its figures."""

from __future__ import annotations

from pathlib import Path

import pytest

import memgen
from memgen.errors import MemgenError
from tests.campaign.__main__ import Campaign
from tests.campaign.inputs import Finding
from tests.campaign.page import LEAST_INPUTS, LEAST_KILLS, figures
from tests.campaign.record import Record, read_record, write_record
from tests.campaign.worker import Outcome


def some_record() -> Record:
    record = Record(3, minutes=2.0)
    for outcome in (Outcome("accepted"), Outcome("refused"), Outcome("too long")):
        record.tally.add("csv", outcome)
    record.tally.findings.append(Finding("csv", b"x", Outcome("too long")))
    record.kills.kills["evaluate"] += 5
    record.kills.ends["evaluate"] += 2
    record.kills.in_write += 1
    record.kills.damages.append("an end differs")
    return record


def test_the_figures_survive_a_stop(tmp_path: Path) -> None:
    record = some_record()
    write_record(tmp_path / "campaign.json", record, 4.5)
    again = read_record(tmp_path / "campaign.json")
    assert (again.tally.verdicts, again.kills) == (record.tally.verdicts, record.kills)
    assert (again.seed, again.minutes, again.found) == (3, 4.5, 2)
    assert Campaign(again).minutes >= 4.5
    assert figures(again.tally, again.kills, 3, 1.0) == figures(record.tally, record.kills, 3, 1.0)


def test_figures_of_another_version_are_not_mixed_in(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_record(tmp_path / "campaign.json", some_record(), 1.0)
    monkeypatch.setattr(memgen, "__version__", "99")
    with pytest.raises(MemgenError, match="move it away"):
        read_record(tmp_path / "campaign.json")


def test_a_campaign_says_whether_it_was_whole() -> None:
    record = some_record()
    assert "stopped before it had 10,000 inputs and 200 kills" in figures(record.tally, record.kills, 0, 1.0)
    record.tally.verdicts["csv"]["accepted"] += LEAST_INPUTS
    record.kills.kills["evaluate"] += LEAST_KILLS
    assert "stopped" not in figures(record.tally, record.kills, 0, 1.0)
    assert Campaign(record).is_over(1.0)
    assert not Campaign(record).is_over(60.0)
