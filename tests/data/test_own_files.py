"""Files of the user's of every format give the same rows, or one line says what is wrong."""

from __future__ import annotations

import gzip
import struct
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from memgen.data.idx import read_idx
from memgen.data.own import fingerprint, read_own, with_test
from memgen.errors import MemgenError
from tests.data.reading import SPLITS, refused, whole


def idx(values: np.ndarray[Any, Any], kind: int = 8) -> bytes:
    shape = struct.pack(f">{values.ndim}I", *values.shape)
    return b"\0\0" + bytes([kind, values.ndim]) + shape + values.tobytes()


def frame(rows: int = 40) -> pd.DataFrame:
    chance = np.random.default_rng(0)
    return pd.DataFrame(
        {
            "age": chance.integers(18, 90, rows),
            "town": chance.choice(["Bern", "Chur"], rows),
            "weight": chance.normal(70, 9, rows),
            "day": pd.Timestamp("2020-01-01") + pd.to_timedelta(chance.integers(0, 900, rows), unit="D"),
        }
    )


def test_idx_files_are_images_with_the_labels_beside_them(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (30, 4, 3)).astype(np.uint8)
    path = tmp_path / "train-images-idx3-ubyte.gz"
    path.write_bytes(gzip.compress(idx(pixels)))
    data = read_own(path)
    assert (data.shape, data.labels) == ((4, 3), {})
    torch.testing.assert_close(whole(data, 30), torch.from_numpy(pixels.reshape(30, -1) / np.float32(255)))
    (tmp_path / "train-labels-idx1-ubyte.gz").write_bytes(gzip.compress(idx((np.arange(30) % 3).astype(np.uint8))))
    assert read_own(path).classes == ("0", "1", "2")
    plain = tmp_path / "numbers.idx"
    plain.write_bytes(idx(np.arange(60, dtype=">f4").reshape(20, 3), 0x0D))
    assert read_own(plain).columns is not None
    np.testing.assert_array_equal(read_idx(plain), np.arange(60).reshape(20, 3))


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "does not begin as such files do"),
        (b"\0\0\x08\x03\0\0", "cut off"),
        (idx(np.zeros((9, 2), np.uint8))[:-1], "cut off"),
        (b"\0\0\x08\x02\xff\xff\xff\xff\xff\xff\xff\xff", "cut off"),
        (b"\0\0\x07\x01\0\0\0\0", "does not begin"),
    ],
)
def test_damaged_idx_files_are_refused(content: bytes, words: str, tmp_path: Path) -> None:
    path = tmp_path / "x.idx"
    path.write_bytes(content)
    refused(path, words)
    packed = tmp_path / "x.idx.gz"
    packed.write_bytes(gzip.compress(content) + b"rubbish")
    refused(packed, "damaged or cut off|cut off|does not begin")


def test_images_of_fractions(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (20, 4, 3))
    np.save(tmp_path / "exact.npy", pixels / 255)
    exact = read_own(tmp_path / "exact.npy")
    torch.testing.assert_close(whole(exact, 20), torch.from_numpy(pixels.reshape(20, -1) / 255).float())
    assert exact.scale == "v/255"
    fractions = np.random.default_rng(0).random((20, 4, 3)).astype(np.float32)
    fractions[3, 1, 2] = np.nan
    np.save(tmp_path / "between.npy", fractions)
    between = read_own(tmp_path / "between.npy")
    assert between.scale == "v/255, rounded"
    x = whole(between, 20).numpy()
    assert np.isnan(x).sum() == np.isnan(x[3, 5]) == 1
    assert np.nanmax(np.abs(x - fractions.reshape(20, -1))) < 0.6 / 255
    np.save(tmp_path / "bad.npy", fractions - 0.5)
    refused(tmp_path / "bad.npy", "fractions from 0 to 1")


def test_a_folder_of_tables_is_one_table(tmp_path: Path) -> None:
    rows, folder = frame(), tmp_path / "parts"
    folder.mkdir()
    rows.to_csv(tmp_path / "all.csv", index=False)
    rows[:15].to_csv(folder / "a.csv", index=False)
    rows[15:][list(rows.columns)[::-1]].to_parquet(folder / "b.parquet")
    one, parts = read_own(tmp_path / "all.csv"), read_own(folder)
    assert one.columns is not None
    assert parts.columns is not None
    assert parts.columns.kinds == one.columns.kinds == ("integer", "binary", "real", "date")
    for split in SPLITS:
        torch.testing.assert_close(parts.rows(split), one.rows(split))
    before = fingerprint(folder)
    (folder / "c.csv").write_text("age,town\n3,Bern\n")
    assert fingerprint(folder) != before
    refused(folder, "c.csv has other columns than .*a.csv: 'day' is in one of them only")


def test_feather_and_excel_are_tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = frame()
    rows.to_csv(tmp_path / "all.csv", index=False)
    rows.to_feather(tmp_path / "all.feather")
    one, other = read_own(tmp_path / "all.csv"), read_own(tmp_path / "all.feather", ignore=["town"])
    torch.testing.assert_close(whole(other, 40), whole(one, 40)[:, [0, 2, 3]])
    (tmp_path / "bad.feather").write_bytes(b"no such file")
    refused(tmp_path / "bad.feather", "cannot read .* as a feather file")
    (tmp_path / "x.xlsx").write_bytes(b"no such file")
    monkeypatch.setitem(sys.modules, "openpyxl", None)
    refused(tmp_path / "x.xlsx", "Excel files need pandas and openpyxl: pip install")
    monkeypatch.setitem(sys.modules, "openpyxl", type(sys)("openpyxl"))
    refused(tmp_path / "x.xlsx", "cannot read .* as an Excel file")


def test_rows_of_another_file_are_the_test_rows(tmp_path: Path) -> None:
    rows = frame(60).assign(label=["u", "v"] * 30)
    rows[:40].to_csv(tmp_path / "train.csv", index=False)
    rows[40:].to_csv(tmp_path / "test.csv", index=False)
    data = read_own(tmp_path / "train.csv", tested=True)
    test = read_own(tmp_path / "test.csv", columns=data.columns, whole=True)
    both = with_test(data, test)
    assert [both.count(split) for split in SPLITS] == [36, 4, 20]
    assert both.columns is not None
    ages = both.columns.decode(both.rows("test").double().numpy())[0]
    np.testing.assert_allclose(ages, rows["age"][40:])
    assert both.labels["test"].tolist() == [0, 1] * 10
    rows[40:].assign(label="w").to_csv(tmp_path / "test.csv", index=False)
    with pytest.raises(MemgenError, match=r"rows of the class .w., which train\.csv does not have"):
        with_test(data, read_own(tmp_path / "test.csv", columns=data.columns, whole=True))
