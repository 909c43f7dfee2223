"""What an untrusted model file can do: be refused in one line, before anything is allocated."""

from __future__ import annotations

import json
import struct
import subprocess
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from memgen.data.columns import Columns
from memgen.data.form import Form, Origin
from memgen.errors import MemgenError, reason, unknown
from memgen.runs.storage import LARGEST_HEADER, load_tensors, save_tensors


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
