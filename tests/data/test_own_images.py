"""The user's own arrays and images become rows, or one line says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from memgen.data.own import read_own, split_rows
from tests.data.reading import NAN, TWELVE, draw, refused, whole


def test_arrays_are_tables_or_images(tmp_path: Path) -> None:
    random = np.random.default_rng(0)
    x = random.normal(size=(20, 3))
    x[4, 1] = NAN
    np.save(tmp_path / "a.npy", x)
    data = read_own(tmp_path / "a.npy")
    assert data.columns is not None
    assert (data.columns.names, data.likelihood) == (("column 1", "column 2", "column 3"), "mixed")
    back = np.stack(data.columns.decode(whole(data, 20).numpy()), 1)
    assert np.allclose(back, x, equal_nan=True, atol=1e-6)

    pixels = random.integers(0, 256, (20, 4, 5), np.uint8)
    np.savez(tmp_path / "b.npz", images=pixels, y=np.arange(20) % 4)
    grey = read_own(tmp_path / "b.npz")
    assert (grey.shape, grey.likelihood, grey.scale, grey.columns) == ((4, 5), "discretised_logistic", "v/255", None)
    assert torch.equal(whole(grey, 20), torch.from_numpy((pixels / 255).astype(np.float32)).reshape(20, -1))
    assert grey.classes == ("0", "1", "2", "3")
    assert grey.labels["test"].tolist() == (split_rows(20)["test"] % 4).tolist()
    assert read_own(tmp_path / "b.npz", size=(2, 3)).train.shape == (16, 6)
    read = read_own(tmp_path / "b.npz", likelihood="bernoulli")
    assert (read.likelihood, read.stochastic, read.scale) == ("bernoulli", True, "v/255")

    np.savez(tmp_path / "c.npz", x=np.stack([pixels] * 3, -1), labels=np.array(list("ab") * 10), other=pixels)
    assert read_own(tmp_path / "c.npz").shape == (4, 5, 3)
    np.save(tmp_path / "d.npy", pixels[..., None] > 100)
    two = read_own(tmp_path / "d.npy")
    assert (two.shape, two.likelihood, two.scale, two.stochastic) == ((4, 5), "bernoulli", "0/1", False)
    assert torch.equal(whole(two, 20), torch.from_numpy((pixels > 100).astype(np.float32)).reshape(20, -1))


@pytest.mark.parametrize(
    ("arrays", "words"),
    [
        ({"x": np.full((20, 3, 3), 1.5)}, "images"),
        ({"x": np.zeros((20, 3, 3, 2), np.uint8)}, "images are"),
        ({"x": np.zeros(20)}, "it must be"),
        ({"x": np.zeros((20, 0))}, "it must be"),
        ({"x": np.array([["a"]] * 20)}, "not numbers"),
        ({"a": np.zeros((20, 2)), "b": np.zeros((20, 2))}, "holds 2 arrays"),
        ({"x": np.zeros((20, 2)), "labels": np.zeros(3)}, r"20 rows, and labels has shape \(3,\)"),
        ({"x": np.full((20, 2), np.inf)}, "'column 1' has an infinity in row 1"),
    ],
)
def test_arrays_that_cannot_be_read_are_refused(arrays: dict[str, Any], words: str, tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", **arrays)
    refused(tmp_path / "a.npz", words)


def test_a_folder_of_grey_images(tmp_path: Path) -> None:
    pixels = draw(tmp_path, TWELVE)
    (tmp_path / "notes.txt").write_text("no image")
    (tmp_path / ".hidden.png").write_text("no image")
    seen: list[tuple[int, int]] = []
    data = read_own(tmp_path, report=lambda done, total: seen.append((done, total)))
    assert seen == [(i, 12) for i in range(1, 13)]
    assert (data.shape, data.likelihood, data.scale, data.stochastic) == (
        (4, 3),
        "discretised_logistic",
        "v/255",
        False,
    )
    assert torch.equal(whole(data, 12), torch.from_numpy((pixels / 255).astype(np.float32)).reshape(12, -1))
    assert (data.labels, data.classes) == ({}, ())


def test_two_levels_are_bernoulli(tmp_path: Path) -> None:
    for name in TWELVE:
        Image.new("1", (3, 4), int(name[1]) % 2).save(tmp_path / name)
    data = read_own(tmp_path)
    assert (data.likelihood, data.scale, data.stochastic) == ("bernoulli", "0/1", False)
    assert data.train.unique().tolist() == [0, 1]
    assert read_own(tmp_path, likelihood="gaussian").likelihood == "gaussian"


def test_one_image_with_colours_makes_all_have_three_channels(tmp_path: Path) -> None:
    pixels = draw(tmp_path, TWELVE)
    for name in TWELVE[:4]:  # grey, whatever the file says
        with Image.open(tmp_path / name) as image:
            image.convert("RGB").save(tmp_path / name)
    assert read_own(tmp_path).shape == (4, 3)
    colour = draw(tmp_path, ["05.png"], (4, 3, 3))
    data = read_own(tmp_path)
    assert data.shape == (4, 3, 3)
    x = (whole(data, 12) * 255).round().numpy().reshape(12, 4, 3, 3)
    assert np.array_equal(x[5], colour[0])
    assert np.array_equal(x[0], np.stack([pixels[0]] * 3, -1))


def test_pixels_with_alpha_0_are_missing(tmp_path: Path) -> None:
    pixels = draw(tmp_path, TWELVE)
    alpha = np.full((4, 3), 255, np.uint8)
    alpha[1, 2], alpha[0, 0] = 0, 7  # the other is faint, but there
    Image.fromarray(np.dstack([pixels[3], alpha]), "LA").save(tmp_path / "03.png")
    x = whole(read_own(tmp_path), 12)
    assert x.isnan().nonzero().tolist() == [[3, 5]]
    assert x[3, 0] == np.float32(pixels[3, 0, 0] / 255)
    draw(tmp_path, ["05.png"], (4, 3, 3))
    assert whole(read_own(tmp_path), 12).isnan().nonzero().tolist() == [[3, 15], [3, 16], [3, 17]]
    assert whole(read_own(tmp_path, size=(4, 3)), 12).isnan().sum() == 3
    refused(tmp_path, "03.png has missing pixels", size=(2, 2))
    for name in TWELVE:  # missing values say nothing about levels
        Image.fromarray(
            np.dstack([np.full((4, 3), 99 * (1 - alpha // 255), np.uint8) * (alpha == 0), alpha]), "LA"
        ).save(tmp_path / name)
    assert read_own(tmp_path).likelihood == "bernoulli"


def test_sub_folders_are_classes_if_all_images_lie_in_them(tmp_path: Path) -> None:
    names = [f"{'cat' if i % 3 else 'ant/young'}/{i:02}.png" for i in range(12)]
    draw(tmp_path, names)
    data = read_own(tmp_path)
    assert data.classes == ("ant", "cat")
    order = sorted(names)
    for split, rows in split_rows(12).items():
        assert data.labels[split].tolist() == [int(order[i].startswith("cat")) for i in rows]
    draw(tmp_path, ["alone.png"])
    assert read_own(tmp_path).classes == ()
    assert len(whole(read_own(tmp_path), 13)) == 13
    draw(tmp_path / "one", [f"all/{name}" for name in TWELVE])
    assert read_own(tmp_path / "one").classes == ()  # one class is none


def test_images_of_different_sizes_need_a_size(tmp_path: Path) -> None:
    draw(tmp_path, TWELVE)
    draw(tmp_path, ["07.png", "09.png"], (6, 3))
    refused(tmp_path, r"00.png is 3 pixels wide and 4 high, .*07.png is 3 wide and 6 high; say --size HEIGHTxWIDTH")
    assert read_own(tmp_path, size=(4, 3)).train.shape == (10, 12)
    # What is cut away lies at both ends, in equal parts.
    stripes = np.zeros((10, 30), np.uint8)
    stripes[:, 10:20] = 255
    for name in TWELVE:
        Image.fromarray(stripes).save(tmp_path / name)
    data = read_own(tmp_path, size=(5, 5))
    assert data.shape == (5, 5)
    assert data.train.min() > 0.9
    assert data.train.equal(data.train.reshape(-1, 5, 5).flip(2).reshape(-1, 25))


def test_images_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    refused(tmp_path, "there are no images in")
    draw(tmp_path, TWELVE, (40, 40))
    content = (tmp_path / "04.png").read_bytes()
    (tmp_path / "04.png").write_bytes(content[: len(content) // 2])
    refused(tmp_path, "cannot read the image .*04.png: ")
    for i in range(6):
        (tmp_path / f"{i:02}.png").write_bytes(b"nothing")
    refused(tmp_path, r"cannot read 6 images: .*00.png .*01.png .*02.png .* and 3 more")
    draw(tmp_path, TWELVE)
    Image.new("I;16", (3, 4)).save(tmp_path / "00.png")
    refused(tmp_path, "00.png has more than 8 bits per pixel")
    draw(tmp_path, TWELVE)
    refused(tmp_path, "kinds of columns are for tables", kinds={"a": "real"})
