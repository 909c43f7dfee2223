"""Rows of the paper again: every row has its recipes, nothing is done twice or lost, what is shipped still holds."""

from __future__ import annotations

import json
import math
import shutil
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import pytest
import torch
from PIL import Image

import memgen
import reproduction.__main__ as reproduction
from memgen.cli.main import main
from memgen.core.model import count_parameters
from memgen.data import DATASETS, dataset
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe, recipe_names
from memgen.runs import zoo
from memgen.runs.run import WEIGHTS, Run, read_model
from memgen.runs.storage import load_tensors, save_tensors
from memgen.tasks.density import standard_error
from reproduction import analyses, jobs, pairs, rows
from reproduction import sweep as sweeping
from reproduction.__main__ import budget, command
from reproduction.__main__ import main as reproduce
from reproduction.analyses import group
from reproduction.job import MADE, Job, Place, read_json, read_result
from reproduction.page import page
from reproduction.results import chosen, history
from reproduction.rows import GROUPS, IMPUTATION_PAPER, OWN, PAIRS, ROWS, Row, Scoring
from reproduction.sweep import recipes
from tests.conftest import needs_data

RESULTS = Path(__file__).parents[1] / "results"
KEYS = {
    *("log_likelihood", "elbo", "standard_error", "samples", "examples", "recipe", "recipe_sha256", "weights_sha256"),
    *("commit", "seed", "epochs", "seconds", "hardware", "paper", "difference"),
}
SMALL = [
    "model.hidden=[16, 8]",
    "model.latent=4",
    "training.epochs=12",
    "training.evaluate_every=6",
    "training.ema=0.9",
]


def test_every_row_of_the_paper_is_there() -> None:
    assert sorted(ROWS) == [name for name in recipe_names() if not name.startswith("digits")]
    assert len(ROWS) == 22
    assert set(GROUPS["all"]) - set(ROWS) == {rows.SWEEP}
    assert all(name in ROWS for pair in PAIRS for name in pair)
    mem = [name for name in ROWS if "mem" in name and "lre" not in name and "vis" not in name]
    assert all((name, name.replace("mem-", "")) in PAIRS for name in mem)


def parsed(*arguments: str) -> SimpleNamespace:
    """The options of a command line of the reproduction."""
    return SimpleNamespace(**command.make_context("reproduction", list(arguments)).params)


def test_every_schedule_can_be_asked_for() -> None:
    for schedule in rows.all_schedules():
        assert parsed("--schedule", schedule).schedule == schedule
    with pytest.raises(click.UsageError):
        parsed("--schedule", "another")


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_every_training_ends_with_the_rows_model_and_loss(row: Row) -> None:
    paper = Recipe.named(row.name)
    for name, recipe in row.trainings.items():
        assert recipe.data == paper.data
        assert replace(recipe.model, start="random", norm_epsilon=paper.model.norm_epsilon) == paper.model
        last = recipe.objective
        assert replace(last, estimator="plain", kl_warmup_epochs=0.0) == paper.objective
        # All unbiased but for what batch norm does to them (docs/gradients.md).
        assert last.estimator in ("plain", "stl" if last.samples == 1 else "dreg")
        assert row.command(name).startswith(row.name)
        job = Job(row, name)
        assert len(job.chain) == len(recipe.stages) - 1
        assert [own.recipe.stages for own in job.chain] == [recipe.stages[: i + 1] for i in range(len(job.chain))]


UNLIKE = {("ocr-mem-iwae-50", "letters-long")}
"""Rows that have fewer epochs by a schedule than the other of their pair, and are not compared by it."""


@pytest.mark.parametrize("pair", PAIRS, ids="--".join)
def test_rows_that_are_compared_are_trained_alike(pair: tuple[str, str]) -> None:
    for schedule in ROWS[pair[0]].schedules:
        halves = [Job(ROWS[name], schedule) for name in pair]
        assert pairs.alike(halves) == ((pair[0], schedule) not in UNLIKE)
        if not pairs.alike(halves):
            assert pairs.difference(halves, Place(RESULTS, RESULTS)) is None
            continue
        first, second = (half.recipe for half in halves)
        assert first.training == second.training
        assert (first.objective.samples, first.data) == (second.objective.samples, second.data)


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Iterator[Row]:
    """The two models of digits as if they were rows, small enough to train in a second."""
    named = Recipe.named

    def reduced(name: str, schedule: str | None = None) -> Recipe:
        slots = ["model.slots=[6, 4]"] if "mem" in name else []
        return named(name, schedule).override([*SMALL, *slots, "objective.local_reconstruction=[]"])

    scorings = (Scoring(20), Scoring(50, 40))
    own_analyses = {
        "digits-vae": ("svm", "imputation"),
        "digits-mem-vae": ("generation", "memory", "imputation", "svm"),
    }
    for name, own in own_analyses.items():
        monkeypatch.setitem(ROWS, name, Row(name, name, rows.MNIST, -20.0, scorings, own, by=("paper",)))
    PAIRS.append(("digits-mem-vae", "digits-vae"))
    kept = dict(IMPUTATION_PAPER)  # monkeypatch would bring an entry back at the end, and the page has their order
    IMPUTATION_PAPER["rect-4"] = dict.fromkeys(IMPUTATION_PAPER["half"], 0.1)
    del IMPUTATION_PAPER["rect-12"]
    monkeypatch.setattr(analyses, "STEPS", 5)
    monkeypatch.setattr(Recipe, "named", staticmethod(reduced))
    yield ROWS["digits-mem-vae"]
    PAIRS.pop()
    IMPUTATION_PAPER.clear()
    IMPUTATION_PAPER.update(kept)


def asked(place: Path, *more: str) -> list[str]:
    return [*more, "--results", str(place / "results"), "--runs", str(place / "runs")]


def told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> Any:
    assert reproduce([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def made(small: Row, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with both rows done, which takes a while once."""
    kept = tmp_path_factory.getbasetemp() / "made"
    if not kept.exists():
        assert reproduce(asked(kept, "digits-mem-vae", "digits-vae")) == 0
    return Path(shutil.copytree(kept, tmp_path / "made"))


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


@pytest.fixture
def cold_and_warm(small: Row, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """Two rows, of which the second begins with the weights of the first."""
    cold, warm = "digits-vae", "digits-warm"
    named = Recipe.named

    def with_warm(name: str, schedule: str | None = None) -> Recipe:
        if name != warm:
            return named(name, schedule)
        first = named(cold)
        second = first.override(["objective.samples=2", "training.epochs=2"]).stages[0]
        return replace(first, stages=(*first.stages, replace(second, name="k2")))

    monkeypatch.setattr(Recipe, "named", staticmethod(with_warm))
    monkeypatch.setitem(ROWS, warm, Row(warm, warm, rows.MNIST, -20.0, (Scoring(20),), after=cold, by=("paper",)))
    return cold, warm


def test_a_row_begins_with_shipped_weights_where_their_run_is_not_at_hand(
    cold_and_warm: tuple[str, str], made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It says so, and how long they were trained."""
    (cold, warm), place = cold_and_warm, Place(made / "results", made / "runs")
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    assert reproduce(asked(made, "--ship", cold)) == 0
    shutil.rmtree(made / "runs" / cold)
    assert reproduce(asked(made, warm)) == 0
    found = read_result(made / "results" / f"{warm}.json")
    assert found is not None
    (leg,) = found["before"]
    weights = load_tensors(tmp_path / "zoo" / f"{cold}.safetensors")[1]["sha256"]
    assert (leg["recipe"], leg["epochs"], leg["weights_sha256"], leg["shipped"]) == (cold, 12, weights, True)
    job = Job(ROWS[warm], "paper")
    assert jobs.current(job, found)
    assert not (made / "runs" / cold).exists()
    # Weights of another recipe are none of its own.
    other = replace(job, seed=5)
    assert other.before is not None
    assert jobs.shipped(other.before) is None
    # The run keeps what came before it: nothing is lost or counted twice where the zoo has gone on to a later model.
    assert reproduce(asked(made, "--ship", warm)) == 0
    shutil.move(tmp_path / "zoo" / f"{warm}.safetensors", tmp_path / "zoo" / f"{cold}.safetensors")
    (made / "results" / f"{warm}.json").unlink()
    assert reproduce(asked(made, warm)) == 0
    again = read_result(made / "results" / f"{warm}.json")
    assert again is not None
    assert again["before"] == found["before"]
    # A folder that does not say it is not believed.
    told = made / "runs" / warm / MADE
    told.write_text(json.dumps({**json.loads(told.read_text()), "before": []}))
    with pytest.raises(MemgenError, match="which trainings came before"):
        history(job, place)


def test_a_row_that_begins_warm_says_with_which_weights(
    cold_and_warm: tuple[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The one before is trained first; if it changes afterwards, nothing is claimed of both."""
    cold, warm = cold_and_warm
    place = Place(tmp_path / "results", tmp_path / "runs")
    jobs.train(Job(ROWS[cold], "paper"), place)
    assert jobs.state(Job(ROWS[warm], "paper"), place) == f"{cold} before it: trained"
    Run.create(tmp_path / "runs" / warm, Job(ROWS[warm], "paper").recipe)  # killed before it could say more
    assert reproduce(asked(tmp_path, warm)) == 0
    found = read_result(tmp_path / "results" / f"{warm}.json")
    assert found is not None
    (leg,) = found["before"]
    weights = [load_tensors(tmp_path / "runs" / name / WEIGHTS)[1]["sha256"] for name in (cold, warm)]
    assert [leg["weights_sha256"], found["weights_sha256"]] == weights
    assert (leg["recipe"], leg["epochs"], found["epochs"]) == (cold, 12, 2)
    start, end = (memgen.load(tmp_path / "runs" / name) for name in (cold, warm))
    other = build(Recipe.named(warm))
    w = [model.q[0].layers[0].linear.weight for model in (start, end, other)]
    assert (w[1] - w[0]).norm() < 0.5 * (w[1] - w[2]).norm()  # two epochs away from there, not from the seed
    # Had the one before been another, the chain would be broken, and that is said.
    told_of = tmp_path / "runs" / warm / "start.json"
    told_of.write_text(told_of.read_text().replace(weights[0], "f" * 64))
    (tmp_path / "results" / f"{warm}.json").unlink()
    capsys.readouterr()
    assert reproduce(asked(tmp_path, warm)) == 2
    assert "began with other weights" in capsys.readouterr().err


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


@pytest.mark.parametrize(
    "more", [["--seed", "1"], ["--schedule", "paper"], ["all", "--schedule", "fast"], ["--schedule", "long"]]
)
def test_groups_leave_out_what_an_option_does_not_go_with(
    more: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = {row["row"] for row in told(capsys, asked(tmp_path, "--status", *more))["rows"]}
    assert "mnist-vae" in found
    assert "slots" not in found
    assert ("frey-vae-b10" in found) == (not {"fast", "long"} & {*more})


def test_differences_of_weights_that_are_no_more_are_not_shown(made: Path) -> None:
    results, pair = made / "results", ("digits-mem-vae", "digits-vae")
    assert len(pairs.valid(results, pair)) == 1
    path = results / "digits-vae.json"
    path.write_text(path.read_text().replace(json.loads(path.read_text())["weights_sha256"], "f" * 64))
    assert pairs.valid(results, pair) == []


def test_a_pair_needs_the_results_and_no_run(made: Path) -> None:
    """The other half may have been trained on another machine; numbers of other weights are no half of it."""
    place = Place(made / "results", made / "nowhere")
    file, job = pairs.file_of(place.results, ("digits-mem-vae", "digits-vae")), Job(ROWS["digits-vae"], "paper")
    before = read_json(file)
    file.unlink()
    pairs.update(job, place)
    assert read_json(file) == before
    file.unlink()
    own = jobs.examples_of(job, place, jobs.LIKELIHOOD)
    numbers, about = load_tensors(own)
    for other in ({"weights_sha256": "others"}, {"samples": "7"}):
        save_tensors(own, numbers, about | other)
        pairs.update(job, place)
        assert not file.exists()
    # Where the run is at hand they are made again, though the result lacks nothing.
    assert reproduce(asked(made, "digits-vae")) == 0
    assert read_json(file) == before


def test_every_part_of_the_page_has_its_numbers(made: Path, tmp_path: Path) -> None:
    """The result of a small model in the place of the paper's rows: what is found in the files is found on the page."""
    found = read_result(made / "results" / "digits-mem-vae.json")
    assert found is not None
    folder = tmp_path / "page"
    folder.mkdir()
    patterns = found["analyses"]["imputation"]["patterns"]
    patterns["half"]["batch_statistics"]["mse"] = 0.7654
    found["analyses"]["svm"]["accuracy"] = 0.5432
    found["analyses"]["memory"]["alike"][3]["trained"]["rank"] = 99
    legs = [{"epochs": 600, "seconds": 60.0, "recipe_sha256": ""}]
    for name in ("mnist-vae", "mnist-mem-vae", "mnist-vis-mem-vae", "ocr-vae", "frey-vae-b10"):
        figures = json.loads(json.dumps(found["analyses"]).replace("digits-mem-vae-", f"{name}-"))
        own = found | {
            "row": name,
            "analyses": figures,
            "paper": ROWS[name].paper,
            "compared": ROWS[name].quantity,
            "before": legs,
        }
        own["difference"] = own[own["compared"]] - own["paper"]
        by_paper = {OWN} if ROWS[name].paper_schedule else set()
        for schedule in {ROWS[name].schedule, ROWS[name].schedules[0]} | by_paper:  # of the row itself, and of its pair
            path = Job(ROWS[name], schedule).result(Place(folder, folder))
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(json.dumps(own))
    counted = {"mean": -0.0123, "standard_error": 0.0045}
    named = [f"imputation {pattern} {kind}" for pattern in patterns for kind in ("exact", "batch")]
    entry = {"schedule": "fast", "seed": 0, "split": 0, "mean": 1.0, "standard_error": 0.1, "examples": 300}
    entry |= {
        "weights_sha256": [found["weights_sha256"]] * 2,
        "analyses": dict.fromkeys([*named, "svm right"], counted),
    }
    (folder / "differences").mkdir()
    pairs.file_of(folder, ("mnist-mem-vae", "mnist-vae")).write_text(json.dumps({"pairs": [entry]}))
    splits = {
        name: {"log_likelihood": value, "standard_error": 0.5, "minus_paper": 1.0, "minus_paper_standard_error": 0.1}
        for name, value in (("70-30", -90.0), ("50-50", -89.0))
    }
    swept = {
        "recipe": "r",
        "recipe_sha256": recipes(),
        "epochs": 20,
        "examples": 2000,
        "samples": 500,
        "splits": splits,
    }
    (folder / "slots.json").write_text(json.dumps(swept))
    text = page(folder)
    assert f"{found['log_likelihood']:.2f} ± {found['standard_error']:.2f}" in text
    assert "12 (+ 600 before)" in text
    for words in ("0.7654", "54.32%", "7, 9 prefer slots alike in layer 1", "| 120 | does not hold |"):
        assert words in text
    gain = found["more"]["50"]["gain"]
    assert f"{gain:+.3f}" in text
    raised = found["log_likelihood"] + gain
    assert f"| {raised:.2f} | {raised - ROWS['ocr-vae'].paper:+.2f} |" in text
    assert "| half | -0.0011 | -0.0123 ± 0.0045 | -0.0123 ± 0.0045 |" in text
    assert "(1 training of each): -1.23 ± 0.45 points; the paper has +0.13" in text
    for models in (
        "MEM-VAE | 0.0539",
        "MEM-VAE, the paper's schedule | 0.0539",
        "MEM-VAE, the paper's schedule | 98.03%",
    ):
        assert f"| {models} |" in text
    assert "| 1 seed | +1.00 | +1.26 | one training: open |" in text
    side = text.partition("### Samples")[2].partition("###")[0]
    assert "| VAE, `mnist-vae` | MEM-VAE, `mnist-mem-vae` |" in side
    assert side.count("nothing picked") == 1
    amiss = text.partition("## What does not match")[2].partition("## Figures")[0]
    for words in (
        "mnist-vae is +1.00 nats where the paper has +1.26",
        "where the paper has 0.0550",
        "SVM: 54.32%",
        "50-50 was best here",
        "Not done yet",
    ):
        assert words in amiss
    (folder / "remarks.json").write_text('{"slots": "One seed of short trainings."}')
    assert "not 70-30 (+1.00 ± 0.10, paired over images). One seed of short trainings." in page(folder)
    (folder / "remarks.json").write_text('{"nonsense": "Why?"}')  # of something that is not amiss any more
    assert "Why?" not in page(folder)


@needs_data
def test_ways_to_share_slots_are_compared(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """On few images and with small layers: who is best on validation images is said, with the paired difference."""
    base = Recipe.named("mnist-mem-vae", "fast").until("main")
    small = ["model.hidden=[8, 8]", "model.latent=2", "training.batch_size=5000", "training.evaluate_every=0"]
    monkeypatch.setattr(sweeping, "EPOCHS", 1)
    monkeypatch.setattr(sweeping, "EXAMPLES", 50)
    monkeypatch.setattr(sweeping, "SAMPLES", 5)
    monkeypatch.setattr(sweeping, "SLOT_SPLITS", ((70, 30), (10, 90)))
    monkeypatch.setattr(
        sweeping,
        "recipe_of",
        lambda slots: base.override([f"model.slots={list(slots)}", "data.train_on=train", "training.epochs=1", *small]),
    )
    found = sweeping.sweep(Place(tmp_path, tmp_path / "runs"))
    one, other = (found["splits"][name] for name in ("70-30", "10-90"))
    assert one["minus_paper"] == 0
    assert other["minus_paper"] == pytest.approx(other["log_likelihood"] - one["log_likelihood"])
    assert sweeping.sweep(Place(tmp_path, tmp_path / "nowhere")) == found


def test_what_is_shipped_samples_and_is_verified(
    made: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    assert main(["zoo"]) == 0
    assert "empty" in capsys.readouterr().out
    assert reproduce(asked(made, "--ship", "digits-vae")) == 0
    tensors, _ = load_tensors(tmp_path / "zoo" / "digits-vae.safetensors")
    kinds = {value.dtype for value in tensors.values() if value.ndim > 1}
    assert kinds == {torch.float16}
    assert main(["zoo"]) == 0
    assert "zoo:digits-vae" in capsys.readouterr().out
    assert main(["sample", "zoo:digits-vae", "-o", str(tmp_path / "s.png")]) == 0
    assert memgen.load("zoo:digits-vae").latent == (4,)
    assert main(["evaluate", "zoo:digits-vae", "--samples", "20", "--limit", "10"]) == 0
    capsys.readouterr()
    answer = told(capsys, asked(made, "--verify", "digits-vae", "--limit", "100"))["verified"][0]
    assert abs(answer["difference"]) < 0.01
    assert reproduce(asked(made, "--verify", "digits-vae", "--limit", "7")) == 2
    assert "first 100" in capsys.readouterr().err
    # Other weights than those that were measured are found out.
    told_of = zoo.result("digits-vae")
    monkeypatch.setattr(zoo, "result", lambda name: told_of | {"log_likelihood": told_of["log_likelihood"] + 0.1})
    assert reproduce(asked(made, "--verify", "digits-vae")) == 1
    assert "differ by more than" in capsys.readouterr().err
    assert main(["sample", "zoo:digits-vea", "-o", str(tmp_path / "s.png")]) == 2
    assert "did you mean 'digits-vae'" in capsys.readouterr().err


def test_weights_of_another_seed_are_shipped_under_a_name_of_their_own(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside the row's own, which they neither replace nor stand for."""
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    assert reproduce(asked(made, "digits-vae", "--seed", "1")) == 0
    assert reproduce(asked(made, "--ship", "digits-vae", "--seed", "1")) == 0
    own, other = (Job(ROWS["digits-vae"], "paper", seed) for seed in (0, 1))
    assert (jobs.shipped(own), jobs.shipped(other)) == (None, "digits-vae-seed1")
    assert reproduce(asked(made, "--ship", "digits-vae")) == 0
    assert zoo.names() == ["digits-vae", "digits-vae-seed1"]
    assert (jobs.shipped(own), jobs.shipped(other)) == ("digits-vae", "digits-vae-seed1")


def test_the_group_of_faces_has_all_splits() -> None:
    def asked_for(*more: str) -> list[str]:
        return list(reproduction.jobs(parsed(*more)))

    splits = ["frey-vae-b10", *(f"frey-vae-b10-split{i}" for i in range(1, 5))]
    assert [name for name in asked_for("frey") if name.startswith("frey-vae-b10")][5:] == splits
    assert len(asked_for("frey")) == 20
    assert asked_for("frey-vae-b10") == splits[:1]
    assert asked_for("frey-vae-b10", "--splits") == splits
    assert asked_for("frey", "--status") == list(GROUPS["frey"])


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, words in (
        (["mnist-vea"], "did you mean 'mnist-vae'"),
        (["frey-vae-b10", "--schedule", "fast"], "has no fast schedule"),
        (["frey", "--schedule", "fast"], "none of frey has a fast schedule"),
        (["--status", "frey", "--schedule", "long"], "none of frey has a long schedule"),
        (["--status", "--verify"], "ask for one"),
        (["--limit", "100"], "--verify"),
        (["--verify"], "which row?"),
        (["--ship", "mnist-vae"], "no result yet"),
        (
            ["--ship", "mnist-vae", "--seed", "1"],
            "mnist-vae-fast-seed1 has no result yet: python -m reproduction mnist-vae --schedule fast --seed 1",
        ),
        (["--ship", "mnist-vae", "--budget", "1m"], "--budget does not go with --ship"),
        (["--ship", "slots"], "no row with weights"),
        (["slots", "--seed", "1"], "do not go with slots"),
    ):
        assert reproduce(asked(tmp_path, *more)) == 2, more
        told = capsys.readouterr().err.strip()
        assert words in told, more
        assert "\n" not in told
    assert reproduce(asked(tmp_path, "--budget", "soon")) == 2
    assert "150m" in capsys.readouterr().err
    assert not any(tmp_path.glob("r*"))
    (tmp_path / "results").write_text("not a folder")
    assert reproduce(asked(tmp_path, "mnist-vae")) == 2
    assert "cannot make the folder" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
    (tmp_path / "results").unlink()
    (tmp_path / "results").mkdir()
    for text in ("{}", "[]", "{"):
        (tmp_path / "results" / "mnist-vae.json").write_text(text)
        assert reproduce(asked(tmp_path, "--status", "mnist-vae")) == 2
        assert "is damaged" in capsys.readouterr().err


def job_of(found: dict[str, Any]) -> Job:
    """The job of a result, from what it says of its recipe."""
    row = ROWS[found["row"]]
    training = next(name for name in row.schedules if row.command(name) == found["recipe"])
    return Job(row, training, found["seed"], found.get("split", 0))


FILES = [*sorted(RESULTS.glob("*-*.json")), *sorted(RESULTS.glob("seeds/*/*.json"))]


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_results_belong_to_the_recipes_that_ship(path: Path) -> None:
    """A number is never shown with a recipe that has changed since."""
    found = read_result(path)
    assert found is not None
    assert found.keys() >= KEYS
    job = job_of(found)
    assert (RESULTS / found["recipe_file"]).is_file()
    assert job.result(Place(RESULTS, RESULTS)) == path
    assert jobs.current(job, found)
    assert found["difference"] == pytest.approx(found[job.row.quantity] - job.row.paper)


@pytest.mark.parametrize("name", zoo.names())
def test_models_of_the_zoo_are_whole_and_draw(name: str) -> None:
    saved = read_model(zoo.resolve(f"zoo:{name}"))
    told_of = zoo.result(name)
    assert count_parameters(saved.model) == told_of["parameters"]
    job = job_of(told_of)
    assert saved.recipe.differences(job.recipe) == []
    assert saved.reached.stages == len(job.recipe.stages)
    assert job.shipped_as == name
    own = read_result(job.result(Place(RESULTS, RESULTS)))
    assert own is not None
    assert {key: own[key] for key in ("weights_sha256", "log_likelihood")} == {
        key: told_of[key] for key in ("weights_sha256", "log_likelihood")
    }
    drawn = memgen.sample(saved.model, 4)
    assert drawn.shape == (4, DATASETS[saved.recipe.data.name].columns)
    assert bool(drawn.isfinite().all())


def test_the_picture_of_the_readme_is_what_its_command_draws(tmp_path: Path) -> None:
    assert main(["sample", "zoo:mnist-mem-vae", "-n", "64", "-o", str(tmp_path / "samples.png")]) == 0
    both = [Image.open(folder / "samples.png").convert("L") for folder in (tmp_path, RESULTS.parent / "docs")]
    shown, drawn = (torch.tensor(list(image.tobytes()), dtype=torch.float32) for image in both)
    assert float((shown - drawn).abs().mean()) < 0.5  # other processors round otherwise; other weights: 3


def test_the_zoo_is_small() -> None:
    assert sum(path.stat().st_size for path in zoo.folder().glob("*.safetensors")) <= 40e6


@needs_data
def test_splits_of_frey_faces_are_others_of_the_same_faces() -> None:
    own, other = dataset("frey_faces"), dataset("frey_faces-1")
    assert own.test is not None
    assert other.test is not None
    assert not torch.equal(own.rows("test"), other.rows("test"))
    whole = [torch.cat([data.rows("train+valid"), data.rows("test")]) for data in (own, other)]
    assert torch.equal(*(faces[faces.double().pow(2).sum(1).argsort()].sum(0, dtype=torch.float64) for faces in whole))


def test_a_group_of_classes_is_ranked_among_all() -> None:
    """Classes 0 and 1 are alike, 2 and 3 a little: of the six pairs theirs are first and second."""
    matrix = torch.eye(4)
    for i, j, value in ((0, 1, 0.9), (2, 3, 0.4)):
        matrix[i, j] = matrix[j, i] = value
    assert group(matrix, (0, 1)) == {"inside": 0.9, "least": 0.9, "across": 0.0, "rank": 1, "groups": 6}
    assert group(matrix, (0, 1, 2))["least"] == 0  # the third has nothing in common with them
    assert group(matrix, (2, 3))["rank"] == 2


def test_the_mean_of_differences_and_its_error_are_over_trainings() -> None:
    """Over seeds; where there are several splits, over them, whatever number of seeds each has."""
    own = [{"schedule": "fast", "split": 0, "mean": value} for value in (1.0, 2.0, 3.0)]
    found = pairs.over([*own, {"schedule": "paper", "split": 0, "mean": 9.0}], "fast")
    assert (found["trainings"], found["over"]) == (3, "seeds")
    assert found["mean"] == pytest.approx(2.0)
    assert found["standard_error"] == pytest.approx((1 / 3) ** 0.5)
    found = pairs.over([*own, {"schedule": "fast", "split": 1, "mean": 4.0}], "fast")
    assert (found["trainings"], found["over"], found["mean"]) == (2, "splits", pytest.approx(3.0))
