"""Tables read by the schema of a model, tables in parquet files, and data that changed."""

from __future__ import annotations

import datetime
import sys
from decimal import Decimal
from pathlib import Path

import numpy as np
import pytest

from memgen.data import Columns
from memgen.data.own import fingerprint, is_path, read_own
from memgen.errors import MemgenError
from tests.data.reading import TWELVE, draw, refused, table, whole


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
    parquet.write_table(pyarrow.table({"when": [datetime.timedelta(1)] * 12}), path)
    refused(path, "column 'when' holds values of type duration")
    path.write_bytes(b"no such file")
    refused(path, "cannot read .* as a parquet file")


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    (tmp_path / "a.parquet").write_bytes(b"")
    refused(tmp_path / "a.parquet", r"pip install '\.\[tables\]'")


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
