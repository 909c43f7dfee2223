"""The user's own data: tables, arrays and images become rows, or one line says why not."""

from __future__ import annotations

import datetime
import sys
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from memgen.data import Columns, Dataset
from memgen.data.own import fingerprint, is_path, read_own, split_rows
from memgen.errors import MemgenError

NAN = float("nan")
SPLITS = ("train", "valid", "test")


def table(path: Path, rows: int = 40, head: str = "age,town,weight,smokes\n") -> Path:
    """Counts, text with three levels, numbers, truth in words; a hole of every kind."""
    towns, words = ["Bern", "Chur", "Basel"], ["yes", "no"]
    lines = [f"{i % 7},{towns[i % 3]},{60 + 0.5 * i * (-1) ** i},{words[i % 2]}" for i in range(rows)]
    lines[1:5] = ["1,,3.5,yes", "NA,Bern,4.5,no", "2,Chur,?,yes", "3,Bern,5.5,null"]
    path.write_text(head + "\n".join(lines) + "\n")
    return path


def whole(data: Dataset, rows: int, seed: int = 1234) -> torch.Tensor:
    """The rows in the order of the file."""
    order = np.concatenate([split_rows(rows, seed)[split] for split in SPLITS])
    return torch.cat([data.rows(split) for split in SPLITS])[np.argsort(order)]


def refused(path: Path, words: str, **options: Any) -> None:
    with pytest.raises(MemgenError, match=words) as caught:
        read_own(path, **options)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


# ---- splits


@pytest.mark.parametrize("n", [10, 19, 25, 1000])
def test_splits_are_disjoint_exhaustive_and_seeded(n: int) -> None:
    rows = split_rows(n, seed=3)
    assert sorted(np.concatenate(list(rows.values())).tolist()) == list(range(n))
    assert [len(rows[split]) for split in SPLITS] == [n - 2 * (n // 10), n // 10, n // 10]
    assert all(np.array_equal(rows[split], split_rows(n, seed=3)[split]) for split in SPLITS)
    assert not np.array_equal(rows["train"], split_rows(n, seed=4)["train"])


def test_reading_does_not_depend_on_where_one_stands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = table(tmp_path / "people.csv")
    monkeypatch.chdir(tmp_path)
    there, here = read_own(path), read_own(Path("people.csv"))
    assert there.name == here.name == "people.csv"
    assert np.array_equal(there.train.numpy(), here.train.numpy(), equal_nan=True)
    assert there.columns == here.columns
    other = read_own(path, seed=5)
    assert torch.equal(whole(other, 40, 5).isnan(), whole(here, 40).isnan())
    assert not torch.equal(other.train.isnan(), here.train.isnan())


def test_too_few_rows_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "few.csv"
    path.write_text("a,b\n" + "1.5,2\n" * 9)
    refused(path, "there are 9 rows.*at least 10")


# ---- tables


def test_a_table_of_all_kinds(tmp_path: Path) -> None:
    data = read_own(table(tmp_path / "people.csv"))
    assert data.columns is not None
    assert data.columns.names == ("age", "town", "weight", "smokes")
    assert data.columns.kinds == ("count", "categorical", "real", "binary")
    assert (data.likelihood, data.scale, data.shape, data.stochastic) == ("mixed", "as given", (), False)
    assert data.train.dtype == torch.float32
    x = whole(data, 40)
    assert x.isnan().nonzero().tolist() == [[1, 1], [2, 0], [3, 2], [4, 3]]
    age, town, weight, smokes = data.columns.decode(x.numpy())
    assert age[:2].tolist() == [0, 1]
    assert town[:3].tolist() == ["Bern", None, "Bern"]
    assert weight[[0, 1, 5]] == pytest.approx([60, 3.5, 57.5], abs=1e-5)
    assert smokes[:2].tolist() == ["yes", "yes"]
    assert abs(data.train[:, 2].nanmean()) < 1e-4  # the offset is the mean of the training rows


def test_splits_of_rows_with_holes_can_be_scored(tmp_path: Path) -> None:
    data = read_own(table(tmp_path / "people.csv"))
    assert torch.equal(data.fixed("train").x.isnan(), data.rows("train").isnan())
    grey = Dataset("grey", torch.tensor([[0.5, NAN, 1.0]] * 50), stochastic=True)
    fixed = grey.fixed("train").x
    assert fixed[:, 1].isnan().all()
    assert set(fixed[:, 0].tolist()) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("write", "name"),
    [
        (lambda text: text.replace(",", ";"), "semicolons.csv"),
        (lambda text: text.replace(",", "\t"), "tabs.tsv"),
        (lambda text: "\ufeff\n" + text.replace("\n", "\r\n"), "windows.csv"),
        (lambda text: text.replace("Bern", ' "Bern" ').replace("yes", '"yes"'), "quotes.csv"),
        (lambda text: text.replace("\n", "\n\n"), "empty lines.csv"),
    ],
)
def test_dialects_are_read_alike(write: Any, name: str, tmp_path: Path) -> None:
    plain = table(tmp_path / "plain.csv")
    (tmp_path / name).write_bytes(write(plain.read_text()).encode())
    a, b = read_own(plain), read_own(tmp_path / name)
    assert a.columns == b.columns
    assert np.array_equal(a.train.numpy(), b.train.numpy(), equal_nan=True)


def test_quoted_cells_may_hold_what_separates(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,place\n" + '1.5,"Bern, the ""old"" town"\n2.5,"two\nlines"\n-3.5,plain\n' * 5)
    data = read_own(path)
    assert data.columns is not None
    assert data.columns.columns[1].levels == ('Bern, the "old" town', "plain", "two\nlines")


def test_names_of_columns(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    rows = "".join(f"{i},{i * i}.5,x{i % 2}\n" for i in range(12))

    def names(head: str, header: str = "auto") -> tuple[str, ...]:
        path.write_text(head + rows)
        columns = read_own(path, header=header).columns
        assert columns is not None
        return columns.names

    assert names("") == ("column 1", "column 2", "column 3")
    assert names("n, square ,\n") == ("n", "square", "column 3")
    assert names("1,2,3\n", "yes") == ("1", "2", "3")
    path.write_text("n,square,n\n" + rows)
    refused(path, "two columns are named 'n'")
    with pytest.raises(MemgenError, match="unknown header 'maybe'"):
        read_own(path, header="maybe")


def test_kinds_can_be_given_by_name(tmp_path: Path) -> None:
    path = table(tmp_path / "people.csv")
    data = read_own(path, kinds={"age": "categorical", "weight": "auto"})
    assert data.columns is not None
    assert data.columns.kinds == ("categorical", "categorical", "real", "binary")
    assert data.columns.columns[0].levels == (0, 1, 2, 3, 4, 5, 6)
    refused(path, "unknown column 'Age'; did you mean 'age'", kinds={"Age": "real"})
    refused(path, "column 'town', row 1: 'Bern' is not a number", kinds={"town": "real"})
    refused(path, "'weight' is count", kinds={"weight": "count"})
    with pytest.raises(MemgenError, match="unknown kind of column 'int'"):
        read_own(path, kinds={"age": "int"})
    codes = tmp_path / "codes.csv"
    codes.write_text("postcode,x\n" + "".join(f"0{100 + i % 5},{i}.5\n" for i in range(20)))
    padded = read_own(codes, kinds={"postcode": "categorical"}).columns
    assert padded is not None
    assert padded.columns[0].levels == ("0100", "0101", "0102", "0103", "0104")


def test_the_column_of_labels_gives_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,Label,y\n" + "".join(f"{i}.5,{'bac'[i % 3]},{-i}\n" for i in range(30)))
    data = read_own(path)
    assert data.classes == ("a", "b", "c")
    assert data.columns is not None
    assert data.columns.names == ("x", "y")
    for split, rows in split_rows(30).items():
        assert data.labels[split].tolist() == [[1, 0, 2][i % 3] for i in rows]
    kept = read_own(path, kinds={"Label": "categorical"})
    assert kept.columns is not None
    assert (kept.columns.names, kept.labels) == (("x", "Label", "y"), {})
    text = path.read_text()
    path.write_text(text.replace("Label", "labels").replace("\n3.5,b", "\n3.5,"))
    refused(path, "label of row 4 is missing")
    path.write_text(text.replace("Label", "label").replace(",y", ",labels"))
    refused(path, "two columns give labels: 'label' and 'labels'")
    path.write_text("label,x\n" + "".join(f"{i}.5,{i}\n" for i in range(30)))
    refused(path, "fractions")
    path.write_text("label,x\n" + "".join(f"{i + 9},{-i}\n" for i in range(30)))
    assert read_own(path).classes[:2] == ("9", "10")  # numbers in the order of numbers


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "is empty"),
        ("a,b\n", "has no rows"),
        ("a,b\n1,2\n1,2,3\n", "line 3, has 3 columns, the first line has 2"),
        ("a;b\n" + "1,5;2\n2;3\n" * 9, "'a', row 1: '1,5' is not a number; decimals need a point"),
        ("a,b\n" + "1.5,2\ninf,3\n" * 9, "'a' has an infinity in row 2"),
        ("a,b\n" + "1.5,\n" * 12, "'b' has not one value"),
        ("a,b\n" + "".join(f"{i},name {i}\n" for i in range(30)), "'b' has 30 levels of text"),
        (
            "a,b\n" + "".join(f"{i},{i if i != 20 else 'oops'}.5\n" for i in range(30)),
            "row 21: 'oops.5' is not a number",
        ),
        ('a,b\n1,2\n3,"4\n' + "5,6\n" * 20, "quote"),
    ],
)
def test_tables_that_cannot_be_read_are_refused(text: str, words: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text(text)
    refused(path, words)


def test_files_that_are_no_data_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_bytes(b"\xff\xfe\x00")
    refused(tmp_path / "a.csv", "UTF-8")
    (tmp_path / "a.txt").write_text("1,2")
    refused(tmp_path / "a.txt", "ending must be one of .csv")
    refused(tmp_path / "none.csv", "there is no file or folder")
    refused(table(tmp_path / "b.csv"), "a size is for images", size=(2, 2))


# ---- by the schema of a model


def test_a_table_is_read_by_a_schema(tmp_path: Path) -> None:
    path = table(tmp_path / "people.csv")
    first = read_own(path)
    assert first.columns is not None
    again = read_own(path, columns=Columns.from_json(first.columns.to_json()))
    assert again.columns == first.columns
    assert np.array_equal(again.train.numpy(), first.train.numpy(), equal_nan=True)
    turned = tmp_path / "turned.csv"
    turned.write_text("\n".join(",".join(line.split(",")[::-1]) for line in path.read_text().splitlines()))
    other = read_own(turned, columns=first.columns)  # by name, whatever the order
    assert np.array_equal(other.train.numpy(), first.train.numpy(), equal_nan=True)
    bare = tmp_path / "bare.csv"
    bare.write_text(path.read_text().partition("\n")[2])
    other = read_own(bare, columns=first.columns)  # by place, without names
    assert np.array_equal(other.train.numpy(), first.train.numpy(), equal_nan=True)
    text = path.read_text()
    for change, words in {
        ("age", "Age"): "there is no column 'age', which the model has; columns: Age, town",
        ("Bern", "Rome"): "column 'town', row 1: 'Rome' is none of the 3 known levels",
        ("1,,3.5", "-1,,3.5"): "'age' is count",
        ("1,,3.5", "x,,3.5"): "'age', row 2: 'x' is not a number",
    }.items():
        path.write_text(text.replace(*change))
        refused(path, words, columns=first.columns)
    path.write_text(text)
    refused(path, "kinds of columns are those of the model", columns=first.columns, kinds={"age": "real"})
    path.write_text("\n".join(f"{line},{'more' if i == 0 else i}" for i, line in enumerate(text.splitlines())))
    refused(path, "the model has no column 'more'", columns=first.columns)


def test_text_that_looks_like_numbers_stays_text_where_the_schema_says_so(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("grade,x\n" + "".join(f"{['1', '2', '3', 'A'][i % 4]},{i}.5\n" for i in range(40)))
    columns = read_own(path).columns
    assert columns is not None
    path.write_text("grade,x\n" + "".join(f"{1 + i % 3},{i}.5\n" for i in range(40)))
    found = read_own(path, columns=columns).columns
    assert found is not None
    assert found.columns[0].levels == ("1", "2", "3", "A")


# ---- parquet


def test_parquet_is_read_as_csv_is(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed (the extra tables)")
    from pyarrow import parquet

    csv = read_own(table(tmp_path / "people.csv"))
    assert csv.columns is not None
    age, town, weight, smokes = csv.columns.decode(whole(csv, 40).double().numpy())
    columns = {
        "age": pyarrow.array([None if v != v else int(v) for v in age], pyarrow.int32()),
        "town": pyarrow.array(town.tolist()).dictionary_encode(),
        "weight": pyarrow.array([None if v != v else float(v) for v in weight]),
        "smokes": pyarrow.array(smokes.tolist()),
        "__index_level_0__": pyarrow.array(range(40)),
    }
    path = tmp_path / "people.parquet"
    parquet.write_table(pyarrow.table(columns), path)
    monkeypatch.setitem(sys.modules, "pandas", None)
    found = read_own(path)
    assert found.columns is not None
    assert (found.columns.names, found.columns.kinds) == (csv.columns.names, csv.columns.kinds)
    assert np.allclose(found.train.numpy(), csv.train.numpy(), equal_nan=True, atol=1e-4)
    assert [column.levels for column in found.columns] == [column.levels for column in csv.columns]

    decimals = pyarrow.array([Decimal("1.50"), Decimal("-2.25"), None] * 15)
    truth = pyarrow.table({"t": [True, None, False] * 15, "d": decimals})
    parquet.write_table(truth, path)
    found = read_own(path)
    assert found.columns is not None
    assert [column.levels for column in found.columns] == [(False, True), (-2.25, 1.5)]
    parquet.write_table(pyarrow.table({"when": [datetime.date(2020, 1, 1)] * 12}), path)
    refused(path, "column 'when' holds values of type date32")
    path.write_bytes(b"no such file")
    refused(path, "cannot read .* as a parquet file")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    refused(tmp_path / "a.parquet", r"pip install '\.\[tables\]'")


# ---- arrays


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
        ({"x": np.zeros((20, 3, 3))}, "images must be whole numbers"),
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


# ---- images


def draw(folder: Path, names: list[str], shape: tuple[int, ...] = (4, 3)) -> np.ndarray[Any, Any]:
    """Random images, saved; returns them in the order of `names`."""
    pixels = np.random.default_rng(1).integers(0, 256, (len(names), *shape), np.uint8)
    for name, image in zip(names, pixels, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name)
    return pixels


TWELVE = [f"{i:02}.png" for i in range(12)]


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
    for name in TWELVE:  # holes say nothing about levels
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


# ---- what the command line asks


def test_a_fingerprint_tells_whether_data_changed(tmp_path: Path) -> None:
    path = table(tmp_path / "a.csv")
    before = fingerprint(path)
    assert fingerprint(table(tmp_path / "b.csv")) == before  # the content counts
    path.write_text(path.read_text() + "\n")
    assert fingerprint(path) != before
    folder = tmp_path / "images"
    draw(folder, TWELVE)
    before = fingerprint(folder)
    (folder / "notes.txt").write_text("no image")
    assert fingerprint(folder) == before
    (folder / "00.png").rename(folder / "20.png")
    renamed = fingerprint(folder)
    (folder / "20.png").rename(folder / "00.png")
    assert fingerprint(folder) == before != renamed
    draw(folder, ["03.png"])
    assert fingerprint(folder) != before
    with pytest.raises(MemgenError, match="cannot read"):
        fingerprint(tmp_path / "none.csv")


def test_paths_and_names_of_data_sets_are_told_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "digits").mkdir()
    (tmp_path / "photos").mkdir()
    assert [is_path(name) for name in ("digits", "mnist", "photo")] == [False] * 3
    assert [is_path(name) for name in ("photos", "./digits", "x.CSV", "a/b", ".", "y.npz")] == [True] * 6
