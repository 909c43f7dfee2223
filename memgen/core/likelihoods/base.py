"""What a distribution over columns is, and the head that makes one of features."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from memgen.errors import MemgenError


@runtime_checkable
class Distribution(Protocol):
    """Independent columns; every tensor is (..., columns), and log_prob broadcasts x against the parameters."""

    def log_prob(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]: ...

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]: ...

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]: ...

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """The value that a uniform number in (0, 1) stands for: one number per column makes one draw."""
        ...


def draw(p: Distribution, generator: torch.Generator) -> Float[Tensor, "*rows columns"]:
    """x ~ p, by one uniform number per column.

    >>> from memgen.core.likelihoods import BernoulliColumns
    >>> p = BernoulliColumns(torch.tensor([-200.0, 200.0]))
    >>> draw(p, torch.Generator().manual_seed(0))
    tensor([0., 1.])
    """
    u = torch.rand(p.mean.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return p.icdf(u.to(p.mean))


class Head(nn.Module):
    """Features to a distribution. This class holds what most likelihoods have in common: Q sees x as it is, every
    column is known by one number, and nothing is learnt from the rows before training.
    """

    binary = False
    """Whether x is 0 or 1, so that grey levels are to be read as probabilities."""

    def __init__(self, columns: int, encoded: int | None = None) -> None:
        super().__init__()
        self.columns = columns
        """Number of columns of x."""
        self.encoded = columns if encoded is None else encoded
        """Number of columns of encode(x)."""

    def forward(self, h: Float[Tensor, "*rows features"]) -> Distribution:
        raise NotImplementedError

    @property
    def owners(self) -> Int[Tensor, " encoded"]:
        """The column of x that each column of encode(x) comes from."""
        return torch.arange(self.columns).repeat_interleave(self.encoded // self.columns)

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]:
        """What Q sees of x."""
        return x

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        """Refuse values that have no probability; NaN, which stands for missing, is none of them."""

    def adapt(self, x: Float[Tensor, "rows columns"]) -> None:
        """Take the units of the columns from training rows; NaN is missing."""

    def start(self, weight: Float[Tensor, "encoded features"], mean: Float[Tensor, " encoded"], sigma: float) -> None:
        """Begin with E[encode(x)] = mean + weight h and deviation sigma, as nearly as the distribution can."""
        raise MemgenError(f"the likelihood {type(self).__name__} has no linear start; use model.start=random")

    def centre(self, mean: Float[Tensor, " columns"]) -> None:
        """Begin with E[x] = mean where the features are zero."""
        raise MemgenError(f"the likelihood {type(self).__name__} does not start at a mean; use model.start=random")

    def expected(self, p: Distribution) -> Float[Tensor, "*rows stated"]:
        """What is averaged over states to know a missing value: its mean, the probabilities of its categories."""
        return p.mean

    def decide(self, expected: Float[Tensor, "*rows stated"]) -> Float[Tensor, "*rows columns"]:
        """The value that stands for an average of `expected`."""
        return expected


@torch.no_grad()
def set_linear(linear: nn.Linear, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"]) -> None:
    """The last inputs get these weights, all others none."""
    linear.weight.zero_()
    linear.weight[:, linear.in_features - weight.shape[1] :] = weight
    linear.bias.copy_(bias)


def check_values(head: Head, x: Float[Tensor, "rows columns"], what: str = "the data", missing: bool = False) -> None:
    """Refuse, in one line, values that the model cannot score; with `missing` NaN stands for a missing value."""
    if x.ndim != 2 or x.shape[0] == 0:
        raise MemgenError(f"{what} must be a table with at least one row, this has shape {tuple(x.shape)}")
    if x.shape[1] != head.columns:
        raise MemgenError(f"{what} has {x.shape[1]} columns, the model has {head.columns}")
    bad = x.isinf() if missing else ~x.isfinite()
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        found = "an infinity" if missing else "a NaN or an infinity"
        hint = (
            "; if NaN stands for a missing value, model.mask=true reads incomplete rows"
            if bool(x.isnan().any())
            else ""
        )
        raise MemgenError(f"{what} has {found}, first at row {row}, column {column}{'' if missing else hint}")
    try:
        head.check(x)
    except MemgenError as error:
        raise MemgenError(f"{what}: {error}") from None
