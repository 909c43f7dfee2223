"""A row from training to its result: nothing is done twice, lost, or replaced by others."""

from __future__ import annotations

import json
import math
import shutil
import signal
from pathlib import Path
from typing import Any

import pytest

import memgen
from memgen.data import dataset
from memgen.runs.run import WEIGHTS, Run
from memgen.runs.storage import load_tensors
from memgen.tasks.density import standard_error
from reproduction import jobs
from reproduction.__main__ import budget
from reproduction.__main__ import main as reproduce
from reproduction.job import Job, Place, read_json, read_result
from reproduction.results import chosen
from reproduction.rows import ROWS, Row
from tests.reproduction.commands import KEYS, asked, told


def test_a_row_from_training_to_the_page(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tmp_path = made
    found = read_result(tmp_path / "results" / "digits-mem-vae.json")
    assert found is not None
    assert found.keys() >= KEYS
    assert found["difference"] == pytest.approx(found["log_likelihood"] - found["paper"])
    assert (found["samples"], found["examples"], found["epochs"]) == (20, 300, 12)
    weights = tmp_path / "runs" / "digits-mem-vae" / WEIGHTS
    assert found["weights_sha256"] == load_tensors(weights)[1]["sha256"]
    # The same numbers as by hand.
    data = dataset("digits")
    scored = memgen.log_likelihood(memgen.load(weights), data.fixed("test"), samples=20)
    assert found["log_likelihood"] == pytest.approx(scored.mean, abs=1e-6)
    assert found["standard_error"] == pytest.approx(standard_error(scored.log_p), abs=1e-6)
    # A second scoring, of 40 of them: more samples are worth something on the very same examples.
    assert found["more"]["50"]["examples"] == 40
    rows_of = chosen(300, 40)
    again = memgen.log_likelihood(memgen.load(weights), data.fixed("test").rows(rows_of), samples=50)
    gain = again.log_p - scored.log_p[rows_of]
    assert found["more"]["50"]["gain"] == pytest.approx(float(gain.mean()), abs=1e-6)
    # The pair, image by image.
    pair = read_json(tmp_path / "results" / "differences" / "digits-mem-vae--digits-vae.json")
    other = memgen.log_likelihood(memgen.load(tmp_path / "runs" / "digits-vae"), data.fixed("test"), samples=20)
    assert pair is not None
    assert pair["pairs"][0]["mean"] == pytest.approx(float((scored.log_p - other.log_p).mean()), abs=1e-6)
    one = pair["pairs"][0]["analyses"]
    both = [read_json(tmp_path / "results" / f"{name}.json") or {} for name in ("digits-mem-vae", "digits-vae")]
    svm, filled = ([own["analyses"][name] for own in both] for name in ("svm", "imputation"))
    assert one["svm right"]["mean"] == pytest.approx(svm[0]["accuracy"] - svm[1]["accuracy"])
    for pattern in ("rect-4", "rand-0.6", "half"):
        for kind in ("exact", "batch"):
            errors = [own["patterns"][pattern][f"{kind}_statistics"] for own in filled]
            own = one[f"imputation {pattern} {kind}"]
            assert own["mean"] == pytest.approx(errors[0]["mse"] - errors[1]["mse"], abs=1e-9)
            # The images are the same, so that the difference is known better than by the two errors alone.
            assert 0 < own["standard_error"] < math.hypot(*(error["standard_error"] for error in errors))
    assert (tmp_path / "results" / "REPRODUCTION.md").is_file()
    for analysis in found["analyses"].values():
        for name in analysis["figures"]:
            assert (tmp_path / "results" / "figures" / name).is_file()
    # Nothing is done twice.
    before = (tmp_path / "results" / "digits-mem-vae.json").stat().st_mtime_ns, weights.stat().st_mtime_ns
    assert reproduce(asked(tmp_path, "digits-mem-vae")) == 0
    assert before == ((tmp_path / "results" / "digits-mem-vae.json").stat().st_mtime_ns, weights.stat().st_mtime_ns)
    capsys.readouterr()
    status = told(capsys, asked(tmp_path, "--status", "digits-mem-vae", "mnist-vae"))
    assert [row["state"] for row in status["rows"]] == ["done", "not begun"]


def test_another_seed_lies_beside_the_rows_own_result(small: Row, tmp_path: Path) -> None:
    assert reproduce(asked(tmp_path, "digits-vae", "--seed", "3")) == 0
    assert not (tmp_path / "results" / "digits-vae.json").exists()
    found = read_result(tmp_path / "results" / "seeds" / "digits-vae" / "digits-vae-seed3.json")
    assert found is not None
    assert found["seed"] == 3


def ring_at(monkeypatch: pytest.MonkeyPatch, epoch: int) -> None:
    """Let the clock of the budget ring when this epoch has been noted."""
    log = Run.log

    def noted(self: Run, own: Any) -> None:
        log(self, own)
        if own.epoch == epoch:
            monkeypatch.setattr(Run, "log", log)
            signal.raise_signal(signal.SIGALRM)

    monkeypatch.setattr(Run, "log", noted)


@pytest.mark.parametrize("epoch", [5, 12])
def test_a_budget_that_ends_loses_nothing(
    epoch: int, small: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by the clock in the middle of training or at its very end, nothing more is begun; the same command goes
    on to the weights of an uninterrupted training.
    """
    place = Place(tmp_path / "results", tmp_path / "runs")
    ring_at(monkeypatch, epoch)
    both = asked(tmp_path, "digits-vae", "digits-mem-vae", "--budget", "1h")
    answer = told(capsys, both)
    assert (answer["done"], answer["left"]) == ([], ["digits-vae", "digits-mem-vae"])
    assert len(Run.open(tmp_path / "runs" / "digits-vae").metrics()) == epoch
    assert not (tmp_path / "runs" / "digits-mem-vae").exists()
    assert jobs.state(Job(ROWS["digits-vae"], "paper"), place) == (
        "trained, not scored" if epoch == 12 else f"epoch {epoch} of 12"
    )
    assert reproduce(asked(tmp_path, "digits-vae")) == 0
    assert reproduce(asked(tmp_path / "again", "digits-vae")) == 0
    found = [read_result(folder / "results" / "digits-vae.json") for folder in (tmp_path, tmp_path / "again")]
    assert found[0] is not None
    assert found[1] is not None
    assert found[0]["weights_sha256"] == found[1]["weights_sha256"]
    assert found[0]["log_likelihood"] == found[1]["log_likelihood"]


def test_the_budget_rings_where_ctrl_c_is_switched_off() -> None:
    """As in a script's background, where SIGINT is ignored."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with budget(3600.0) as spent, pytest.raises(KeyboardInterrupt):
            signal.raise_signal(signal.SIGALRM)
        assert spent()
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_result_of_a_recipe_that_has_changed_is_done_again(
    small: Row, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert reproduce(asked(tmp_path, "digits-vae")) == 0
    path, place = tmp_path / "results" / "digits-vae.json", Place(tmp_path / "results", tmp_path / "runs")
    old = read_result(path)
    longer = Job(ROWS["digits-vae"], "paper").recipe.override("training.epochs=13")
    monkeypatch.setattr(Job, "recipe", property(lambda self: longer))
    job = Job(ROWS["digits-vae"], "paper")
    assert jobs.state(job, place).startswith("outdated")
    assert reproduce(asked(tmp_path, "digits-vae")) == 2
    assert "other settings (training.epochs was 12, is 13)" in capsys.readouterr().err
    (tmp_path / "runs").rename(tmp_path / "away")
    assert reproduce(asked(tmp_path, "digits-vae")) == 0
    new = read_result(path)
    assert old is not None
    assert new is not None
    assert (old["epochs"], new["epochs"]) == (12, 13)
    # What is missing of a result whose run is elsewhere does not replace the result.
    (tmp_path / "runs").rename(tmp_path / "away too")
    path.write_text(json.dumps(new | {"more": {}}))
    assert reproduce(asked(tmp_path, "digits-vae")) == 2
    assert "would replace the number" in capsys.readouterr().err


def test_a_row_that_cannot_go_on_does_not_stop_the_others(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made / "results" / "digits-mem-vae.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"more": {}}))
    shutil.rmtree(made / "runs" / "digits-mem-vae")
    assert reproduce(asked(made, "digits-mem-vae", "digits-vae")) == 2
    told_of = capsys.readouterr()
    assert "digits-mem-vae: " in told_of.err
    assert "digits-vae: done before" in told_of.out


def test_numbers_are_not_replaced_by_those_of_other_weights(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = made / "results" / "digits-vae.json"
    found = json.loads(path.read_text())
    path.write_text(json.dumps(found | {"more": {}, "weights_sha256": "f" * 64}))
    before = path.read_bytes()
    assert reproduce(asked(made, "digits-vae")) == 2
    assert "measured with other weights" in capsys.readouterr().err
    assert path.read_bytes() == before
