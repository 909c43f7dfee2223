"""Results and models that ship: they belong to their recipes, are whole, and give their numbers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from PIL import Image

import memgen
from memgen.cli.main import main
from memgen.core.model import count_parameters
from memgen.data import DATASETS
from memgen.runs import zoo
from memgen.runs.run import read_model
from memgen.runs.storage import load_tensors
from reproduction import jobs
from reproduction.__main__ import main as reproduce
from reproduction.job import Job, Place, read_result
from reproduction.rows import ROWS
from tests.reproduction.commands import KEYS, RESULTS, asked, job_of, told


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
