"""Taskar's OCR letters: 52,152 binary images of 16 x 8."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memgen.data.dataset import Dataset, labels, tensor
from memgen.data.files import Source, check_sha256, download, gunzip
from memgen.errors import MemgenError

FILE = "letter.data.gz"
# The published file exists in several versions, so its pixels and labels are checked, not its bytes.
PIXELS = "795062a866002baa921b684ccb369c54234f02c7155e378a84a1614ea2e3884a"
LABELS = "e7d9519f5dddb797dbd3544e14b23fd5231272a081565d2656fe0a59832ffc2a"
TRAIN, VALID = 32_152, 10_000
SPLIT_SEED = 12345


def read(folder: Path) -> tuple[NDArray[np.uint8], NDArray[np.uint8]]:
    """Pixels (52152, 128) and labels (a = 0), in file order.

    A row is: id, letter, next id, word id, position, fold, 128 pixels, separated by tabs.
    """
    path = folder / FILE
    rows = [line.rstrip().split(b"\t") for line in gunzip(path).splitlines()]
    try:
        pixels = np.array([row[6:134] for row in rows], dtype="S1").view(np.uint8).reshape(len(rows), 128) - ord("0")
        letters = np.array([row[1] for row in rows], dtype="S1").view(np.uint8) - ord("a")
    except (IndexError, ValueError):
        raise MemgenError(f"{path} is not a table of letters; delete it and fetch it again") from None
    check_sha256(pixels.tobytes(), PIXELS, f"the pixels in {path}")
    check_sha256(letters.tobytes(), LABELS, f"the labels in {path}")
    return pixels, letters


def order(n: int) -> NDArray[np.int64]:
    """The permutation that random.seed(12345); random.shuffle gave in Python 2: the literature's split rests on it."""
    rows = list(range(n))
    draw = random.Random(SPLIT_SEED).random  # noqa: S311
    for i in reversed(range(1, n)):
        j = int(draw() * (i + 1))
        rows[i], rows[j] = rows[j], rows[i]
    return np.array(rows)


def load() -> Dataset:
    pixels, letters = read(OCR_LETTERS.require())
    shuffled = order(len(pixels))
    x, y = pixels[shuffled], letters[shuffled]
    ends = {"train": slice(0, TRAIN), "valid": slice(TRAIN, TRAIN + VALID), "test": slice(TRAIN + VALID, None)}
    return Dataset(
        name="ocr_letters",
        train=tensor(x[ends["train"]]),
        valid=tensor(x[ends["valid"]]),
        test=tensor(x[ends["test"]]),
        shape=OCR_LETTERS.shape,
        labels={split: labels(y[rows]) for split, rows in ends.items()},
        scale="0/1",
    )


def check(folder: Path) -> None:
    read(folder)


OCR_LETTERS = Source(
    folder="ocr_letters",
    about="52,152 handwritten letters of 16 x 8 binary pixels",
    shape=(16, 8),
    likelihood="bernoulli",
    load=load,
    files=(FILE,),
    check=check,
    homes=(("ai.stanford.edu/~btaskar/ocr", download("https://ai.stanford.edu/~btaskar/ocr/", (FILE,))),),
)
