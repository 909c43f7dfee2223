"""The model of a step on several processes, and the document with its numbers."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path

import pytest

from benchmarks import scaling
from benchmarks.scaling import Network, Steps
from tests.test_project import parsed

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "distributed.md"
FAST, SLOW = Network(0.0, 1e30), Network(1e-3, 1e6)


def test_without_communication_only_the_fixed_part_is_not_divided() -> None:
    steps = Steps(alone=3.0, plain=10.0, half=6.0, two=7.0, rows=100, sums=17, bytes=1000)
    assert [steps.predicted(n, FAST) for n in (1, 2, 4)] == pytest.approx([10.0, 6.0, 4.0])


def test_communication_is_that_of_a_ring() -> None:
    """2(N - 1) messages, each with 1/N of the bytes."""
    steps = Steps(alone=1.0, plain=0.0, half=0.0, two=1.0, rows=100, sums=10, bytes=10**6)
    assert steps.predicted(1, SLOW) == 0
    assert steps.predicted(2, SLOW) == pytest.approx(10 * 1e-3 + 1.0)
    assert steps.predicted(4, SLOW) == pytest.approx(10 * 3e-3 + 1.5)


def test_the_document_has_the_numbers_of_the_file() -> None:
    text = DOCUMENT.read_text()
    assert scaling.written(text, json.loads((ROOT / "docs" / "scaling.json").read_text())) == text


def test_the_commands_of_the_document_are_ones_that_memgen_understands() -> None:
    """Those for several machines, too, which only a cluster can run."""
    text = re.sub(r"\\?\n +(?=-)", "", DOCUMENT.read_text())  # commands that go on in the next line
    commands = re.findall(r"(?<=-m )memgen (train [^\n'`]*)", text)
    assert len(commands) >= 7
    for command in commands:
        options = parsed(shlex.split(command))
        assert options["resume"], command


def test_a_measurement_fills_the_section(tmp_path: Path) -> None:
    steps = Steps(alone=3.0, plain=10.0, half=6.0, two=7.0, rows=100, sums=17, bytes=1000)
    machine = {"cores": 2, "load": 0.1}
    result = {
        "command": "c",
        "torch": "t",
        "machine": machine,
        "network": FAST._asdict(),
        "steps": {"K": steps._asdict()},
    }
    document, file = tmp_path / "d.md", tmp_path / "r.json"
    document.write_text(f"before\n{scaling.BEGIN}\nold\n{scaling.END}\nafter\n")
    file.write_text(json.dumps(result))
    assert scaling.main(["--read", str(file), "--docs", str(document)]) == 0
    text = document.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| K | 3,000.0 | 10,000.0 | 7,000.0 | 6,000.0 | 17 | 0.001 |" in text
