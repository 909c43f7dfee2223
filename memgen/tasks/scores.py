"""The error of an imputation, with its standard error."""

from __future__ import annotations

import math
from typing import NamedTuple

from jaxtyping import Bool, Float, Float64
from torch import Tensor


class SquaredError(NamedTuple):
    """Squared error per missing value."""

    mean: float
    standard_error: float
    """Over rows; NaN for a single row."""
    missing: int
    """Number of missing values."""


def squared_error(
    guess: Float[Tensor, "N D"], truth: Float[Tensor, "N D"], missing: Bool[Tensor, "N D"]
) -> SquaredError:
    """sum of squares / number of missing values, and the standard error of that ratio over rows (whose numbers of
    missing values may differ): sqrt(N/(N-1) sum_i (s_i - m_i * mse)^2) / sum_i m_i.

    >>> import torch
    >>> squared_error(torch.ones(2, 3), torch.zeros(2, 3), torch.eye(2, 3).bool())
    SquaredError(mean=1.0, standard_error=0.0, missing=2)
    """
    squares = _squares(guess, truth, missing)
    counts = missing.sum(-1).double()
    total, rows = float(counts.sum()), len(squares)
    if not total:
        return SquaredError(math.nan, math.nan, 0)
    mean = float(squares.sum()) / total
    spread = float(((squares - counts * mean) ** 2).sum())
    error = math.sqrt(rows / (rows - 1) * spread) / total if rows > 1 else math.nan
    return SquaredError(mean, error, int(total))


def row_errors(
    guess: Float[Tensor, "N D"], truth: Float[Tensor, "N D"], missing: Bool[Tensor, "N D"]
) -> Float64[Tensor, " N"]:
    """Squared errors of each row, scaled so that their mean is the error per missing value, for paired comparisons."""
    return _squares(guess, truth, missing) / missing.sum(-1).double().mean()


def _squares(
    guess: Float[Tensor, "N D"], truth: Float[Tensor, "N D"], missing: Bool[Tensor, "N D"]
) -> Float64[Tensor, " N"]:
    return ((guess.double() - truth.double()) ** 2).where(missing, 0).sum(-1)


def comparable(
    guess: Float[Tensor, "N D"], truth: Float[Tensor, "N D"], levelled: Bool[Tensor, " D"], train: Float[Tensor, "M D"]
) -> tuple[Float64[Tensor, "N D"], Float64[Tensor, "N D"]]:
    """Guess and truth of columns of several kinds on scales on which their differences can be added: numbers in units
    of the standard deviation of their column over the rows `train` (NaN is missing), levels as wrong (1) or right (0).

    >>> import torch
    >>> levelled, train = torch.tensor([False, True]), torch.tensor([[0.0, 1.0], [4.0, 2.0]])
    >>> comparable(torch.tensor([[6.0, 2.0]]), torch.tensor([[2.0, 1.0]]), levelled, train)
    (tensor([[3., 1.]], dtype=torch.float64), tensor([[1., 0.]], dtype=torch.float64))
    """
    known, values = ~train.isnan(), train.double().nan_to_num()
    n = known.sum(0).clamp_min(1)
    mean = values.sum(0) / n
    deviation = (((values - mean) ** 2).where(known, 0).sum(0) / n).sqrt()
    unit = deviation.where(deviation > 0, 1)
    guess, truth = guess.double(), truth.double()
    wrong = (guess != truth).double()
    return (guess / unit).where(~levelled, wrong), (truth / unit).where(~levelled, 0)
