"""The 8 x 8 digits that come with scikit-learn: small enough to learn in seconds, nothing to fetch."""

from __future__ import annotations

import numpy as np

from memgen.data.dataset import Dataset, labels, tensor
from memgen.data.files import Source

SPLIT_SEED = 1234
TRAIN, VALID = 1297, 200


def load() -> Dataset:
    from sklearn.datasets import load_digits  # takes half a second to import

    digits = load_digits()
    order = np.random.RandomState(SPLIT_SEED).permutation(len(digits.data))
    x, y = digits.data[order].astype(np.uint8), digits.target[order]
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
