"""What a distribution over columns is, and the head that makes one of features."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from memgen.errors import MemgenError


@runtime_checkable
class Distribution(Protocol):
    """A distribution over the columns of x. Its parameters have leading axes `*rows`, against which x broadcasts."""

    def log_prob(
        self, x: Float[Tensor, "*batch columns"], observed: Bool[Tensor, "*batch columns"] | None = None
    ) -> Float[Tensor, "*rows"]:
        """log p of the observed columns of x; of all of them without `observed`."""
        ...

    def sample(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """x ~ p, made of one uniform number in (0, 1) per column."""
        ...


@runtime_checkable
class Factorised(Distribution, Protocol):
    """A distribution whose columns are independent: what a single column is like can be asked."""

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """log p(x_d) of every column."""
        ...

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]: ...

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]: ...

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """The value of every column below which it lies with probability u."""
        ...


class IndependentColumns:
    """What all factorised distributions have in common: log p(x) = sum_d log p(x_d), x_d = icdf(u_d)."""

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        raise NotImplementedError

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        raise NotImplementedError

    def log_prob(
        self, x: Float[Tensor, "*batch columns"], observed: Bool[Tensor, "*batch columns"] | None = None
    ) -> Float[Tensor, "*rows"]:
        """sum_d log p(x_d) over the observed columns."""
        if observed is None:
            return self.log_probs(x).sum(-1)
        return self.log_probs(x.where(observed, 0)).where(observed, 0).sum(-1)

    def sample(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return self.icdf(u)


def factorised(p: Distribution, what: str) -> Factorised:
    """p, for a method that needs a distribution with independent columns; `what` names the method in the error."""
    if not hasattr(p, "log_probs"):  # isinstance would compute the mean and the mode
        raise MemgenError(f"{what} needs a distribution with independent columns, and {type(p).__name__} has none")
    return cast(Factorised, p)


def draw(p: Distribution, shape: Sequence[int], generator: torch.Generator) -> Float[Tensor, "*rows columns"]:
    """x ~ p of this shape, in single precision.

    >>> from memgen.core.likelihoods import BernoulliColumns
    >>> p = BernoulliColumns(torch.tensor([-200.0, 200.0]))
    >>> draw(p, (2,), torch.Generator().manual_seed(0))
    tensor([0., 1.])
    """
    u = torch.rand(*shape, generator=generator, device=generator.device, dtype=torch.float64)
    return p.sample(u.float())


@runtime_checkable
class Likelihood(Protocol):
    """What tasks ask of p(x|z) beside the distribution itself: which values x may have, and what stands for them."""

    binary: bool
    """Whether x is 0 or 1, so that grey levels are to be read as probabilities."""
    columns: int
    """Number of columns of x."""
    encoded: int
    """Number of columns of encode(x)."""

    @property
    def owners(self) -> Int[Tensor, " encoded"]:
        """The column of x that each column of encode(x) comes from."""
        ...

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]:
        """What Q sees of x."""
        ...

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        """Refuse values that have no probability; NaN, which stands for missing, is none of them."""
        ...

    def expected(self, p: Factorised) -> Float[Tensor, "*rows stated"]:
        """What is averaged over states to know a missing value: its mean, the probabilities of its categories."""
        ...

    def decide(self, expected: Float[Tensor, "*rows stated"]) -> Float[Tensor, "*rows columns"]:
        """The value that stands for an average of `expected`."""
        ...


class Head(nn.Module):
    """Features to a distribution. This class holds what most likelihoods have in common: Q sees x as it is, every
    column is known by one number, and nothing is learnt from the rows before training.
    """

    binary: bool = False

    def __init__(self, columns: int, encoded: int | None = None) -> None:
        super().__init__()
        self.columns = columns
        self.encoded = columns if encoded is None else encoded

    def forward(self, h: Float[Tensor, "*rows features"]) -> Distribution:
        raise NotImplementedError

    @property
    def owners(self) -> Int[Tensor, " encoded"]:
        return torch.arange(self.columns).repeat_interleave(self.encoded // self.columns)

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]:
        return x

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        """Any value will do."""

    def adapt(self, x: Float[Tensor, "rows columns"]) -> None:
        """Take the units of the columns from training rows; NaN is missing."""

    def start(self, weight: Float[Tensor, "encoded features"], mean: Float[Tensor, " encoded"], sigma: float) -> None:
        """Begin with E[encode(x)] = mean + weight h and deviation sigma, as nearly as the distribution can."""
        raise MemgenError(f"the likelihood {type(self).__name__} has no linear start; use model.start=random")

    def centre(self, mean: Float[Tensor, " columns"]) -> None:
        """Begin with E[x] = mean where the features are zero."""
        raise MemgenError(f"the likelihood {type(self).__name__} does not start at a mean; use model.start=random")

    def expected(self, p: Factorised) -> Float[Tensor, "*rows stated"]:
        return p.mean

    def decide(self, expected: Float[Tensor, "*rows stated"]) -> Float[Tensor, "*rows columns"]:
        return expected


@torch.no_grad()
def set_linear(linear: nn.Linear, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"]) -> None:
    """The last inputs get these weights, all others none."""
    linear.weight.zero_()
    linear.weight[:, linear.in_features - weight.shape[1] :] = weight
    linear.bias.copy_(bias)


def check_values(
    likelihood: Likelihood,
    x: Float[Tensor, "rows columns"],
    what: str = "the data",
    missing: bool = False,
    first: int = 0,
) -> None:
    """Refuse, in one line, values that the model cannot score; with `missing` NaN stands for a missing value. `first`
    is the number of the first row, where there are others before it."""
    if x.ndim != 2 or x.shape[0] == 0:
        raise MemgenError(f"{what} must be a table with at least one row, this has shape {tuple(x.shape)}")
    if x.shape[1] != likelihood.columns:
        raise MemgenError(f"{what} has {x.shape[1]} columns, the model has {likelihood.columns}")
    bad = x.isinf() if missing else ~x.isfinite()
    if bool(bad.any()):
        row, column = bad.nonzero()[0].tolist()
        kind = "an infinity" if missing else "a NaN or an infinity"
        hint = (
            "; if NaN stands for a missing value, model.mask=true reads incomplete rows"
            if bool(x.isnan().any())
            else ""
        )
        place = f"first at row {first + row}, column {column}"
        raise MemgenError(f"{what} has {kind}, {place}{'' if missing else hint}")
    try:
        likelihood.check(x)
    except MemgenError as error:
        raise MemgenError(f"{what}: {error}") from None
