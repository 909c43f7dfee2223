"""The standing campaign, in short: a thousand bad files and twenty kills; and all that it ever found."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.campaign.__main__ import FOUND
from tests.campaign.corpus import Corpus, corpus
from tests.campaign.inputs import Reader, Tally, attempts, read, run_inputs, smaller
from tests.campaign.kills import Kills, run_kills, victims
from tests.campaign.page import BEGIN, END, figures, rewrite
from tests.campaign.worker import SECONDS, Outcome, attempt

SEED = 7


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("campaign")
    (folder / "scratch").mkdir()
    return folder


@pytest.fixture(scope="module")
def good(base: Path) -> Corpus:
    return corpus(base)


def test_every_good_file_is_read(good: Corpus, base: Path) -> None:
    """Else the campaign would try the first line of a reader only. idx files are held to the published ones."""
    reader = Reader(base)
    for kind, contents in good.items():
        for content in contents:
            outcome = read(reader, kind, content, base / "scratch")
            assert outcome.verdict == ("refused" if kind == "idx" else "accepted"), (kind, outcome)
    reader.stop()


def test_a_thousand_bad_files_are_read_or_refused_in_one_line(good: Corpus, base: Path) -> None:
    """With 2 GB of address space, and 20 s each."""
    tally = Tally()
    run_inputs(good, base, base / "scratch", SEED, range(1000), tally)
    assert tally.inputs == 1000
    assert not tally.findings, "\n".join(f"{f.name}: {f.outcome.detail}" for f in tally.findings)
    assert all(counts["refused"] >= 20 for counts in tally.verdicts.values())
    assert sum(counts["accepted"] for counts in tally.verdicts.values()) > 100


def test_twenty_kills_lose_nothing(base: Path) -> None:
    """Of trainings, evaluations, shards, scores, imputations and reports."""
    tally, targets = Kills(), victims(base / "victims", SEED)
    run_kills(targets, 20, tally)
    assert tally.kills.total() == 20
    assert not tally.damages
    assert all(tally.ends[target.scenario.name] for target in targets)


@pytest.mark.parametrize("path", sorted(FOUND.glob("*.*")), ids=lambda path: path.name)
def test_what_was_once_found_stays_mended(path: Path, base: Path, good: Corpus, tmp_path: Path) -> None:
    reader = Reader(base)
    outcome = read(reader, path.name.split("-")[0], path.read_bytes(), tmp_path)
    reader.stop()
    assert not outcome.is_finding, outcome.detail


# ---- the campaign itself


def test_equal_seeds_make_equal_inputs(good: Corpus) -> None:
    assert list(attempts(good, 3, range(60))) == list(attempts(good, 3, range(60)))
    assert [c for _, c in attempts(good, 3, range(60))] != [c for _, c in attempts(good, 4, range(60))]


def test_a_reader_that_dies_computes_without_end_or_takes_all_memory_is_found_out(
    good: Corpus, base: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One program per fault, in place of a reader of tables."""
    monkeypatch.setattr("tests.campaign.inputs.work", faulty)
    for content, verdict in {b"die": "the process ended (3)", b"spin": "too long", b"eat": "memory"}.items():
        reader = Reader(base)
        assert read(reader, "csv", content, base / "scratch").verdict == verdict
        assert read(reader, "csv", b"well", base / "scratch").verdict == "accepted"  # it was started again
        reader.stop()


def faulty(connection: object, folder: str) -> None:
    """A worker whose reader of tables does what the file says."""
    from tests.campaign import worker

    worker.SECONDS = 1
    worker.READERS["csv"] = do_as_it_says
    worker.work(connection, folder)  # type: ignore[arg-type]


def do_as_it_says(path: Path, base: Path) -> None:
    import os

    word = path.read_text()
    if word == "die":
        os._exit(3)
    while word == "spin":
        pass
    if word == "eat":
        bytes(3 << 30)


def test_an_error_that_is_not_ours_is_a_finding(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path, base: Path) -> None:
        raise TypeError("two\nlines")

    monkeypatch.setitem(attempt.__globals__["READERS"], "csv", broken)
    outcome = attempt("csv", tmp_path / "x.csv", tmp_path)
    assert outcome.is_finding
    assert outcome.verdict.startswith("TypeError at test_campaign.py:")
    assert SECONDS == 20


def test_a_finding_shrinks_to_what_matters() -> None:
    content = random.Random(0).randbytes(500) + b"(((" + random.Random(1).randbytes(500)
    assert smaller(content, lambda c: b"(((" in c, 300) == b"((("


def test_the_page_gets_new_figures_and_keeps_its_words(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{BEGIN}old\n{END}after\n")
    tally, kills = Tally(), Kills()
    tally.add("csv", Outcome("refused"))
    kills.kills["evaluate"] += 2
    rewrite(page, tally, kills, 5, 1.0)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert "| csv | 1 | 0 | 1 | 0 |" in figures(tally, kills, 5, 1.0)
    assert "| evaluate | 2 | 0 |" in text
