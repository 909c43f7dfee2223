"""Tables and photos of the user's own, and the settings of a small model."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
from PIL import Image

SMALL = ["--set", "model.hidden=[8]", "--set", "model.latent=2", "--set", "model.slots=[4]"]
SMALL += ["--set", "objective.samples=1", "--set", "training.epochs=2"]
NAMES = ["town", "age", "income", "member", "temp", "labels"]
TOWNS = ["Basel", "Bern", "Chur, GR"]


def table_rows(n: int = 40) -> list[list[str]]:
    """Text, a count, a positive column, two levels, a real column far from 0, and labels; here and there a hole."""
    chance = np.random.RandomState(0)
    rows = []
    for i in range(n):
        town, age = TOWNS[i % 3], int(chance.poisson(3))
        row = [town, str(age), f"{np.exp(chance.randn() + 1):.3f}", ("no", "yes")[i % 2]]
        row.append(f"{1000 + 5 * (i % 3) + chance.randn():.2f}")
        holed = ["" if i > 5 and chance.rand() < 0.1 else cell for cell in row]
        rows.append([*holed, ("low", "high")[age > 2]])
    return rows


def write_table(path: Path, rows: list[list[str]], names: list[str] | None = None) -> None:
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        writer.writerow(NAMES if names is None else names)
        writer.writerows(rows)


def write_photos(folder: Path, n: int = 12) -> None:
    """Reddish cats and bluish dogs of 6 x 5 pixels, in sub-folders."""
    chance = np.random.RandomState(1)
    for c, name in enumerate(("cat", "dog")):
        (folder / name).mkdir(parents=True)
        for i in range(n):
            pixels = chance.randint(0, 80, (6, 5, 3)) + np.array([150 * (1 - c), 60, 150 * c])
            Image.fromarray(pixels.astype(np.uint8)).save(folder / name / f"{i}.png")


def run_of(home: Path, name: str) -> str:
    return str(home / "runs" / name)
