"""The 8 x 8 digits that come with scikit-learn: small enough to learn in seconds, nothing to fetch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import numpy as np
from jaxtyping import Int64, UInt8
from numpy.typing import NDArray

from memgen.data.dataset import Dataset, labels, tensor
from memgen.data.files import Source

SPLIT_SEED = 1234
TRAIN, VALID = 1297, 200
FILE = Path("data", "digits.csv.gz")


def read() -> tuple[UInt8[NDArray[np.uint8], "N 64"], Int64[NDArray[np.int64], " N"]]:
    """Levels 0 ... 16 and classes, read from scikit-learn's file: importing scikit-learn takes two seconds."""
    sklearn = find_spec("sklearn")
    if sklearn and sklearn.origin and (file := Path(sklearn.origin).with_name("datasets") / FILE).is_file():
        table = np.loadtxt(file, delimiter=",")
        return table[:, :-1].astype(np.uint8), table[:, -1].astype(np.int64)
    from sklearn.datasets import load_digits  # it keeps them elsewhere

    x, y = load_digits(return_X_y=True)
    return x.astype(np.uint8), y.astype(np.int64)


def load() -> Dataset:
    x, y = read()
    order = np.random.RandomState(SPLIT_SEED).permutation(len(x))
    x, y = x[order], y[order]
    ends = {"train": slice(0, TRAIN), "valid": slice(TRAIN, TRAIN + VALID), "test": slice(TRAIN + VALID, None)}
    return Dataset(
        name="digits",
        train=tensor(x[ends["train"]], 16),
        valid=tensor(x[ends["valid"]], 16),
        test=tensor(x[ends["test"]], 16),
        shape=DIGITS.shape,
        stochastic=True,
        labels={split: labels(y[rows]) for split, rows in ends.items()},
        scale="v/16",
    )


DIGITS = Source("digits", "1,797 handwritten digits of 8 x 8 grey levels, from scikit-learn", (8, 8), "bernoulli", load)
