"""A row that begins with the weights of another says which these were."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

import memgen
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs import zoo
from memgen.runs.run import WEIGHTS, Run
from memgen.runs.storage import load_tensors
from reproduction import jobs, rows
from reproduction.__main__ import main as reproduce
from reproduction.job import MADE, Job, Place, read_result
from reproduction.results import history
from reproduction.rows import ROWS, Row, Scoring
from tests.reproduction.commands import asked


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
