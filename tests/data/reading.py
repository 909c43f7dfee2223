"""Reading the user's own files in tests: a table, images, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from memgen.data import Dataset
from memgen.data.own import read_own, split_rows
from memgen.errors import MemgenError

NAN = float("nan")
SPLITS = ("train", "valid", "test")


def table(path: Path, rows: int = 40, head: str = "age,town,weight,smokes\n") -> Path:
    """Counts, text with three levels, numbers, truth in words; a hole of every kind."""
    towns, words = ["Bern", "Chur", "Basel"], ["yes", "no"]
    lines = [f"{i % 7},{towns[i % 3]},{60 + 0.5 * i * (-1) ** i},{words[i % 2]}" for i in range(rows)]
    lines[1:5] = ["1,,3.5,yes", "NA,Bern,4.5,no", "2,Chur,?,yes", "3,Bern,5.5,null"]
    path.write_text(head + "\n".join(lines) + "\n")
    return path


def whole(data: Dataset, rows: int, seed: int = 1234) -> torch.Tensor:
    """The rows in the order of the file."""
    order = np.concatenate([split_rows(rows, seed)[split] for split in SPLITS])
    return torch.cat([data.rows(split) for split in SPLITS])[np.argsort(order)]


def refused(path: Path, words: str, **options: Any) -> None:
    with pytest.raises(MemgenError, match=words) as caught:
        read_own(path, **options)
    assert "\n" not in str(caught.value)
    assert path.name in str(caught.value)


def draw(folder: Path, names: list[str], shape: tuple[int, ...] = (4, 3)) -> np.ndarray[Any, Any]:
    """Random images, saved; returns them in the order of `names`."""
    pixels = np.random.default_rng(1).integers(0, 256, (len(names), *shape), np.uint8)
    for name, image in zip(names, pixels, strict=True):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(folder / name)
    return pixels


TWELVE = [f"{i:02}.png" for i in range(12)]
