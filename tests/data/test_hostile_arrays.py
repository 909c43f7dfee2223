"""What an untrusted array or image can do: be refused in one line, before it costs more than it holds."""

from __future__ import annotations

import contextlib
import io
import struct
import tracemalloc
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from memgen.data.arrays import ALWAYS_EXPANDED, MOST_ARRAYS, load_arrays
from memgen.data.incomplete import read_incomplete
from memgen.data.own import read_own
from memgen.data.pictures import MOST_PIXELS
from memgen.errors import MemgenError

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
