"""The user's own tables become rows, or one line says why not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from memgen.data import Dataset
from memgen.data.own import read_own, split_rows
from memgen.errors import MemgenError
from tests.data.reading import NAN, SPLITS, refused, table, whole


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
        ("a;b\n" + "1,5;2\n2.5;3\n" * 9, "'a', row 1: '1,5' is not a number; decimals need a point"),
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
