"""The protocols of distributions over columns, and the base class of heads, which turn features into distributions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn

from memgen.core.likelihoods.units import Parts, Unit, units
from memgen.errors import MemgenError


@runtime_checkable
class Distribution(Protocol):
    """A distribution over the columns of x. Its parameters have leading axes `*rows`, against which x broadcasts."""

    def log_prob(
        self, x: Float[Tensor, "*batch columns"], observed: Bool[Tensor, "*batch columns"] | None = None
    ) -> Float[Tensor, "*rows"]:
        """log p of the observed columns of x; without `observed`, of all columns."""
        ...

    def sample(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """x ~ p, computed from one uniform number in (0, 1) per column."""
        ...


@runtime_checkable
class Factorised(Distribution, Protocol):
    """A distribution whose columns are independent, with the properties of single columns."""

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """log p(x_d) of every column."""
        ...

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]: ...

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]: ...

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """The quantile of every column at probability u."""
        ...

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """P(x_d <= x) of every column; x may be infinite."""
        ...


BISECTIONS = 64
"""Halvings of [0, 1] that determine a probability to the precision of float64."""


class IndependentColumns:
    """Base class of factorised distributions: log p(x) = sum_d log p(x_d), x_d = icdf(u_d)."""

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        raise NotImplementedError

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        raise NotImplementedError

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """The largest u with icdf(u) <= x, by bisection, for distributions without a closed form."""
        low = torch.zeros_like(self.log_probs(torch.zeros_like(x)))  # for its shape
        high = torch.ones_like(low)
        for _ in range(BISECTIONS):
            middle = (low + high) / 2
            below = self.icdf(middle) <= x
            low, high = torch.where(below, middle, low), torch.where(below, high, middle)
        return high.where(x < torch.inf, 1).where(x > -torch.inf, 0)

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
    """What tasks require of p(x|z) beside the distribution itself, such as a check of the values of x."""

    binary: bool
    """Whether x is 0 or 1; then grey levels are treated as probabilities."""
    columns: int
    """Number of columns of x."""
    encoded: int
    """Number of columns of encode(x)."""

    @property
    def owners(self) -> Int[Tensor, " encoded"]:
        """The column of x that each column of encode(x) comes from."""
        ...

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]:
        """x as the input of Q."""
        ...

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        """Raise an error for values outside the support of p. NaN stands for a missing value and is accepted."""
        ...

    def expected(self, p: Factorised) -> Float[Tensor, "*rows stated"]:
        """The statistics of p that imputation averages over states: a mean, or the probabilities of categories."""
        ...

    def decide(self, expected: Float[Tensor, "*rows stated"]) -> Float[Tensor, "*rows columns"]:
        """The imputed value for averaged statistics of `expected`."""
        ...


class Head(nn.Module):
    """A module that turns features into a distribution.

    The defaults of this class are those of most likelihoods: the input of Q is x, a column has one statistic (its
    mean), and nothing is estimated from the rows before training.
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
        """All values are valid."""

    def measured(self, x: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, "rows _"], ...]:
        """The quantities of which `set_units` needs mean and deviation over training rows; NaN is missing."""
        return ()

    def set_units(self, units: Sequence[Unit]) -> None:
        """Set the units of the columns, from those of the measured quantities."""

    def adapt(self, parts: Parts) -> None:
        """Set the units of the columns from training rows, which are given in parts and in which NaN is missing."""
        if self.measured(torch.empty(0, self.columns)):
            self.set_units(units(self.measured, parts))

    def start(self, weight: Float[Tensor, "encoded features"], mean: Float[Tensor, " encoded"], sigma: float) -> None:
        """Initialise so that E[encode(x)] = mean + weight h with deviation sigma, at least approximately."""
        raise MemgenError(f"the likelihood {type(self).__name__} has no linear start; use model.start=random")

    def centre(self, mean: Float[Tensor, " columns"]) -> None:
        """Initialise so that E[x] = mean where the features are zero."""
        raise MemgenError(f"the likelihood {type(self).__name__} does not start at a mean; use model.start=random")

    def expected(self, p: Factorised) -> Float[Tensor, "*rows stated"]:
        return p.mean

    def decide(self, expected: Float[Tensor, "*rows stated"]) -> Float[Tensor, "*rows columns"]:
        return expected


class Standardised(Head):
    """A head whose columns are standardised inside the model: the input of Q is (x - shift) / scale, with mean and
    deviation of the training rows."""

    shift: Tensor
    scale: Tensor

    def __init__(self, columns: int) -> None:
        super().__init__(columns)
        self.register_buffer("shift", torch.zeros(columns))
        self.register_buffer("scale", torch.ones(columns))

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return (x - self.shift) / self.scale

    def measured(self, x: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, "rows columns"]]:
        return (x,)

    def set_units(self, units: Sequence[Unit]) -> None:
        self.shift.copy_(units[0].mean)
        self.scale.copy_(units[0].deviation)


@torch.no_grad()
def set_linear(linear: nn.Linear, weight: Float[Tensor, "outputs inputs"], bias: Float[Tensor, " outputs"]) -> None:
    """Give the last inputs these weights, and all other inputs weight zero."""
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
    """Raise an error of one line for values that the model cannot score.

    With `missing` NaN stands for a missing value. `first` is the number of the first row of x in the data set."""
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
