"""The user's own incomplete data: what was observed goes out as it came in."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from memgen.data.incomplete import read_incomplete
from memgen.errors import MemgenError

NAN = float("nan")


def read(
    path: Path, columns: int = 3, shape: tuple[int, ...] = (), levels: int = 255, empty: bool = False
) -> torch.Tensor:
    return read_incomplete(path, columns, shape, levels, empty).x


TABLES = {
    "plain": ("1,2,3\n4,,6\n", "1,2,3\n4,9.5,6\n"),
    "names": ("a,b,c\n1,2,3\n4,nan,6\n", "a,b,c\n1,2,3\n4,9.5,6\n"),
    "text of cells": ("1.500, 2e0 ,0003\n4,NA,-6.0\n", "1.500, 2e0 ,0003\n4,9.5,-6.0\n"),
    "quotes": ('"a","b","c"\n"1",2,3\n4,"",6', '"a","b","c"\n"1",2,3\n4,9.5,6'),
    "semicolons, windows": ("1;2;3\r\n4;?;6\r\n", "1;2;3\r\n4;9.5;6\r\n"),
    "tabs": ("1\t2\t3\n4\tnull\t6\n", "1\t2\t3\n4\t9.5\t6\n"),
    "mark and empty lines": ("\ufeffa,b,c\n\n1,2,3\n\n4,None,6\n\n", "\ufeffa,b,c\n\n1,2,3\n\n4,9.5,6\n\n"),
    "a first row with missing values": ("1,,3\n4,5,6\n", "1,9.5,3\n4,5,6\n"),
    "tabs and quotes": ('"1"\t2\t3\n4\t\t"6"\n', '"1"\t2\t3\n4\t9.5\t"6"\n'),
    "numbers as names": ("0,1,2\n1,2,3\n4,,6\n", "0,1,2\n1,2,3\n4,9.5,6\n"),
    "ends in a hole": ("1,2,3\n4,5,\n", "1,2,3\n4,5,9.5\n"),
}


@pytest.mark.parametrize("name", TABLES)
def test_cells_keep_their_very_text(name: str, tmp_path: Path) -> None:
    before, after = TABLES[name]
    path = tmp_path / "in.csv"
    path.write_bytes(before.encode())
    data = read_incomplete(path, 3, (), 255)
    assert data.x.isnan().sum() == 1
    data.write(tmp_path / "out.csv", torch.full_like(data.x, 9.5))
    assert (tmp_path / "out.csv").read_bytes() == after.encode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("1,2\n3,4\n", "line 1, has 2 columns, which is too few"),
        ("1,2,3\n4,5,6,7\n", "line 2, has 4 columns, which is too many"),
        ("a,b,c\n1,x,3\n", "line 2, column 2: 'x' is not a number"),
        ('"0,5";1;2\n3;4;5\n', "line 1, column 1: '0,5' is not a number; decimals need a point"),
        ("1,2,inf\n1,2,3\n", "line 1, column 3: 'inf' is not a number"),
        ("1,,3\n4,,6\n", "column 2 has not one value"),
        (",,3\n,,6\n", r"column 1 \(and 1 more\)"),
        ("", "is empty"),
        ("a,b,c\n", "no rows"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text(text)
    with pytest.raises(MemgenError, match=words):
        read(path)


def test_whether_there_is_a_header_can_be_said(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("0,1,2\n3,4,5\n")
    assert [len(read_incomplete(path, 3, (), 255, header=how).x) for how in ("auto", "yes", "no")] == [1, 1, 2]
    path.write_text("1,2,3\n3,4,5\n")
    assert [len(read_incomplete(path, 3, (), 255, header=how).x) for how in ("auto", "yes", "no")] == [2, 1, 2]


def test_empty_columns_and_single_rows_can_be_meant(tmp_path: Path) -> None:
    path = tmp_path / "in.csv"
    path.write_text("1,,3\n4,,6\n")
    assert read(path, empty=True).isnan().sum() == 2
    path.write_text("1,,3\n")
    assert read(path).isnan().sum() == 1


@pytest.mark.parametrize("kind", [np.float16, np.float32, np.float64, ">f4"])
@pytest.mark.parametrize("ending", ["npy", "npz"])
def test_arrays_keep_their_bits_and_type(kind: str, ending: str, tmp_path: Path) -> None:
    values = np.random.default_rng(0).random((4, 2, 3)).astype(kind)
    values[1, 0, 2] = np.nan
    path, out = tmp_path / f"in.{ending}", tmp_path / f"out.{ending}"
    np.save(path, values) if ending == "npy" else np.savez(path, x=values, y=np.arange(3))
    data = read_incomplete(path, 6, (), 255)
    assert data.x.shape == (4, 6)
    data.write(out, torch.full_like(data.x, 0.25))
    with out.open("rb") as file:
        arrays = {"x": np.load(file), "y": np.arange(3)} if ending == "npy" else dict(np.load(file))
    found = arrays["x"]
    assert arrays["y"].tolist() == [0, 1, 2]  # what else the file holds is kept
    assert found.dtype == values.dtype
    assert found[1, 0, 2] == 0.25
    values[1, 0, 2] = 0.25
    assert found.tobytes() == values.tobytes()


def test_arrays_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    cases: list[tuple[str, object, str]] = [
        ("a.npy", np.zeros((3, 4)), "4 columns, which is too many"),
        ("b.npy", np.zeros(3), "rows must come first"),
        ("c.npy", np.array([["a", "b", "c"]]), "not numbers"),
        ("d.npy", np.array([[1.0, np.inf, 0.0]]), "infinity at row 1, column 2"),
        ("e.npy", np.full((3, 3), np.nan), "not one value"),
        ("f.npy", np.array([[None, 1, 2]], dtype=object), "cannot read"),
    ]
    for name, values, words in cases:
        np.save(tmp_path / name, values)  # type: ignore[arg-type]
        with pytest.raises(MemgenError, match=words):
            read(tmp_path / name)
    np.savez(tmp_path / "g.npz", a=np.zeros((1, 3)), b=np.zeros((1, 3)))
    with pytest.raises(MemgenError, match="holds 2 arrays"):
        read(tmp_path / "g.npz")
    for name in ("h.npy", "h.npz"):
        (tmp_path / name).write_bytes(b"not an array")
        with pytest.raises(MemgenError, match="cannot read"):
            read(tmp_path / name)
    (tmp_path / "i.txt").write_text("1,2,3")
    with pytest.raises(MemgenError, match="ending must be"):
        read(tmp_path / "i.txt")
    with pytest.raises(MemgenError, match="there is no file"):
        read(tmp_path / "nothing.csv")


def test_images_keep_their_grey_levels(tmp_path: Path) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    grey = np.random.default_rng(0).integers(0, 256, (4, 3), np.uint8)
    alpha = np.full((4, 3), 255, np.uint8)
    alpha[1, 2] = 0
    alpha[0, 0] = 7  # faint, but there
    Image.fromarray(np.dstack([grey, alpha]), "LA").save(folder / "b.png")
    Image.fromarray(grey).save(folder / "a.png")
    Image.fromarray(np.dstack([grey, grey, grey, alpha]), "RGBA").save(folder / "c.png")
    (folder / "notes.txt").write_text("no image")
    data = read_incomplete(folder, 12, (4, 3), 256)
    assert data.x.isnan().nonzero().tolist() == [[1, 5], [2, 5]]
    assert data.x[0].tolist() == (grey.astype(float) / 256).reshape(-1).tolist()
    data.write(tmp_path / "out", torch.full_like(data.x, 0.5))
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["a.png", "b.png", "c.png"]
    expected = grey.copy()
    with Image.open(tmp_path / "out" / "a.png") as image:
        assert (np.asarray(image) == expected).all()
    expected[1, 2] = 128
    for name in ("b", "c"):
        with Image.open(tmp_path / "out" / f"{name}.png") as image:
            assert image.mode == "L"
            assert (np.asarray(image) == expected).all()


def test_images_that_cannot_be_read_are_refused(tmp_path: Path) -> None:
    def refused(words: str, shape: tuple[int, ...] = (4, 3)) -> None:
        with pytest.raises(MemgenError, match=words):
            read_incomplete(tmp_path, 12, shape, 255)

    refused("no images in")
    refused("are no images", ())
    Image.new("L", (4, 4)).save(tmp_path / "a.png")
    refused("a.png is 4 pixels wide and 4 high, the model's images are 3 wide and 4 high")
    Image.new("RGB", (3, 4), (9, 0, 0)).save(tmp_path / "a.png")
    refused("colour image")
    Image.new("I;16", (3, 4)).save(tmp_path / "a.png")
    refused("more than 8 bits")
    (tmp_path / "a.png").write_bytes(b"no image at all")
    refused("cannot read the image .*a.png")
    Image.new("L", (3, 4)).save(tmp_path / "a.png")
    Image.new("L", (3, 4)).save(tmp_path / "a.jpg")
    refused("two images named a")
