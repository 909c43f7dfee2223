"""Images with fewer levels than a byte has: two are Bernoulli whatever their type, few are asked about."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from memgen.core.likelihoods.pixels import DiscretisedLogistic, DiscretisedLogisticColumns
from memgen.data.form import Form
from memgen.data.own import read_own
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe

BITS = np.random.RandomState(0).randint(0, 2, (20, 4, 3))


def saved(folder: Path, values: np.ndarray) -> Path:
    np.save(folder / "x.npy", values)
    return folder / "x.npy"


@pytest.mark.parametrize(
    "values",
    [
        BITS.astype(np.uint8),
        BITS.astype(np.uint8) * np.uint8(255),
        BITS.astype(bool),
        BITS.astype(np.int64) * 2 - 1,
        BITS.astype(np.float32),
        (BITS * 183 + 17).astype(np.uint8),
    ],
    ids=["0/1", "0/255", "bool", "-1/1", "float", "17/200"],
)
@pytest.mark.parametrize("likelihood", ["auto", "bernoulli"])
def test_two_levels_are_bernoulli_whatever_their_type(tmp_path: Path, values: np.ndarray, likelihood: str) -> None:
    data = read_own(saved(tmp_path, values), likelihood=likelihood, whole=True)
    assert (data.likelihood, data.stochastic, data.scale) == ("bernoulli", False, "0/1")
    assert torch.equal(data.rows("train"), torch.from_numpy(BITS.reshape(20, -1)).float())


@pytest.mark.parametrize("likelihood", ["auto", "bernoulli", "discretised_logistic"])
def test_dark_images_are_asked_about(tmp_path: Path, likelihood: str) -> None:
    values = np.random.RandomState(1).randint(0, 16, (20, 4, 3)).astype(np.uint8)
    path = saved(tmp_path, values)
    with pytest.raises(MemgenError, match=r"--levels 15;.*--levels 255"):
        read_own(path, likelihood=likelihood)
    for levels in (15, 255):
        data = read_own(path, likelihood=likelihood, levels=levels, whole=True)
        assert torch.equal(data.rows("train"), torch.from_numpy((values.reshape(20, -1) / levels).astype(np.float32)))
        assert (data.scale, Form.of(data).levels) == (f"v/{levels}", levels)
    with pytest.raises(MemgenError, match="above --levels 7"):
        read_own(path, levels=7)


def test_a_mask_of_0_and_1_goes_in_and_comes_out_as_0_and_1(tmp_path: Path) -> None:
    for i, bits in enumerate(BITS):
        Image.fromarray(bits.astype(np.uint8)).save(tmp_path / f"{i:02}.png")
    data = read_own(tmp_path, whole=True)
    assert torch.equal(data.rows("train"), torch.from_numpy(BITS.reshape(20, -1)).float())
    assert Form.of(data).levels == 1


@pytest.mark.parametrize("top", [3, 15, 255])
@pytest.mark.parametrize("scale", [0.001, 0.1, 3.0])
def test_the_levels_of_a_discretised_logistic_sum_to_one(top: int, scale: float) -> None:
    location = torch.tensor([[-0.5], [0.0], [0.4], [1.2]])
    p = DiscretisedLogisticColumns(location, torch.full_like(location, scale), top)
    levels = torch.arange(top + 1) / top
    torch.testing.assert_close(p.log_probs(levels).exp().sum(1), torch.ones(4))
    assert torch.isin(torch.round(p.icdf(torch.rand(4, 50)) * top), torch.arange(top + 1)).all()


def test_a_recipe_says_how_many_levels_its_pixels_have() -> None:
    recipe = Recipe().override(["data.name='./x.npy'", "data.levels=15", "model.likelihood=discretised_logistic"])
    head = build(recipe, 12).likelihood
    assert isinstance(head, DiscretisedLogistic)
    head.check(torch.arange(16).float()[None, :12] / 15)
    with pytest.raises(MemgenError, match="v/15"):
        head.check(torch.full((1, 12), 100 / 255))
