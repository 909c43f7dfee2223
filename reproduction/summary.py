"""The table of the README: with and without memory, by the number of samples in training."""

from __future__ import annotations

from pathlib import Path

from reproduction import ledger
from reproduction.job import read_result
from reproduction.overview import MARK, gap
from reproduction.pairs import by_schedule
from reproduction.rows import ROWS
from reproduction.text import grid, number

PAIRS = {
    ("MNIST", 1): ("mnist-mem-vae", "mnist-vae"),
    ("MNIST", 5): ("mnist-mem-iwae-5", "mnist-iwae-5"),
    ("MNIST", 50): ("mnist-mem-iwae-50", "mnist-iwae-50"),
    ("OCR-letters", 1): ("ocr-mem-vae", "ocr-vae"),
    ("OCR-letters", 5): ("ocr-mem-iwae-5", "ocr-iwae-5"),
    ("OCR-letters", 50): ("ocr-mem-iwae-50", "ocr-iwae-50"),
}
"""data and K -> the rows with and without memory."""


def summary(folder: Path) -> str:
    extended = ledger.marks(folder)
    rows = [
        (data, str(K), *cells(folder, plain, extended), *cells(folder, memory, extended), gain(folder, memory, plain))
        for (data, K), (memory, plain) in PAIRS.items()
    ]
    heads = ("data", "K", "no memory: paper", "ours", "with memory: paper", "ours", "gain from memory")
    return grid(heads, rows)


def cells(folder: Path, name: str, extended: dict[str, float]) -> tuple[str, str]:
    """The paper's number and ours, with a mark where the training was extended after a test number was known."""
    paper, result = number(ROWS[name].paper), read_result(folder / f"{name}.json")
    if result is None:
        return paper, "not done"
    return paper, number(result["paper"] + gap(result)) + (MARK if result["weights_sha256"] in extended else "")


def gain(folder: Path, memory: str, plain: str) -> str:
    """The difference under the same schedule and seed, paired over images, training by training."""
    _, entries = by_schedule(folder, (memory, plain))
    return ", ".join(number(entry["mean"], entry["standard_error"], sign=True) for entry in entries)
