"""Tensors are stored with a checksum of their values, however they lie in memory."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from memgen.runs.storage import load_tensors, save_tensors

LYING: dict[str, Tensor] = {
    "one entry, stride 0": torch.zeros(()).expand(1),
    "rows of stride 0": torch.ones(3).expand(2, 3),
    "column by column": torch.arange(6.0).view(2, 3).t(),
    "every other row": torch.arange(8.0)[::2],
    "no dimension": torch.tensor(2.0),
    "empty": torch.zeros(0, 3),
}


@pytest.mark.parametrize("name", LYING)
def test_a_tensor_is_stored_and_has_the_checksum_of_its_copy(name: str, tmp_path: Path) -> None:
    for file, tensor in (("a", LYING[name]), ("b", LYING[name].clone(memory_format=torch.contiguous_format))):
        save_tensors(tmp_path / file, {"x": tensor}, {})
    (first, about), (_, about_copy) = (load_tensors(tmp_path / file) for file in ("a", "b"))
    assert first["x"].equal(LYING[name])
    assert about == about_copy
