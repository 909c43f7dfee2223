"""Columns that are not modelled pass through the files that are completed."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from memgen.data.incomplete import read_incomplete
from memgen.data.own import read_own
from memgen.errors import MemgenError
from tests.data.reading import refused


def table(path: Path, header: str = "id,age,note,town\n") -> Path:
    towns = ("Bern", "Chur", "Basel")
    path.write_text(header + "".join(f' "no, {i}",{20 + i},=x {i}  ,{towns[i % 3]}\n' for i in range(30)))
    return path


def test_cells_of_ignored_columns_keep_their_text(tmp_path: Path) -> None:
    data = read_own(table(tmp_path / "x.csv"), ignore=["id", "note"])
    assert data.columns is not None
    assert (data.columns.names, data.columns.ignored) == (("age", "town"), ("id", "note"))
    (tmp_path / "in.csv").write_text('note,id,town,age\n  a"b ,007,,25\n,,Bern,\n')
    found = read_incomplete(tmp_path / "in.csv", 2, (), 255, schema=data.columns)
    found.write(tmp_path / "out.csv", torch.zeros_like(found.x))
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert lines[1] == '  a"b ,007,Basel,25'
    assert lines[2].startswith(",,Bern,")
    (tmp_path / "in.csv").write_text("town,age,id,other\nBern,3,4,5\n")
    with pytest.raises(MemgenError, match="no column 'other'"):
        read_incomplete(tmp_path / "in.csv", 2, (), 255, schema=data.columns)
    (tmp_path / "in.csv").write_text("1,25,2,Bern\n")
    with pytest.raises(MemgenError, match="needs the header"):
        read_incomplete(tmp_path / "in.csv", 2, (), 255, header="no", schema=data.columns)


def test_arrays_and_tables_without_names_ignore_columns_by_their_number(tmp_path: Path) -> None:
    values = np.random.default_rng(0).normal(size=(30, 3))
    np.save(tmp_path / "x.npy", values)
    data = read_own(tmp_path / "x.npy", ignore=["column 2"])
    assert data.columns is not None
    assert (data.columns.names, data.columns.ignored) == (("column 1", "column 3"), ("column 2",))
    values[3] = [np.nan, np.nan, 0.5]
    np.save(tmp_path / "in.npy", values)
    found = read_incomplete(tmp_path / "in.npy", 2, (), 255, schema=data.columns)
    found.write(tmp_path / "out.npy", torch.zeros_like(found.x))
    out = np.load(tmp_path / "out.npy")
    assert np.isnan(out).nonzero()[0].tolist() == [3]
    assert np.isnan(out[3, 1])
    kept = ~np.isnan(values)
    np.testing.assert_array_equal(out[kept], values[kept])
    np.savetxt(tmp_path / "in.csv", values, "%.3f", delimiter=",")
    assert read_incomplete(tmp_path / "in.csv", 2, (), 255, schema=data.columns).x.shape == (30, 2)
    refused(tmp_path / "x.npy", "unknown column to ignore: 'age'", ignore=["age"])
