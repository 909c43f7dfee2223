"""What an untrusted table can cost: time and memory linear in its size."""

from __future__ import annotations

import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from memgen.data.own import read_own
from memgen.errors import MemgenError


def computed_in(seconds: int, program: str, *arguments: str) -> str:
    """What a program prints that may compute for so long, as the system counts it; more kills it."""
    limit = f"import resource; resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))\n"
    done = subprocess.run([sys.executable, "-c", limit + program, *arguments], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-1000:] or f"killed by signal {-done.returncode}"
    return done.stdout.strip()


READ = (
    "import sys; from pathlib import Path\n"
    "from memgen.data.own import read_own; from memgen.errors import MemgenError\n"
    "try: print(tuple(read_own(Path(sys.argv[1])).train.shape))\n"
    "except MemgenError as error: print(str(error)[-60:])\n"
)
PEAK = (
    "import sys, tracemalloc; from pathlib import Path; from memgen.data.own import read_own\n"
    "tracemalloc.start(); read_own(Path(sys.argv[1])); print(tracemalloc.get_traced_memory()[1])\n"
)
"""In a process of its own, where no shapes are checked, which costs memory too."""
COMPLETE = (
    "import sys; from pathlib import Path; from memgen.data.incomplete import read_incomplete\n"
    "print(tuple(read_incomplete(Path(sys.argv[1]), 2, (), 255).x.shape))\n"
)


def test_a_name_that_stands_twice_among_100_000_is_found_in_linear_time(tmp_path: Path) -> None:
    """Comparing every name with every other takes minutes of computing; the limit is one."""
    path = tmp_path / "x.csv"
    names = [f"n{i}" for i in range(100_000)] + ["n99999"]
    path.write_text(",".join(names) + "\n" + (",".join("1" for _ in names) + "\n") * 2)
    assert "named 'n99999'; give each its own name" in computed_in(60, READ, str(path))


def test_100_000_columns_are_read_in_linear_time(tmp_path: Path) -> None:
    path = tmp_path / "x.csv"
    path.write_text((",".join("12" for _ in range(100_000)) + "\n") * 10)
    assert computed_in(60, READ, str(path)) == "(8, 100000)"


def test_blank_lines_after_each_row_are_read_in_linear_time(tmp_path: Path) -> None:
    """Many after one row, and before the first: copying those before for each one takes minutes."""
    path = tmp_path / "x.csv"
    path.write_text("\n" * 200_000 + "1,2\n" * 6 + "\n" * 400_000 + "1,2\n\n" * 6)
    assert computed_in(60, READ, str(path)) == "(10, 2)"
    assert computed_in(60, COMPLETE, str(path)) == "(12, 2)"


def test_too_many_columns_are_refused_before_they_are_read(tmp_path: Path) -> None:
    (tmp_path / "x.csv").write_text("1," * 1_000_000 + "1\n")
    with pytest.raises(MemgenError, match="1,000,001 columns; at most 1,000,000"):
        read_own(tmp_path / "x.csv")


@pytest.mark.parametrize("cells", ["digits", "decimals", "words", "gaps"])
def test_a_csv_costs_at_most_five_times_its_size(tmp_path: Path, cells: str) -> None:
    """All that is held at any moment, for digits, the shortest of cells, too."""
    random = np.random.default_rng(0)
    kinds: dict[str, Any] = {
        "digits": random.integers(0, 10, (20_000, 40)).astype(str),
        "decimals": np.char.mod("%.5f", random.normal(size=(8_000, 40))),
        "words": np.array(["Bern", "Chur", "Genf"])[random.integers(0, 3, (12_000, 40))],
        "gaps": np.where(random.random((20_000, 40)) < 0.3, "", random.integers(0, 99, (20_000, 40)).astype(str)),
    }
    path = tmp_path / "x.csv"
    rows = [[f"c{i}" for i in range(40)], *kinds[cells].tolist()]
    path.write_text("\n".join(",".join(row) for row in rows) + "\n")
    peak = int(computed_in(120, PEAK, str(path)))
    assert peak < 5 * path.stat().st_size, f"{peak / path.stat().st_size:.2f} times"


def test_cells_of_text_keep_their_very_text(tmp_path: Path) -> None:
    """A column that looks like numbers until its last row is text from the first: 3.50 is not 3.5."""
    rows = [f"{i},{i % 3}.50" for i in range(5000)]
    (tmp_path / "x.csv").write_text("\n".join(rows) + "\n0,x\n")
    data = read_own(tmp_path / "x.csv")
    assert data.columns is not None
    assert data.columns.columns[1].levels == ("0.50", "1.50", "2.50", "x")


def test_a_column_of_identifiers_is_read_no_further_than_it_takes_to_refuse_it(tmp_path: Path) -> None:
    """The other column is read to its end, because all problems are told at once: 100,000 texts would take 15 MB."""
    (tmp_path / "x.csv").write_text("".join(f"{i},name-{i}\n" for i in range(100_000)))
    tracemalloc.start()
    with pytest.raises(MemgenError, match="'column 2' has more than 2,000 levels of text, such as 'name-0'"):
        read_own(tmp_path / "x.csv")
    assert tracemalloc.get_traced_memory()[1] < 9_000_000
    tracemalloc.stop()
