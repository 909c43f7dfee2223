"""The part of the campaign with bad files: makes them, has them read, and shrinks what it finds."""

from __future__ import annotations

import hashlib
import multiprocessing
import random
import signal
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tests.campaign.corpus import ENDINGS, Corpus
from tests.campaign.mutate import mutated
from tests.campaign.worker import Outcome, work

PATIENCE = 120
"""Seconds after which a process that neither computes nor answers is given up."""
TRIES = 150
"""To shrink a finding."""
FORK = multiprocessing.get_context("forkserver")
PRELOAD = ["memgen.cli.main", "memgen.estimators", "memgen.data.incomplete", "pyarrow.parquet", "torch._dynamo"]


class Reader:
    """A process that reads files, started again whenever it dies."""

    def __init__(self, base: Path) -> None:
        FORK.set_forkserver_preload([*PRELOAD, "sklearn.datasets"])
        self.base = base
        self._start()

    def _start(self) -> None:
        self.connection, other = FORK.Pipe()
        self.process = FORK.Process(target=work, args=(other, str(self.base)), daemon=True)
        self.process.start()
        other.close()

    def read(self, kind: str, path: Path) -> Outcome:
        self.connection.send((kind, str(path)))
        try:
            if self.connection.poll(PATIENCE):
                outcome: Outcome = self.connection.recv()
                return outcome
            outcome = Outcome("does not answer")
        except EOFError:
            self.process.join()
            code = self.process.exitcode or 0
            too_long = code == -signal.SIGPROF
            outcome = Outcome("too long" if too_long else f"the process ended ({code})")
        self.stop()
        self._start()
        return outcome

    def stop(self) -> None:
        self.process.kill()
        self.process.join()
        self.connection.close()


@dataclass(frozen=True)
class Finding:
    """A file that was neither read nor refused as it ought to be."""

    kind: str
    content: bytes
    outcome: Outcome

    @property
    def name(self) -> str:
        return f"{self.kind}-{hashlib.sha256(self.content).hexdigest()[:8]}{ENDINGS[self.kind]}"


@dataclass
class Tally:
    """What came of the inputs so far."""

    verdicts: dict[str, Counter[str]] = field(default_factory=dict)
    """Kind of file -> how many were accepted, refused or found out."""
    findings: list[Finding] = field(default_factory=list)

    @property
    def inputs(self) -> int:
        return sum(sum(counts.values()) for counts in self.verdicts.values())

    def add(self, kind: str, outcome: Outcome) -> None:
        self.verdicts.setdefault(kind, Counter())["found" if outcome.is_finding else outcome.verdict] += 1


def seeded(seed: int, i: int) -> random.Random:
    return random.Random(f"{seed}/{i}")


def attempts(good: Corpus, seed: int, numbers: range) -> Iterator[tuple[str, bytes]]:
    """The inputs of these numbers, every kind in turn."""
    kinds = sorted(good)
    for i in numbers:
        kind = kinds[i % len(kinds)]
        yield kind, mutated(kind, good, seeded(seed, i))


def run_inputs(good: Corpus, base: Path, scratch: Path, seed: int, numbers: range, tally: Tally) -> None:
    """Have these inputs read; findings of a new sort are shrunk and kept."""
    reader = Reader(base)
    known = {(finding.kind, finding.outcome.verdict) for finding in tally.findings}
    for kind, content in attempts(good, seed, numbers):
        outcome = read(reader, kind, content, scratch)
        tally.add(kind, outcome)
        if outcome.is_finding and (kind, outcome.verdict) not in known:
            known.add((kind, outcome.verdict))
            tally.findings.append(shrunk(reader, Finding(kind, content, outcome), scratch))
    reader.stop()


def read(reader: Reader, kind: str, content: bytes, scratch: Path) -> Outcome:
    path = scratch / f"input{ENDINGS[kind]}"
    path.unlink(missing_ok=True)
    path.write_bytes(content)
    return reader.read(kind, path)


def shrunk(reader: Reader, finding: Finding, scratch: Path) -> Finding:
    """The smallest file found that goes wrong in the same way."""

    def same(content: bytes) -> bool:
        return read(reader, finding.kind, content, scratch).verdict == finding.outcome.verdict

    slow = finding.outcome.verdict in ("too long", "does not answer")
    return Finding(finding.kind, smaller(finding.content, same, 8 if slow else TRIES), finding.outcome)


def smaller(content: bytes, same: Callable[[bytes], bool], tries: int) -> bytes:
    """Leave out one piece after the other, of half the length at first, as long as it goes wrong in the same way.

    >>> smaller(b"abcdefgXhijkl", lambda content: b"X" in content, 100)
    b'X'
    """
    size = max(1, len(content) // 2)
    while tries > 0:
        start, before = 0, len(content)
        while start < len(content) and tries > 0:
            candidate, tries = content[:start] + content[start + size :], tries - 1
            if same(candidate):
                content = candidate
            else:
                start += size
        if size == 1 and len(content) == before:
            break
        size = max(1, size // 2)
    return content
