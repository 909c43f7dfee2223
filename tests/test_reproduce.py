"""Rows of the paper again: every row has its recipes, nothing is done twice or lost, what is shipped still holds."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import memgen
from memgen import zoo
from memgen.cli import main
from memgen.data import DATASETS, dataset
from memgen.model import count_parameters
from memgen.recipe import Recipe, build, recipe_names
from memgen.reproduce import jobs, pairs, rows
from memgen.reproduce.analyses import group
from memgen.reproduce.jobs import Job, Place, chosen, read_result, reproduce
from memgen.reproduce.page import page
from memgen.reproduce.rows import FAST, GROUPS, PAIRS, ROWS, Row, Scoring
from memgen.run import WEIGHTS, Run, read_model
from memgen.storage import load_tensors
from memgen.tasks.density import standard_error
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
    shipped = [name for name in recipe_names() if not name.startswith("digits") and not name.endswith(FAST)]
    assert sorted(ROWS) == shipped
    assert len(ROWS) == 22
    assert set(GROUPS["all"]) - set(ROWS) == {rows.SWEEP}
    for mem, plain in PAIRS.items():
        assert mem.replace("mem-", "") == plain


@pytest.mark.parametrize("name", [name for name in recipe_names() if name.endswith(FAST)])
def test_a_fast_recipe_trains_the_same_model_on_the_same_loss(name: str) -> None:
    fast, paper = Recipe.named(name), Recipe.named(name.removesuffix(FAST))
    assert fast.data == paper.data
    assert replace(fast.model, start=paper.model.start) == paper.model
    assert replace(fast.objective, estimator=paper.objective.estimator) == paper.objective
    assert fast.objective.estimator in ("plain", "stl" if fast.objective.samples == 1 else "dreg")  # all unbiased
    assert count_parameters(build(fast)) == count_parameters(build(paper))


@pytest.mark.parametrize("name", [name for name in ROWS if name + FAST in recipe_names()])
def test_warm_starts_climb_from_one_sample(name: str) -> None:
    """Each begins with the same model at a smaller K, and the first with nothing."""
    job = Job(ROWS[name], "fast")
    while (before := job.before) is not None:
        assert before.recipe.objective.samples < job.recipe.objective.samples
        assert before.recipe.model == job.recipe.model
        assert before.recipe.objective.local_reconstruction == job.recipe.objective.local_reconstruction
        job = before
    assert job.recipe.objective.samples == 1


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> Row:
    """The two models of digits as if they were rows, small enough to train in a second."""
    named = Recipe.named

    def reduced(name: str) -> Recipe:
        slots = ["model.slots=[6, 4]"] if "mem" in name else []
        return named(name).override([*SMALL, *slots, "objective.local_reconstruction=[]"])

    scorings = (Scoring(20), Scoring(50, 40))
    own = {
        name: Row(name, name, rows.MNIST, -20.0, scorings, ("generation", "memory") if "mem" in name else ())
        for name in ("digits-vae", "digits-mem-vae")
    }
    for name, row in own.items():
        monkeypatch.setitem(ROWS, name, row)
    monkeypatch.setitem(PAIRS, "digits-mem-vae", "digits-vae")
    monkeypatch.setattr(Recipe, "named", staticmethod(reduced))
    return own["digits-mem-vae"]


def asked(place: Path, *more: str) -> list[str]:
    return ["reproduce", *more, "--results", str(place / "results"), "--runs", str(place / "runs")]


def told(capsys: pytest.CaptureFixture[str], arguments: list[str]) -> Any:
    assert main([*arguments, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_row_from_training_to_the_page(small: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(asked(tmp_path, "digits-mem-vae", "digits-vae")) == 0
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
    again = memgen.log_likelihood(memgen.load(weights), data.fixed("test")[rows_of], samples=50)
    gain = again.log_p - scored.log_p[rows_of]
    assert found["more"]["50"]["gain"] == pytest.approx(float(gain.mean()), abs=1e-6)
    # The pair, image by image.
    pair = read_result(tmp_path / "results" / "differences" / "digits-mem-vae.json")
    other = memgen.log_likelihood(memgen.load(tmp_path / "runs" / "digits-vae"), data.fixed("test"), samples=20)
    assert pair is not None
    assert pair["pairs"][0]["mean"] == pytest.approx(float((scored.log_p - other.log_p).mean()), abs=1e-6)
    assert (tmp_path / "results" / "REPRODUCTION.md").is_file()
    for analysis in found["analyses"].values():
        for name in analysis["figures"]:
            assert (tmp_path / "results" / "figures" / name).is_file()
    # Nothing is done twice.
    before = (tmp_path / "results" / "digits-mem-vae.json").stat().st_mtime_ns, weights.stat().st_mtime_ns
    assert main(asked(tmp_path, "digits-mem-vae")) == 0
    assert before == ((tmp_path / "results" / "digits-mem-vae.json").stat().st_mtime_ns, weights.stat().st_mtime_ns)
    capsys.readouterr()
    status = told(capsys, asked(tmp_path, "--status", "digits-mem-vae", "mnist-vae"))
    assert [row["state"] for row in status["rows"]] == ["done", "not begun"]


def test_another_seed_lies_beside_the_rows_own_result(small: Row, tmp_path: Path) -> None:
    assert main(asked(tmp_path, "digits-vae", "--seed", "3")) == 0
    assert not (tmp_path / "results" / "digits-vae.json").exists()
    found = read_result(tmp_path / "results" / "seeds" / "digits-vae" / "digits-vae-seed3.json")
    assert found is not None
    assert found["seed"] == 3


def test_a_budget_that_ends_loses_nothing(
    small: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Stopped by the clock in the middle of training, the row goes on from there (to the bit: see test_resume)."""
    settings = [text.replace("=12", "=4000") for text in SMALL]
    long = Recipe.named("digits-vae").override(settings)
    job = Job(ROWS["digits-vae"], "paper")
    monkeypatch.setattr(Job, "recipe", property(lambda self: long))
    answer = told(capsys, asked(tmp_path, "digits-vae", "--budget", "2s"))
    assert (answer["done"], answer["left"]) == ([], ["digits-vae"])
    run = Run.open(tmp_path / "runs" / "digits-vae")
    epochs = len(run.metrics())
    assert 0 < epochs < 4000
    assert "epoch" in jobs.state(job, Place(tmp_path / "results", tmp_path / "runs"))
    told(capsys, asked(tmp_path, "digits-vae", "--budget", "1.5s"))
    assert len(run.metrics()) > epochs


def test_what_is_shipped_samples_and_is_verified(
    small: Row, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reproduce(Job(ROWS["digits-vae"], "paper"), Place(tmp_path / "results", tmp_path / "runs"))
    monkeypatch.setattr(zoo, "folder", lambda: tmp_path / "zoo")
    (tmp_path / "zoo").mkdir()
    assert main(["zoo"]) == 0
    assert "empty" in capsys.readouterr().out
    assert main(asked(tmp_path, "--ship", "digits-vae")) == 0
    tensors, _ = load_tensors(tmp_path / "zoo" / "digits-vae.safetensors")
    kinds = {value.dtype for value in tensors.values() if value.ndim > 1}
    assert kinds == {torch.float16}
    assert main(["zoo"]) == 0
    assert "zoo:digits-vae" in capsys.readouterr().out
    assert main(["sample", "zoo:digits-vae", "-o", str(tmp_path / "s.png")]) == 0
    assert memgen.load("zoo:digits-vae").latent == (4,)
    assert main(["evaluate", "zoo:digits-vae", "--samples", "20", "--limit", "10"]) == 0
    capsys.readouterr()
    answer = told(capsys, asked(tmp_path, "--verify", "digits-vae", "--limit", "100"))["verified"][0]
    assert abs(answer["difference"]) < 0.01
    assert main(asked(tmp_path, "--verify", "digits-vae", "--limit", "7")) == 2
    assert "first 100" in capsys.readouterr().err
    # Other weights than those that were measured are found out.
    told_of = zoo.result("digits-vae")
    monkeypatch.setattr(zoo, "result", lambda name: told_of | {"log_likelihood": told_of["log_likelihood"] + 0.1})
    assert main(asked(tmp_path, "--verify", "digits-vae")) == 1
    assert "differ by more than" in capsys.readouterr().err
    assert main(["sample", "zoo:digits-vea", "-o", str(tmp_path / "s.png")]) == 2
    assert "did you mean 'digits-vae'" in capsys.readouterr().err


def test_bad_input_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for more, words in (
        (["mnist-vea"], "did you mean 'mnist-vae'"),
        (["frey-vae-b10", "--schedule", "fast"], "has no fast schedule"),
        (["--status", "--verify"], "ask for one"),
        (["--limit", "100"], "--verify"),
        (["--verify"], "which row?"),
        (["--ship", "mnist-vae"], "no result yet"),
    ):
        assert main(asked(tmp_path, *more)) == 2, more
        told = capsys.readouterr().err.strip()
        assert words in told, more
        assert "\n" not in told
    with pytest.raises(SystemExit):
        main(asked(tmp_path, "--budget", "soon"))
    assert "150m" in capsys.readouterr().err
    assert not any(tmp_path.glob("r*"))


def test_the_page_is_current() -> None:
    """REPRODUCTION.md says what the result files say."""
    assert (RESULTS / "REPRODUCTION.md").read_text("utf-8") == page(RESULTS)


@pytest.mark.parametrize("path", sorted(RESULTS.glob("*-*.json")), ids=lambda path: path.stem)
def test_results_belong_to_the_recipes_that_ship(path: Path) -> None:
    """A number is never shown with a recipe that has changed since."""
    found = read_result(path)
    assert found is not None
    assert found.keys() >= KEYS
    job = Job(ROWS[path.stem], ROWS[path.stem].schedule, found["seed"])
    assert found["recipe"] == job.row.recipe(job.schedule)
    assert found["recipe_sha256"] == jobs.recipe_sha256(job.recipe)
    quantity = found[job.row.quantity]
    assert found["difference"] == pytest.approx(quantity - job.row.paper)


@pytest.mark.parametrize("name", zoo.names())
def test_models_of_the_zoo_are_whole_and_draw(name: str) -> None:
    saved = read_model(zoo.resolve(f"zoo:{name}"))
    told_of = zoo.result(name)
    assert count_parameters(saved.model) == told_of["parameters"]
    assert saved.recipe.differences(Recipe.named(told_of["recipe"])) == []
    drawn = memgen.sample(saved.model, 4)
    assert drawn.shape == (4, DATASETS[saved.recipe.data.name].columns)
    assert bool(drawn.isfinite().all())


def test_the_zoo_is_small() -> None:
    assert sum(path.stat().st_size for path in zoo.folder().glob("*.safetensors")) <= 40e6


@needs_data
def test_splits_of_frey_faces_are_others_of_the_same_faces() -> None:
    own, other = dataset("frey_faces"), dataset("frey_faces-1")
    assert own.test is not None
    assert other.test is not None
    assert not torch.equal(own.test, other.test)
    whole = [torch.cat([data.rows("train+valid"), data.rows("test")]) for data in (own, other)]
    assert torch.equal(*(faces[faces.double().pow(2).sum(1).argsort()].sum(0, dtype=torch.float64) for faces in whole))


def test_a_group_of_classes_is_ranked_among_all() -> None:
    """Classes 0 and 1 are alike, 2 and 3 a little: of the six pairs theirs are first and second."""
    matrix = torch.eye(4)
    for i, j, value in ((0, 1, 0.9), (2, 3, 0.4)):
        matrix[i, j] = matrix[j, i] = value
    assert group(matrix, (0, 1)) == {"inside": 0.9, "across": 0.0, "rank": 1, "groups": 6}
    found = group(matrix, (2, 3))
    assert found is not None
    assert found["rank"] == 2


def test_the_mean_of_differences_and_its_error_are_over_trainings() -> None:
    own = [{"schedule": "fast", "mean": value} for value in (1.0, 2.0, 3.0)]
    found = pairs.over([*own, {"schedule": "paper", "mean": 9.0}], "fast")
    assert found["trainings"] == 3
    assert found["mean"] == pytest.approx(2.0)
    assert found["standard_error"] == pytest.approx((1 / 3) ** 0.5)
