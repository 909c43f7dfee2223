"""Functions that all tasks use, such as the check of their rows."""

from __future__ import annotations

from torch import nn

from memgen.core.batch import Rows, pieces
from memgen.core.likelihoods import check_values
from memgen.core.model import GenerativeModel
from memgen.errors import MemgenError


def check_rows(model: GenerativeModel, rows: Rows, what: str = "the data") -> None:
    """Raise an error of one line for rows that the model cannot score."""
    if not len(rows):
        raise MemgenError(f"{what} must be a table with at least one row, this has none")
    for part in pieces(rows):
        x = rows.rows(part).values
        check_values(model.likelihood, x, what, missing=model.mask, first=part.start)


def weights_of(model: GenerativeModel) -> nn.Parameter:
    """A parameter of the model, which shows its device and its precision."""
    return next(model.parameters())
