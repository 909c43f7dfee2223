"""What the paper reports: its rows, its numbers, and how each is measured here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from memgen.errors import unknown
from memgen.recipes.settings import Recipe

OWN = "paper"
"""What the schedule of a recipe's own is called here."""
MNIST, OCR, FREY = "Table 1, MNIST (v/256)", "Table 1, OCR-letters", "Frey faces"
SCHEDULES = {
    MNIST: ("fast", "extended", "long", OWN),
    OCR: ("letters-fast", "letters-long", OWN),
    FREY: (OWN,),
}
"""Table -> the schedules by which its rows are trained. The first of them is that of a row's own result, if the row
names no other."""


class Scoring(NamedTuple):
    """An evaluation on test examples."""

    samples: int
    """Importance samples for each."""
    examples: int | None = None
    """Number of examples, chosen by a seed; None for all."""


@dataclass(frozen=True)
class Row:
    """A row of the paper."""

    name: str
    """Also of its recipe."""
    model: str
    """What the paper calls it."""
    table: str
    paper: float
    """Its number, in nats: the higher the better."""
    scorings: tuple[Scoring, ...]
    """The first is the one that is compared; others are stated beside it."""
    extra_analyses: tuple[str, ...] = ()
    """Analyses of its own result, beside the curve of its training."""
    paper_schedule: tuple[str, ...] = ()
    """Analyses of its training by the paper's schedule, where its own result has another."""
    quantity: str = "log_likelihood"
    """What the number is: log_likelihood, or elbo."""
    main_schedule: str = ""
    """The training of its own result, if that is not the first."""
    after: str = ""
    """The row with fewer samples whose trainings lead to its own."""
    by: tuple[str, ...] = ()
    """Its schedules, if they are not those of its table."""
    changes: tuple[tuple[str, str], ...] = ()
    """(schedule, setting) in which it departs from the schedule."""

    @property
    def trainings(self) -> dict[str, Recipe]:
        """Each training of the row: a schedule, or one up to a stage with the row's own number of samples. Its name is
        that of the schedule, and of the stage unless that is the last."""
        samples = Recipe.named(self.name).objective.samples
        trainings: dict[str, Recipe] = {}
        for schedule in self.by or SCHEDULES[self.table]:
            whole = self._recipe(schedule)
            for i, stage in reversed(list(enumerate(whole.stages))):
                recipe = whole.until(stage.name)
                name = schedule if i == len(whole.stages) - 1 else f"{schedule}-{stage.name}"
                if stage.objective.samples == samples and recipe not in trainings.values():
                    trainings[name] = recipe
        return trainings

    def _recipe(self, schedule: str) -> Recipe:
        recipe = Recipe.named(self.name) if schedule == OWN else Recipe.named(self.name, schedule)
        return recipe.override([setting for name, setting in self.changes if name == schedule])

    @property
    def schedules(self) -> tuple[str, ...]:
        """The names of its trainings."""
        return tuple(self.trainings)

    @property
    def analyses(self) -> tuple[str, ...]:
        return (TRAINING, *self.extra_analyses)

    def recipe(self, training: str) -> Recipe:
        return self.trainings[training]

    def command(self, training: str) -> str:
        """What `memgen train` is given to train so."""
        if training == OWN:
            return self.name
        schedule = next(name for name in self.by or SCHEDULES[self.table] if f"{training}-".startswith(f"{name}-"))
        stage = training.removeprefix(schedule).removeprefix("-")
        return f"{self.name} --schedule {schedule}" + (f" --until {stage}" if stage else "")

    @property
    def schedule(self) -> str:
        """The training of the row's own result; others stand beside it."""
        return self.main_schedule or self.schedules[0]


FIVE_THOUSAND = (Scoring(5000),)
LETTERS = (Scoring(10_000), Scoring(100_000, 2000))
"""The paper's 100,000 samples for each of 10,000 letters take hours a row on two cores."""
SHORTER = (("letters-long", "stage.k50-2.epochs=60"),)
"""The last stage of this row has fewer epochs than that of its pair."""
TRAINING, GENERATION, IMPUTATION, SVM, MEMORY = "training", "generation", "imputation", "svm", "memory"

ROWS = {
    row.name: row
    for row in (
        Row("mnist-vae", "VAE", MNIST, -85.67, FIVE_THOUSAND, (GENERATION, IMPUTATION, SVM), (IMPUTATION, SVM)),
        Row(
            "mnist-mem-vae",
            "MEM-VAE",
            MNIST,
            -84.41,
            FIVE_THOUSAND,
            (GENERATION, MEMORY, IMPUTATION, SVM),
            (IMPUTATION, SVM),
            main_schedule="extended",
        ),
        Row("mnist-vae-530", "VAE, 530-530-100", MNIST, -85.69, FIVE_THOUSAND),
        Row("mnist-mem-vae-no-lre", "MEM-VAE without local reconstruction", MNIST, -84.44, FIVE_THOUSAND),
        Row("mnist-vae-lre", "VAE with local reconstruction", MNIST, -85.68, FIVE_THOUSAND),
        Row("mnist-vis-mem-vae", "VIS-MEM-VAE", MNIST, -84.68, FIVE_THOUSAND, (GENERATION, MEMORY)),
        Row("mnist-iwae-5", "IWAE-5", MNIST, -84.49, FIVE_THOUSAND, after="mnist-vae"),
        Row("mnist-mem-iwae-5", "MEM-IWAE-5", MNIST, -83.26, FIVE_THOUSAND, after="mnist-mem-vae"),
        Row("mnist-iwae-5-530", "IWAE-5, 530-530-100", MNIST, -84.43, FIVE_THOUSAND, after="mnist-vae-530"),
        Row("mnist-iwae-50", "IWAE-50", MNIST, -83.67, FIVE_THOUSAND, (GENERATION,), after="mnist-iwae-5"),
        Row("mnist-mem-iwae-50", "MEM-IWAE-50", MNIST, -82.84, FIVE_THOUSAND, (GENERATION,), after="mnist-mem-iwae-5"),
        Row("mnist-iwae-50-530", "IWAE-50, 530-530-100", MNIST, -83.58, FIVE_THOUSAND, after="mnist-iwae-5-530"),
        Row("ocr-vae", "VAE", OCR, -30.09, LETTERS),
        Row("ocr-mem-vae", "MEM-VAE", OCR, -29.09, LETTERS),
        Row("ocr-iwae-5", "IWAE-5", OCR, -28.69, LETTERS, after="ocr-vae"),
        Row("ocr-mem-iwae-5", "MEM-IWAE-5", OCR, -27.65, LETTERS, after="ocr-mem-vae"),
        Row("ocr-iwae-50", "IWAE-50", OCR, -27.60, LETTERS, main_schedule="letters-long", after="ocr-iwae-5"),
        Row(
            "ocr-mem-iwae-50",
            "MEM-IWAE-50",
            OCR,
            -26.90,
            LETTERS,
            main_schedule="letters-long",
            changes=SHORTER,
            after="ocr-mem-iwae-5",
        ),
        Row("frey-vae-b100", "VAE, batches of 100", FREY, 1308.0, FIVE_THOUSAND, (GENERATION,), quantity="elbo"),
        Row(
            "frey-mem-vae-b100", "MEM-VAE, batches of 100", FREY, 1330.0, FIVE_THOUSAND, (GENERATION,), quantity="elbo"
        ),
        Row("frey-vae-b10", "VAE, batches of 10", FREY, 1055.0, FIVE_THOUSAND, quantity="elbo"),
        Row("frey-mem-vae-b10", "MEM-VAE, batches of 10", FREY, 1240.0, FIVE_THOUSAND, quantity="elbo"),
    )
}

PAIRS = [
    ("mnist-mem-vae", "mnist-vae"),
    ("mnist-mem-vae", "mnist-vae-530"),
    ("mnist-mem-vae", "mnist-mem-vae-no-lre"),
    ("mnist-vae-lre", "mnist-vae"),
    ("mnist-mem-iwae-5", "mnist-iwae-5"),
    ("mnist-mem-iwae-5", "mnist-iwae-5-530"),
    ("mnist-mem-iwae-50", "mnist-iwae-50"),
    ("mnist-mem-iwae-50", "mnist-iwae-50-530"),
    ("ocr-mem-vae", "ocr-vae"),
    ("ocr-mem-iwae-5", "ocr-iwae-5"),
    ("ocr-mem-iwae-50", "ocr-iwae-50"),
    ("frey-mem-vae-b100", "frey-vae-b100"),
    ("frey-mem-vae-b10", "frey-vae-b10"),
]
"""Rows whose difference under the same schedule is taken image by image: with memory and without, with and without the
local reconstruction, and with as many parameters elsewhere."""

IMPUTATION_PAPER = {
    "rect-12": {"mnist-vae": 0.1403, "mnist-mem-vae": 0.1362},
    "rand-0.6": {"mnist-vae": 0.0194, "mnist-mem-vae": 0.0187},
    "half": {"mnist-vae": 0.0550, "mnist-mem-vae": 0.0539},
}
"""Table 2: mean squared error per missing pixel."""
SVM_PAPER = {"mnist-vae": 0.9790, "mnist-mem-vae": 0.9803}
SLOT_PAPER = (
    (0.27, 0.82, 0.33, 0.11, 0.34, 0.15, 0.49, 0.27, 0.09, 0.28),
    (0.24, 0.09, 0.06, 0.11, 0.30, 0.13, 0.12, 0.27, 0.09, 0.21),
    (0.18, 0.05, 0.06, 0.11, 0.07, 0.07, 0.05, 0.11, 0.09, 0.18),
)
"""VIS-MEM-VAE: preferences of the classes 0 ... 9 for their first, second and third slot."""

SLOT_SPLITS = ((90, 10), (70, 30), (50, 50), (30, 70), (10, 90))
"""Of 100 slots, layer 1 and layer 2."""
SWEEP = "slots"
"""The job that compares them on validation images."""

GROUPS: dict[str, tuple[str, ...]] = {
    "table1": tuple(name for name in ROWS if not name.startswith("frey")),
    "table2": ("mnist-vae", "mnist-mem-vae"),
    "frey": tuple(name for name in ROWS if name.startswith("frey")),
    "analysis": ("mnist-mem-vae", "mnist-vae", "mnist-vis-mem-vae", SWEEP),
    "all": (*ROWS, SWEEP),
}


def all_schedules() -> tuple[str, ...]:
    """The names of all trainings of any row."""
    return tuple(dict.fromkeys(name for row in ROWS.values() for name in row.schedules))


def expand(asked: Sequence[str]) -> list[str]:
    """Rows and groups as rows, each once, in order; none asked for means all.

    >>> expand(["table2", "mnist-vae"])
    ['mnist-vae', 'mnist-mem-vae']
    """
    names: list[str] = []
    for name in asked or ["all"]:
        if name not in GROUPS and name not in ROWS and name != SWEEP:
            raise unknown("row", name, (*GROUPS, *ROWS, SWEEP))
        names += GROUPS.get(name, (name,))
    return list(dict.fromkeys(names))
