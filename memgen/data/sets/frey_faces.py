"""Frey faces: 1,965 grey images of 28 x 20."""

from __future__ import annotations

import io
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memgen.data.dataset import Dataset, tensor
from memgen.data.files import Source, check_sha256, download
from memgen.errors import MemgenError

FILE = "frey_rawface.mat"
SHA256 = "265a83a23adb081755cd3de375509828e690324d1d60f076b8ecebc840d59c64"
SPLIT_SEED = 1234
SPLITS = 5
TEST, VALID = 100, 165


def read(folder: Path) -> NDArray[np.uint8]:
    """The faces, (1965, 560)."""
    from scipy.io import loadmat  # takes a quarter of a second to import

    path = folder / FILE
    try:
        content = path.read_bytes()
    except OSError as error:
        raise MemgenError(f"cannot read {path}: {error.strerror}") from None
    check_sha256(content, SHA256, path)
    faces: NDArray[np.uint8] = loadmat(io.BytesIO(content))["ff"].T
    return faces


def load(split: int = 0) -> Dataset:
    """Split 0 is that of all reported numbers; the others measure the influence of the split."""
    faces = read(FREY_FACES.require())
    faces = faces[np.random.RandomState(SPLIT_SEED + split).permutation(len(faces))]
    test, rest = tensor(faces[:TEST], 256), tensor(faces[TEST:], 256)
    return Dataset(
        name="frey_faces" if split == 0 else f"frey_faces-{split}",
        train=rest[:-VALID],
        valid=rest[-VALID:],
        test=test,
        shape=FREY_FACES.shape,
        likelihood="gaussian",
        scale="v/256",
    )


def check(folder: Path) -> None:
    read(folder)


FREY_FACES = Source(
    levels=256,
    folder="frey_faces",
    about="1,965 faces of 28 x 20 grey levels, v/256",
    shape=(28, 20),
    likelihood="gaussian",
    load=load,
    files=(FILE,),
    check=check,
    homes=(("cs.nyu.edu/~roweis/data", download("https://cs.nyu.edu/~roweis/data/", (FILE,))),),
)

OTHER_SPLITS = {
    f"frey_faces-{i}": replace(
        FREY_FACES, about=f"the same faces, split at random with seed {SPLIT_SEED + i}", load=partial(load, i)
    )
    for i in range(1, SPLITS)
}
