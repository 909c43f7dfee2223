"""What an untrusted file can do: be refused in one line, before it costs more than it is worth."""

from __future__ import annotations

import contextlib
import io
import json
import struct
import subprocess
import sys
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import torch
from PIL import Image

from memgen.data.arrays import ALWAYS_EXPANDED, MOST_ARRAYS, load_arrays
from memgen.data.columns import Columns
from memgen.data.form import Form, Origin
from memgen.data.incomplete import read_incomplete
from memgen.data.own import read_own
from memgen.data.pictures import MOST_PIXELS
from memgen.errors import MemgenError, reason, unknown
from memgen.runs.storage import LARGEST_HEADER, load_tensors, save_tensors

MAGIC = b"\x93NUMPY\x01\x00"


def npy(values: Any) -> bytes:
    content = io.BytesIO()
    np.save(content, values)
    return content.getvalue()


def npy_with(header: str, data: bytes = b"") -> bytes:
    text = header.encode() + b"\n"
    return MAGIC + struct.pack("<H", len(text)) + text + data


def header(shape: str, kind: str = "'<f8'", order: str = "False") -> str:
    return f"{{'descr': {kind}, 'fortran_order': {order}, 'shape': {shape}, }}"


def one_line(path: Path, match: str = "cannot read|has shape") -> None:
    """Both readers refuse the file in one line that names it."""
    with pytest.raises(MemgenError, match=match) as error:
        read_own(path)
    assert str(path) in str(error.value)
    assert "\n" not in str(error.value)
    with pytest.raises(MemgenError) as error:
        read_incomplete(path, 2, (), 255)
    assert "\n" not in str(error.value)


# ---- arrays


@pytest.mark.parametrize(
    ("content", "match"),
    [
        (npy_with("{'descr': '<f8', 'fortran_order': False, 'shape': (3, 4"), "cannot read"),
        (npy_with("'''"), "cannot read"),
        (npy_with("("), "cannot read"),
        (npy_with("(" * 3000), "cannot read"),
        (npy_with(header("(1" + "0" * 5000 + ",)")), "cannot read"),
        (npy_with(header("(-3, 4)"), bytes(96)), "no shape"),
        (npy_with(header("(3, -4)"), bytes(96)), "no shape"),
        (npy_with(header("(True, 12)"), bytes(96)), "no shape"),
        (npy_with(header("(1000000000000, 2)"), bytes(96)), "cut off"),
        (npy_with(header("(3, 4)"), bytes(95)), "cut off"),
        (npy_with(header("(3000000000, 0)")), "holds nothing"),
        (npy_with(header("(0, 3)")), "shape"),
        (npy_with(header("(3, 0)")), "shape"),
        (npy_with(header("()"), bytes(8)), "shape"),
        (npy_with(header("(1000000000000, 2)", "'|S0'")), "no bytes"),
        (npy_with(header("(3, 4)", "'|O'"), b"cos\nsystem\n."), "Python objects"),
        (npy_with(header("(12, 2)", "[('a', '|O')]"), bytes(192)), "Python objects"),
        (npy_with(header("(12, 2)", "'<c8'"), bytes(192)), "not numbers"),
        (npy(np.zeros((12, 2)))[:40], "cannot read"),
        (b"\x93NUMPY\x09\x00" + bytes(100), "version"),
        (b"", "cannot read"),
    ],
)
def test_a_damaged_npy_is_one_line(tmp_path: Path, content: bytes, match: str) -> None:
    path = tmp_path / "x.npy"
    path.write_bytes(content)
    one_line(path, match)


def test_arrays_in_fortran_order_and_of_the_other_byte_order_are_read(tmp_path: Path) -> None:
    values = np.arange(24.0).reshape(12, 2)
    for name, stored in {"f": np.asfortranarray(values), "b": values.astype(">f8")}.items():
        np.save(tmp_path / f"{name}.npy", stored)
        assert np.array_equal(load_arrays(tmp_path / f"{name}.npy")["x"], values)


def npz(path: Path, members: dict[str, bytes], kind: int = zipfile.ZIP_DEFLATED) -> Path:
    with zipfile.ZipFile(path, "w", kind) as archive:
        for name, content in members.items():
            archive.writestr(name, content)
    return path


def test_a_small_archive_that_expands_beyond_measure_is_not_expanded(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with (
        zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive,
        archive.open("x.npy", "w", force_zip64=True) as member,
    ):
        member.write(npy_with(header(f"({ALWAYS_EXPANDED // 64 + 10}, 8)")))
        for _ in range(ALWAYS_EXPANDED // (1 << 20) + 1):
            member.write(bytes(1 << 20))
    assert path.stat().st_size < 2_000_000
    tracemalloc.start()
    one_line(path, "it would expand from")
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_an_archive_cannot_expand_to_more_than_it_says(tmp_path: Path) -> None:
    """Its directory says 100 bytes, the stream has 10 million."""
    path = npz(tmp_path / "x.npz", {"x.npy": npy(np.zeros((625_000, 2)))})
    content = path.read_bytes().replace(struct.pack("<I", 10_000_128), struct.pack("<I", 100))
    path.write_bytes(content)
    tracemalloc.start()
    one_line(path)
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_a_damaged_npz_is_one_line(tmp_path: Path) -> None:
    good = npz(tmp_path / "x.npz", {"x.npy": npy(np.random.default_rng(0).normal(size=(200, 2)))}).read_bytes()
    middle = len(good) // 2
    broken = tmp_path / "broken.npz"
    broken.write_bytes(good[:middle] + bytes(20) + good[middle + 20 :])
    one_line(broken)
    broken.write_bytes(good[:middle])
    one_line(broken)
    one_line(npz(tmp_path / "b.npz", {"x": b"bytes"}), "no array")
    one_line(npz(tmp_path / "c.npz", {"x.npy": b"bytes"}))
    one_line(npz(tmp_path / "d.npz", {"x.npy": npy(np.zeros((12, 2)))}, zipfile.ZIP_LZMA), "compressed in a way")
    one_line(npz(tmp_path / "e.npz", {f"{i}.npy": npy(0) for i in range(MOST_ARRAYS + 1)}), "members")


@pytest.mark.parametrize("code", [0x110000, 0xFFFFFFFF, 0xD800])
def test_labels_that_are_no_characters_are_one_line(tmp_path: Path, code: int) -> None:
    labels = np.array(["ant", "cat"] * 6)
    labels.view(np.uint32)[4] = code
    np.savez(tmp_path / "x.npz", x=np.arange(24.0).reshape(12, 2), labels=labels)
    with pytest.raises(MemgenError, match="no characters"):
        read_own(tmp_path / "x.npz")


# ---- images


def test_an_image_with_too_many_pixels_is_refused_before_it_is_decoded(tmp_path: Path) -> None:
    side = int(MOST_PIXELS**0.5) + 1
    Image.new("1", (side, side)).save(tmp_path / "a.png")
    assert (tmp_path / "a.png").stat().st_size < 100_000
    tracemalloc.start()
    with pytest.raises(MemgenError, match="may have at most 67,108,864 pixels"):
        read_own(tmp_path, size=(8, 8))
    assert tracemalloc.get_traced_memory()[1] < 2_000_000
    tracemalloc.stop()


def test_a_damaged_tiff_is_one_line(tmp_path: Path) -> None:
    """Every byte of the directory of tags, in turn, as something else: Pillow raises errors of many types."""
    content = io.BytesIO()
    Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8)).save(content, "TIFF")
    good, path = content.getvalue(), tmp_path / "a.tif"
    for place in range(4, len(good) - 64):
        path.write_bytes(good[:place] + b"\xff" + good[place + 1 :])
        with contextlib.suppress(MemgenError):
            read_own(tmp_path, size=(8, 8))


# ---- model files


def test_equal_weights_give_equal_bytes(tmp_path: Path) -> None:
    """In every process: the library's own order of the metadata differs from one to the next."""
    program = (
        "import sys, torch; from pathlib import Path; from memgen.runs.storage import save_tensors\n"
        "tensors = {f't{i}': torch.arange(i + 1.0) for i in range(5)}\n"
        "save_tensors(Path(sys.argv[1]), tensors, {f'key{i}': f'wert-ä-{i}' for i in range(20)})\n"
    )
    for name in ("a", "b"):
        subprocess.run([sys.executable, "-c", program, str(tmp_path / name)], check=True)
    assert (tmp_path / "a").read_bytes() == (tmp_path / "b").read_bytes()
    tensors, about = load_tensors(tmp_path / "a")
    assert list(tensors["t4"]) == [0, 1, 2, 3, 4]
    assert about["key7"] == "wert-ä-7"


def test_a_header_beyond_the_limit_is_not_read(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(struct.pack("<Q", LARGEST_HEADER + 1) + b"{" + b" " * (LARGEST_HEADER + 100))
    with pytest.raises(MemgenError, match="its header has 33,554,433 bytes"):
        load_tensors(path)
    with pytest.raises(MemgenError, match="at most"):
        save_tensors(tmp_path / "n", {"a": torch.zeros(1)}, {"form": "x" * (LARGEST_HEADER + 1)})


def test_sizes_are_compared_with_the_file_before_anything_is_allocated(tmp_path: Path) -> None:
    """A header of 100 bytes that tells of a tensor of 4 TB."""
    path = tmp_path / "m.safetensors"
    about = {"a": {"dtype": "F32", "shape": [10**6, 10**6], "data_offsets": [0, 4 * 10**12]}}
    text = json.dumps(about).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(100))
    with pytest.raises(MemgenError, match="corrupt, or no model file"):
        load_tensors(path)


def test_a_file_of_another_program_is_one_line(tmp_path: Path) -> None:
    path = tmp_path / "m.safetensors"
    path.write_bytes(safetensors.torch.save({"a": torch.zeros(2, dtype=torch.complex64)}))
    with pytest.raises(MemgenError, match="corrupt"):
        load_tensors(path)


# ---- texts


@pytest.mark.parametrize("text", ["1" * 5000, "[" * 900, "[" * 100_000, '{"a": ' * 1000, '"\\ud800"', "{", "NaN"])
def test_json_that_python_gives_up_on_is_one_line(text: str) -> None:
    for read in (Form.from_json, Origin.from_json, Columns.from_json):
        with pytest.raises(MemgenError, match="no description"):
            read(text, "data.json")


def test_numbers_that_no_float_holds_are_no_offsets_and_no_levels() -> None:
    entry = '{"columns": [{"name": "a", "kind": "KIND", "levels": [LEVELS], "offset": OFFSET, "why": ""}]}'
    huge = "1" + "0" * 400
    for kind, levels, offset in (("real", "", huge), ("binary", huge, "0"), ("real", "", "true")):
        text = entry.replace("KIND", kind).replace("LEVELS", levels).replace("OFFSET", offset)
        with pytest.raises(MemgenError, match=r"offset|levels"):
            Columns.from_json(text)


def test_messages_stay_one_line_of_bearable_length() -> None:
    assert reason(ValueError("\n\n a\x1b[2J\nb")) == "a?[2J"
    assert len(reason(ValueError("a" * 10**6))) == 300
    assert str(MemgenError("a\nb")) == "a b"
    assert len(str(MemgenError("a" * 10**6))) == 4000
    assert len(str(unknown("column", "x" * 10**6, [f"column {i}" for i in range(10**5)]))) < 5000


# ---- tables


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
    (tmp_path / "x.csv").write_text("".join(f"{i},name-{i}\n" for i in range(100_000)))
    tracemalloc.start()
    with pytest.raises(MemgenError, match="'column 2' has more than 2,000 levels of text, such as 'name-0'"):
        read_own(tmp_path / "x.csv")
    assert tracemalloc.get_traced_memory()[1] < 5_000_000
    tracemalloc.stop()
