"""`memgen sample`: grids, arrays and figures."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import memgen
from memgen.cli.main import main
from memgen.core.batch import Batch
from tests.command import refused, told
from tests.pictures import picture


def test_sample_writes_a_grid_and_arrays(run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    grid, array = tmp_path / "s.png", tmp_path / "s.npy"
    assert told(capsys, ["sample", str(run), "-n", "10", "-o", str(grid), "--npy"])["output"] == str(grid)
    with Image.open(grid) as image:
        assert image.size[0] > 200
        assert np.asarray(image).std() > 10
    x = np.load(array)
    assert x.shape == (10, 64)
    assert np.allclose(x, memgen.sample(memgen.load(run), 10).numpy())
    assert main(["sample", str(run), "-n", "5", "--draw", "--npy", str(tmp_path / "draws.npy")]) == 0
    assert set(np.unique(np.load(tmp_path / "draws.npy"))) == {0, 1}
    assert not Path("samples.png").exists()  # arrays alone were asked for


def test_a_grid_of_a_model_that_has_no_images_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = memgen.Recipe.named("digits-vae").override(["model.norm=none"])
    memgen.save(memgen.build(recipe, 6), tmp_path / "m.safetensors", recipe)
    refused(capsys, ["sample", str(tmp_path / "m.safetensors"), "-o", str(tmp_path / "s.png")], "6 columns", "--npy")
    assert main(["sample", str(tmp_path / "m.safetensors"), "-n", "5", "--npy", str(tmp_path / "s.npy")]) == 0
    assert np.load(tmp_path / "s.npy").shape == (5, 6)


def test_sample_draws_its_figures(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["mem"])
    made = {
        "reconstruct": (["--reconstruct", "-n", "15"], 30, ["data", "reconstruction"]),
        "interpolate": (["--interpolate"], 60, ["0 to 1", "2 to 3"]),
        "between": (["--interpolate", "3", "8"], 10, ["3 to 8"]),
        "walk": (["--walk", "2"], 32, ["image, reconstruction", "radius 1"]),
        "both": (["--both", "-n", "7"], 14, ["mean", "draw"]),
    }
    for name, (options, count, rows) in made.items():
        result = told(capsys, ["sample", run, *options, "-o", f"{name}.png", "--npy", f"{name}.npy"])
        assert result["samples"] == count
        assert [row.strip() for row in result["rows"]][: len(rows)] == rows
        assert picture(here / f"{name}.png").shape[1] > 150
        assert np.load(here / f"{name}.npy").shape == (count, 64)
    between = np.load(here / "between.npy")
    x = memgen.dataset("digits").rows("test").numpy()
    np.testing.assert_array_equal(between[[0, -1]], x[[3, 8]])  # nothing is picked: the images that were asked for
    model = memgen.load(runs["mem"])
    np.testing.assert_allclose(between[1], memgen.reconstruct(model, Batch.of(torch.from_numpy(x[3:4])))[0], atol=1e-5)


def test_bad_input_to_sample_is_one_line(runs: dict[str, Path], here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = str(runs["mem"])
    refused(capsys, ["sample", run, "--interpolate", "3"], "two images")
    refused(capsys, ["sample", run, "--interpolate", "3", "300"], "no image 300", "300, counted from 0")
    refused(capsys, ["sample", run, "--walk", "-1"], "at least 0")
    refused(capsys, ["sample", run, "--both", "--reconstruct"], "exclude each other")
    refused(capsys, ["sample", run, "--hold", "2"], "0 to 1 for this model")
    refused(capsys, ["sample", run, "--reconstruct", "--split", "tset"], "did you mean 'test'")
    assert not list(here.iterdir())
