"""Data sets: one small loader file each, found on disk or fetched, always checked."""

from memgen.data.columns import KINDS, Column, Columns
from memgen.data.dataset import Dataset
from memgen.data.files import Source
from memgen.data.sets.digits import DIGITS
from memgen.data.sets.frey_faces import FREY_FACES, OTHER_SPLITS
from memgen.data.sets.mnist import MNIST, MNIST_255
from memgen.data.sets.ocr_letters import OCR_LETTERS
from memgen.errors import unknown

DATASETS: dict[str, Source] = {
    "digits": DIGITS,
    "mnist": MNIST,
    "mnist-255": MNIST_255,
    "ocr_letters": OCR_LETTERS,
    "frey_faces": FREY_FACES,
    **OTHER_SPLITS,
}
"""name -> where a data set comes from and how it is read."""


def source(name: str) -> Source:
    if name not in DATASETS:
        raise unknown("data set", name, DATASETS)
    return DATASETS[name]


def dataset(name: str) -> Dataset:
    """The data set of that name, read from disk.

    >>> dataset("digits").train.shape
    torch.Size([1297, 64])
    """
    return source(name).load()


__all__ = ["DATASETS", "KINDS", "Column", "Columns", "Dataset", "Source", "dataset", "source"]
