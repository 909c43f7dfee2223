"""Documents are written in plain English, in lines that fit a window."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *(ROOT / folder / "NOTES.md" for folder in ("reproduction", "benchmarks")),
    *sorted((ROOT / "results").glob("*.md")),
]
GENERATED = {"REPRODUCTION.md", "LEDGER.md"}
"""Their sentences come with numbers of any length."""
PRIVATE = re.compile(
    r"written down|the way back|\bworth\b|with holes|\bno ?body\b|\bsomebody\b|\bwhoever\b|\bso many\b"
)
"""Words that only those who wrote them understand, or that leave open who or how many."""


def prose(text: str) -> list[str]:
    """The lines outside tables, blocks of code, and images with their addresses."""
    lines = re.sub(r"^```.*?^```$", "", text, flags=re.DOTALL | re.MULTILINE).splitlines()
    return [line for line in lines if not line.startswith(("|", "!["))]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_prose_is_narrow_and_plain(path: Path) -> None:
    lines = prose(path.read_text("utf-8"))
    if path.name not in GENERATED:
        assert [line for line in lines if len(line) > 120] == []
    text = " ".join(lines).lower()
    assert PRIVATE.findall(text) == []


@pytest.mark.parametrize("folder", ["memgen", "benchmarks", "reproduction"])
def test_code_is_described_in_plain_words(folder: str) -> None:
    for path in (path for ending in ("*.py", "*.c", "*.toml") for path in (ROOT / folder).rglob(ending)):
        assert PRIVATE.findall(path.read_text("utf-8").lower()) == [], path


def test_the_readme_begins_with_what_it_is_and_how_to_start() -> None:
    text = (ROOT / "README.md").read_text("utf-8")
    heads = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert heads[:3] == ["Install", "Command line", "Python"]
    assert text.index("make demo") < text.index("![") < text.index("## Command line")


def test_nothing_installs_a_package_of_that_name_from_an_index() -> None:
    """`memgen` on the Python package index is another project."""
    for path in DOCUMENTS:
        assert not re.search(r"pip install ['\"]?memgen", path.read_text("utf-8")), path
