"""Feather files: read as pyarrow reads them, and not expanded beyond measure."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from memgen.data.feather import read_feather_table
from memgen.errors import MemgenError

pyarrow = pytest.importorskip("pyarrow")
feather = pytest.importorskip("pyarrow.feather")


@pytest.mark.parametrize("compression", ["uncompressed", "lz4", "zstd"])
def test_rows_are_those_of_pyarrow(compression: str, tmp_path: Path) -> None:
    levels = pyarrow.array(["x", None, "y"] * 1000).dictionary_encode()
    table = pyarrow.table({"size": np.arange(3000.0), "level": levels, "text": ["a", "bc", ""] * 1000})
    feather.write_feather(table, tmp_path / "t.feather", compression=compression, chunksize=700)
    assert read_feather_table(tmp_path / "t.feather").equals(feather.read_table(tmp_path / "t.feather"))


def test_a_small_file_that_expands_beyond_measure_is_refused_before_it_is_expanded(tmp_path: Path) -> None:
    """400 MB of zeros in some kilobytes."""
    zeros = pyarrow.table({"x": np.zeros(50_000_000)})
    feather.write_feather(zeros, tmp_path / "t.feather", compression="zstd", chunksize=50_000_000)
    assert (tmp_path / "t.feather").stat().st_size < 100_000
    del zeros
    pool = pyarrow.default_memory_pool()
    largest = pool.max_memory()
    with pytest.raises(MemgenError, match="would expand to more than 100 times"):
        read_feather_table(tmp_path / "t.feather")
    assert pool.max_memory() == largest


def test_another_file_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "t.feather").write_bytes(b"FEA1" + bytes(100))
    with pytest.raises(MemgenError, match="does not begin as"):
        read_feather_table(tmp_path / "t.feather")
