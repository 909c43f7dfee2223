"""`memgen report`: one page with everything inside, and which runs it compares."""

from __future__ import annotations

import re
import shutil
from html.parser import HTMLParser
from pathlib import Path

import pytest

import memgen
from memgen.cli.main import main
from memgen.cli.subjects import subject
from memgen.report.figures.curves import shared_limits
from memgen.report.gather import Gathered, names, paired_difference, to_score
from memgen.report.page import differences
from tests.command import refused, told


class Reader(HTMLParser):
    """Tags must be balanced; collects attributes."""

    VOID = frozenset({"meta", "img", "br", "hr", "link"})

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def read_page(path: Path) -> tuple[str, Reader]:
    text, reader = path.read_text(), Reader()
    reader.feed(text)
    assert reader.open == []
    return text, reader


def test_a_report_is_one_file_with_everything_inside(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["report", str(runs["vae"]), str(runs["mem"]), "-o", "r.html", "--samples", "20", "--limit", "20"]
    result = told(capsys, arguments)
    text, reader = read_page(here / "r.html")
    images = [attributes for tag, attributes in reader.tags if tag == "img"]
    assert len(images) > 20
    for attributes in images:
        assert (attributes["src"] or "").startswith("data:image/png;base64,")
        assert attributes["alt"]
    assert not re.search(r'(src|href)="(?!data:)', text)
    assert "http" not in re.sub(r'src="data:[^"]*"', "", text)
    assert len([tag for tag, _ in reader.tags if tag == "figcaption"]) == len(images)
    for words in ("Log-likelihood", "Training", "Samples", "Reconstructions", "Missing values", "Inside the memory"):
        assert f">{words}</h2>" in text
    assert "vae has no memory" in text
    assert f"{result['runs'][1]['log_likelihood']:.2f} ± {result['runs'][1]['standard_error']:.2f}" in text
    assert f"{result['differences'][0]['mean']:+.2f} ± {result['differences'][0]['standard_error']:.2f}" in text
    library = memgen.log_likelihood(memgen.load(runs["mem"]), memgen.dataset("digits").fixed("test", 20), 20)
    assert result["runs"][1]["log_likelihood"] == pytest.approx(library.mean, abs=1e-4)
    for stem in ("samples", "training", "imputation-half", "reconstructions"):
        for ending in ("png", "pdf", "csv"):
            assert (here / "r-figures" / "mem" / f"{stem}.{ending}").exists()


def test_one_run_with_an_odd_name_makes_the_same_page_again(
    runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    odd = here / 'a <b> & "c"'
    odd.symlink_to(runs["vae"])
    arguments = ["report", str(odd), "-o", "r.html", "--samples", "5", "--limit", "5"]
    told(capsys, arguments)
    before = read_page(here / "r.html")[0]
    assert "a <b>" not in before
    assert "&lt;b&gt;" in before
    told(capsys, arguments)
    assert (here / "r.html").read_text() == before


def test_a_report_takes_the_best_evaluation_that_all_runs_have_kept(runs: dict[str, Path], tmp_path: Path) -> None:
    subjects = []
    for name in ("vae", "mem"):
        shutil.copytree(runs[name], tmp_path / name)
        assert main(["evaluate", str(tmp_path / name), "--samples", "40", "--limit", "30"]) == 0
        subjects.append(subject(tmp_path / name, name, "cpu"))
    assert main(["evaluate", str(tmp_path / "mem"), "--samples", "90", "--limit", "30"]) == 0
    assert to_score(subjects, 20, 10, 0) == (40, 30)
    assert to_score(subjects[1:], 20, 10, 0) == (90, 30)
    assert to_score(subjects, 20, 31, 0) == (20, 31)
    assert to_score(subjects, 20, 10, 1) == (20, 10)


def test_runs_on_other_data_are_not_compared(runs: dict[str, Path]) -> None:
    gathered = []
    for name in ("gauss", "mem"):
        own = subject(runs[name], name, "cpu")
        scores = memgen.log_likelihood(own.saved.model, own.data.fixed("test", 4), 5)
        gathered.append(Gathered(own, scores, {}))
    assert paired_difference(*gathered) is None
    assert "not comparable" in differences(gathered)[0]
    assert "no detectable difference" in differences([gathered[1], gathered[1]])[0]
    assert names([Path("a/x"), Path("b/x")]) == ["a/x", "b/x"]
    assert len(set(names([Path("a/x"), Path("a/x")]))) == 2


def test_bad_input_to_report_is_one_line(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["mem"])
    (here / "old.html").write_text("mine")
    refused(capsys, ["report", run, "nothing", "-o", "old.html"], "no run at nothing")
    refused(capsys, ["report", run, "-o", "report.pdf"], ".html")
    refused(capsys, ["report", run, "-o", "no/report.html"], "no folder no")
    assert (here / "old.html").read_text() == "mine"
    assert [path.name for path in here.iterdir()] == ["old.html"]


def test_the_axis_of_training_curves_holds_every_line() -> None:
    """But for the first tenth of the epochs; validation rows may lie below all that the training bound goes through."""
    metrics = [{"epoch": n, "bound": -28.0 + 0.01 * n} for n in range(30)]
    metrics[0]["bound"] = -500.0
    metrics[20] |= {"train_bound": -27.5, "valid_bound": -30.2}
    limits = shared_limits([metrics])
    assert limits is not None
    assert -31.0 < limits[0] < -30.2
    assert limits[1] > -27.5
