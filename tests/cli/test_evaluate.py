"""`memgen evaluate`: its numbers are the library's, and what is scored is kept."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

import memgen
from memgen.cli.main import main
from memgen.runs import scores as scoring
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import Likelihood, log_likelihoods
from tests.command import QUICK, copied, refused, refused_last, told


def test_evaluate_prints_its_promised_keys_and_agrees_with_the_library(
    run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    result = told(capsys, ["evaluate", str(run), "--samples", "100"])
    library = memgen.log_likelihood(memgen.load(run), memgen.dataset("digits").fixed("test"), 100)
    assert result["log_likelihood"] == pytest.approx(library.mean, abs=1e-4)
    assert result["standard_error"] == pytest.approx(library.standard_error, rel=1e-4)
    assert result["elbo"] == pytest.approx(float(library.elbo.mean()), abs=1e-4)
    assert result["effective_sample_size"] == pytest.approx(float(library.effective.mean()), rel=1e-3)
    assert (result["samples"], result["examples"]) == (100, 300)
    assert result["elbo"] < result["bounds"]["5"] < result["bounds"]["50"] < result["log_likelihood"]
    assert result["scale"] == "v/16"
    assert "RandomState(1234)" in result["binarisation"]
    assert result["seconds"] > 0


def test_evaluate_goes_on_from_what_it_has_kept(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    few = told(capsys, ["evaluate", str(run), "--samples", "60", "--limit", "50"])
    assert few["examples"] == 50
    assert main(["evaluate", str(run), "--samples", "60", "--json"]) == 0
    captured = capsys.readouterr()
    assert "48 examples were scored before" in captured.err  # whole batches of 8
    everything = json.loads(captured.out)
    assert everything["examples"] == 300
    fresh = told(capsys, ["evaluate", str(run), "--samples", "60", "--fresh"])
    assert everything["log_likelihood"] == pytest.approx(fresh["log_likelihood"], abs=1e-4)
    again = told(capsys, ["evaluate", str(run), "--samples", "60", "--limit", "50"])
    assert again["log_likelihood"] == pytest.approx(few["log_likelihood"], abs=1e-4)


def test_an_interrupted_evaluation_keeps_what_it_has_and_goes_on(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Ctrl-C arrives in the fourth batch of eight examples."""
    copy = copied(run, tmp_path)
    arguments = ["evaluate", str(copy), "--samples", "70", "--limit", "60", "--json"]

    def interrupted(*given: Any, **named: Any) -> Iterator[Likelihood]:
        for i, piece in enumerate(log_likelihoods(*given, **named)):
            if i == 3:
                raise KeyboardInterrupt
            yield piece

    with monkeypatch.context() as patch:
        patch.setattr(scoring, "log_likelihoods", interrupted)
        assert main(arguments) == 130
    captured = capsys.readouterr()
    assert (
        captured.err.splitlines()[-1] == "memgen evaluate: 24 of 60 examples scored and kept; the same command goes on"
    )
    assert captured.out == ""
    assert main(arguments) == 0
    captured = capsys.readouterr()
    assert "24 examples were scored before" in captured.err
    fresh = told(capsys, [*arguments[:-1], "--fresh"])
    assert json.loads(captured.out)["log_likelihood"] == pytest.approx(fresh["log_likelihood"], abs=1e-4)


def test_kept_results_of_other_weights_do_not_count(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(run, tmp_path)
    before = told(capsys, ["evaluate", str(copy), "--samples", "40"])
    tensors, about = load_tensors(copy / "weights.safetensors")
    tensors["p.0.head.logits.bias"] += 0.5
    save_tensors(copy / "weights.safetensors", tensors, about)
    assert told(capsys, ["evaluate", str(copy), "--samples", "40"])["log_likelihood"] < before["log_likelihood"] - 0.5


def test_evaluate_for_people(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["evaluate", str(run), "--samples", "80", "--split", "valid"]) == 0
    out = capsys.readouterr().out
    for words in (
        "200 examples of digits",
        "scale v/16",
        "RandomState(1234)",
        "1 (ELBO)",
        "nats",
        "effective sample size",
        "averaged",
    ):
        assert words in out


def test_a_model_file_is_scored_like_its_run(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shutil.copy(run / "weights.safetensors", tmp_path / "m.safetensors")
    more = ["--samples", "5", "--limit", "7", "--fresh"]
    alone = told(capsys, ["evaluate", str(tmp_path / "m.safetensors"), *more])
    assert alone["log_likelihood"] == told(capsys, ["evaluate", str(run), *more])["log_likelihood"]
    assert [path.name for path in tmp_path.iterdir()] == ["m.safetensors"]
    refused(capsys, ["evaluate", str(tmp_path / "nothing")], "there is no run at")


def test_results_that_cannot_be_kept_are_still_printed(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(run, tmp_path)
    shutil.rmtree(copy / "likelihood", ignore_errors=True)
    (copy / "likelihood").write_text("in the way")
    assert main(["evaluate", str(copy), "--samples", "5", "--json"]) == 0
    captured = capsys.readouterr()
    assert "not kept" in captured.err
    assert json.loads(captured.out)["examples"] == 300


def test_weights_that_are_not_finite_give_no_number(
    run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = copied(run, tmp_path)
    tensors, about = load_tensors(copy / "weights.safetensors")
    tensors["p.0.head.logits.bias"][3] = torch.inf
    save_tensors(copy / "weights.safetensors", tensors, about)
    refused_last(capsys, ["evaluate", str(copy), "--samples", "5", "--json"], "not finite for 300 of 300 examples")


def test_small_things_people_see(run: Path, capsys: pytest.CaptureFixture[str]) -> None:
    refused(capsys, ["--json", "recipes"], "--json comes after the command")
    assert main(["evaluate", str(run), "--samples", "1", "--limit", "1"]) == 0
    out = capsys.readouterr().out
    assert "nan" not in out
    assert "1 example of digits" in out
    assert "fewer than 10 samples carry the estimate" in out
    assert main(["show", str(run / "weights.safetensors")]) == 0
    assert "141,749" in capsys.readouterr().out
    assert main(["train", "--resume", "--out", str(run)]) == 0
    assert "is finished" in capsys.readouterr().out


def test_validation_rows_that_were_trained_on_cannot_be_scored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "r")
    assert main(["train", "digits-vae", "--out", folder, *QUICK, "--set", "data.train_on=train+valid"]) == 0
    refused(capsys, ["evaluate", folder, "--split", "valid"], "train+valid")
