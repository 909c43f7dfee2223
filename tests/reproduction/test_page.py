"""The page and the README say what the result files say."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

import reproduction.__main__ as reproduction
from reproduction import ledger
from reproduction.job import read_json, read_result
from reproduction.mismatches import mismatches
from reproduction.overview import DATA, MARK, overview, verdict
from reproduction.page import page
from reproduction.pairs import over, valid
from reproduction.rows import FREY, MNIST, OCR, ROWS
from reproduction.summary import summary
from reproduction.sweep import recipes

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"


def results() -> dict[str, dict[str, Any]]:
    return {name: found for name in ROWS if (found := read_result(RESULTS / f"{name}.json")) is not None}


def cells(text: str) -> list[list[str]]:
    """The rows of a table, without its head."""
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in text.splitlines()[2:]]


def test_the_page_is_current() -> None:
    assert (RESULTS / "REPRODUCTION.md").read_text("utf-8") == page(RESULTS)


def test_the_page_opens_with_one_table_of_all_rows() -> None:
    text = page(RESULTS)
    table = text[text.index("|") :].partition("\n\n")[0]
    found = cells(table)
    assert text.index("|") < 400
    assert [(data, model) for data, model, *_ in found] == [(DATA[row.table], row.model) for row in ROWS.values()]
    for row, (_, _, paper, ours, difference, said) in zip(ROWS.values(), found, strict=True):
        own = results().get(row.name)
        assert float(paper) == row.paper
        assert (own is None) == (said == "not done") == (ours == "")
        if own is not None:
            value = float(ours.partition(" ")[0])
            assert value == pytest.approx(row.paper + float(difference), abs=1.01 if row.table == FREY else 0.011)
            assert said == verdict(own)


def own(difference: float, table: str = MNIST, gain: float | None = None) -> dict[str, Any]:
    more = {} if gain is None else {"100000": {"gain": gain}}
    return {"table": table, "difference": difference, "difference_standard_error": 20.0, "more": more}


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (own(0.09), "level with the paper"),
        (own(-0.09), "level with the paper"),
        (own(0.11), "better"),
        (own(-0.11), "below"),
        (own(-0.15, OCR, gain=0.1), "level with the paper"),  # the paper had more samples
        (own(-15, FREY), "level with the paper"),  # on other faces
        (own(-25, FREY), "below"),
    ],
)
def test_verdicts(result: dict[str, Any], expected: str) -> None:
    assert verdict(result) == expected


def test_numbers_of_extended_trainings_are_marked() -> None:
    extended = ledger.marks(RESULTS)
    marked = [row[1] for row in cells(overview(results(), extended)) if MARK in row[3]]
    names = [name for name, found in results().items() if found["weights_sha256"] in extended]
    assert marked == [ROWS[name].model for name in names]
    assert {"mnist-mem-vae", "ocr-iwae-50", "ocr-mem-iwae-50"} <= set(names)
    assert MARK not in overview(results(), {})
    assert summary(RESULTS).count(MARK) == len(set(names) & {"mnist-vae", "mnist-mem-vae", *GROUP})


GROUP = [name for name in ROWS if name.startswith("ocr")]


def test_every_number_that_falls_short_has_one_sentence() -> None:
    swept = read_json(RESULTS / "slots.json")
    assert swept is None or swept["recipe_sha256"] == recipes()
    remarks = read_json(RESULTS / "remarks.json") or {}
    assert mismatches(results(), swept, RESULTS).keys() == remarks.keys()
    for key, remark in remarks.items():
        assert len(re.findall(r"\.(?= |$)", remark)) == 1, key


def test_a_row_within_the_tolerance_is_no_mismatch(tmp_path: Path) -> None:
    folder = tmp_path / "results"
    shutil.copytree(RESULTS, folder, ignore=shutil.ignore_patterns("examples", "figures"))
    found = json.loads((folder / "mnist-vae.json").read_text())
    for difference, missed in ((-0.09, False), (-0.11, True)):
        named = mismatches({"mnist-vae": found | {"difference": difference}}, None, folder)
        assert ("mnist-vae" in named) == missed


def test_the_readme_has_the_numbers_of_the_results() -> None:
    readme = (ROOT / "README.md").read_text("utf-8")
    assert summary(RESULTS) in readme
    plain = " ".join(readme.split())
    for pair, words in {
        (
            "mnist-mem-vae",
            "mnist-vae-530",
        ): "the MEM-VAE is {:.2f} ± {:.2f} nats ahead of such a VAE (one training of each)",
        ("mnist-vae-lre", "mnist-vae"): "it changes a VAE by {:.2f} ± {:.2f} (one training of each)",
    }.items():
        (entry,) = valid(RESULTS, pair)
        assert words.format(entry["mean"], entry["standard_error"]) in plain
    faces = valid(RESULTS, ("frey-mem-vae-b100", "frey-vae-b100"))
    mean = over(faces, faces[0]["schedule"])
    assert f"the gain is {mean['mean']:+.0f} ± {mean['standard_error']:.0f} nats over five splits" in plain
    pairs = valid(RESULTS, ("mnist-mem-vae", "mnist-vae"))
    schedule = next(one["schedule"] for one in pairs if one["seed"] == 1)
    seeds, mean = [one["mean"] for one in pairs if one["schedule"] == schedule], over(pairs, schedule)
    assert f"a gain of {seeds[1]:+.2f}, the first {seeds[0]:+.2f}" in plain
    assert f"{mean['mean']:+.2f} ± {mean['standard_error']:.2f}" in plain


def test_the_status_shows_no_error_of_the_difference(capsys: pytest.CaptureFixture[str]) -> None:
    assert reproduction.main(["--status", "mnist-vae", "--results", str(RESULTS)]) == 0
    found = results()["mnist-vae"]
    text = capsys.readouterr()
    line = next(line for line in (text.out + text.err).splitlines() if line.startswith("mnist-vae"))
    assert f"{found['difference']:+.2f}" in line
    assert line.count("±") == 1
