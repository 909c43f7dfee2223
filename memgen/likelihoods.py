"""Distributions over columns: p(x|z) of the data, and the Gaussians of all latent levels.

A *head* is a module (features, columns) that turns features into a distribution; a *distribution* knows per column its
log_prob, mean, mode and how a uniform number becomes a draw. The model sums over the columns that are observed, so
mixed tables, masks and categorical columns need no second path. The head also knows `encode(x)`, what Q sees of x, and
`check(x)`, which values the distribution can give a probability to.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from memgen.errors import MemgenError
from memgen.layers import linear
from memgen.native.functions import LOG_2PI, bernoulli_log_prob, reparameterise


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


def total_log_prob(
    p: Distribution, x: Float[Tensor, "B columns"], observed: Bool[Tensor, "B columns"] | None = None
) -> Float[Tensor, "*rows"]:
    """sum_d log p(x_d) over the observed columns."""
    if observed is not None:
        return p.log_prob(x.where(observed, 0)).where(observed, 0).sum(-1)
    if isinstance(p, BernoulliColumns) and p.bias is not None:
        return bernoulli_log_prob(p.products, p.bias, x)
    return p.log_prob(x).sum(-1)


def draw(p: Distribution, generator: torch.Generator) -> Float[Tensor, "*rows columns"]:
    """x ~ p, by one uniform number per column.

    >>> p = BernoulliColumns(torch.tensor([-200.0, 200.0]))
    >>> draw(p, torch.Generator().manual_seed(0))
    tensor([0., 1.])
    """
    u = torch.rand(p.mean.shape, generator=generator, device=generator.device, dtype=torch.float64)
    return p.icdf(u.to(p.mean))


@runtime_checkable
class Head(Protocol):
    """A module that turns features into a distribution."""

    columns: int
    """Number of columns of x."""
    encoded: int
    """Number of columns of encode(x)."""
    binary: bool
    """Whether x is 0 or 1, so that grey levels are to be read as probabilities."""

    def __call__(self, h: Float[Tensor, "*rows features"]) -> Distribution: ...

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]: ...

    def check(self, x: Float[Tensor, "*rows columns"]) -> None: ...


@dataclass(frozen=True)
class BernoulliColumns:
    """p(x_d = 1) = sigmoid(l_d), l = products + bias: the log-likelihood of whole rows is taken without storing l."""

    products: Float[Tensor, "*rows columns"]
    bias: Float[Tensor, " columns"] | None = None

    @cached_property
    def logits(self) -> Float[Tensor, "*rows columns"]:
        return self.products if self.bias is None else self.products + self.bias

    def log_prob(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """x*l - log(1 + e^l)"""
        return x * self.logits - F.softplus(self.logits)

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        return torch.sigmoid(self.logits)

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return (self.logits > 0).to(self.logits)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return (u >= torch.sigmoid(-self.logits)).to(self.logits)


@dataclass(frozen=True)
class GaussianColumns:
    """x_d ~ N(mean_d, exp(log_variance_d)); also every q(z|.) and p(z|.), the only kind of latent variable."""

    mean: Float[Tensor, "*rows columns"]
    log_variance: Float[Tensor, "*rows columns"]

    def log_prob(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        """-(log 2 pi + log s^2 + (x - m)^2 / s^2) / 2"""
        return -0.5 * (LOG_2PI + self.log_variance + (x - self.mean) ** 2 * torch.exp(-self.log_variance))

    def reparameterise(
        self, noise: Float[Tensor, "*noise columns"]
    ) -> tuple[Float[Tensor, "*noise columns"], Float[Tensor, "*noise"]]:
        """z = m + s*eps, and log q(z) of it, summed over the columns."""
        return reparameterise(self.mean, self.log_variance, noise)

    def detach(self) -> GaussianColumns:
        return GaussianColumns(self.mean.detach(), self.log_variance.detach())

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return self.mean

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        # A float can round to 0 or 1, whose quantiles are infinite.
        edge = torch.finfo(u.dtype).eps / 2
        return self.reparameterise(torch.special.ndtri(u.clamp(edge, 1 - edge)))[0]


@dataclass(frozen=True)
class CategoricalColumns:
    """x_d in {0, ..., C-1}, p(x_d = c) = softmax(l_d)_c. Values are codes, stored as floats like every other column."""

    logits: Float[Tensor, "*rows columns categories"]

    def log_prob(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        log_p = torch.log_softmax(self.logits, -1)
        code = x.long().expand(log_p.shape[:-1]).unsqueeze(-1)
        return log_p.gather(-1, code).squeeze(-1)

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        """The expected code; it has a meaning where the categories are ordered, such as grey levels (else: mode)."""
        codes = torch.arange(self.logits.shape[-1]).to(self.logits)
        return torch.softmax(self.logits, -1) @ codes

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return self.logits.argmax(-1).to(self.logits)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """The number of codes whose cumulative probability u has passed."""
        below = torch.softmax(self.logits, -1).cumsum(-1)[..., :-1]
        return (below <= u.unsqueeze(-1)).sum(-1).to(self.logits)


class Bernoulli(nn.Module):
    """A linear map to one logit per column.

    >>> head = Bernoulli(features=4, columns=3)
    >>> p = head(torch.zeros(2, 4))
    >>> p.mean[0]
    tensor([0.5000, 0.5000, 0.5000], grad_fn=<SelectBackward0>)
    """

    binary = True

    def __init__(self, features: int, columns: int) -> None:
        super().__init__()
        self.columns = self.encoded = columns
        self.logits = linear(features, columns)

    def forward(self, h: Float[Tensor, "*rows features"]) -> BernoulliColumns:
        return BernoulliColumns(F.linear(h, self.logits.weight), self.logits.bias)

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return x

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        if bool(((x < 0) | (x > 1)).any()):
            raise MemgenError(
                f"a Bernoulli likelihood needs values in [0, 1], these go from {x.min():g} to {x.max():g}; "
                "rescale them or choose another likelihood"
            )
        if not bool(((x == 0) | (x == 1)).all()):
            raise MemgenError(
                "a Bernoulli likelihood gives probabilities to 0 and 1 only, and these values lie between; say how "
                "they are binarised (memgen.binarise, or a Dataset with stochastic=True for training)"
            )


class Gaussian(nn.Module):
    """Two linear maps: to the mean and to the log-variance; sigma^2 = exp(raw) + floor^2.

    The floor keeps a column of nearly constant or integer values from buying an infinite density. It is added to the
    variance, not clamped, so that the gradient never vanishes at once.
    """

    binary = False

    def __init__(self, features: int, columns: int, floor: float = 0.0) -> None:
        super().__init__()
        self.columns = self.encoded = columns
        self.floor = floor
        self.mean = linear(features, columns)
        self.log_variance = linear(features, columns)

    def forward(self, h: Float[Tensor, "*rows features"]) -> GaussianColumns:
        raw = self.log_variance(h)
        if self.floor:
            raw = torch.logaddexp(raw, raw.new_tensor(2 * math.log(self.floor)))
        return GaussianColumns(self.mean(h), raw)

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return x

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        """Every real number has a density."""


class Categorical(nn.Module):
    """A linear map to one logit per column and category; Q sees the columns one-hot."""

    binary = False

    def __init__(self, features: int, columns: int, categories: int) -> None:
        super().__init__()
        self.columns = columns
        self.categories = categories
        self.encoded = columns * categories
        self.logits = linear(features, columns * categories)

    def forward(self, h: Float[Tensor, "*rows features"]) -> CategoricalColumns:
        return CategoricalColumns(self.logits(h).unflatten(-1, (self.columns, self.categories)))

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]:
        return F.one_hot(x.long(), self.categories).flatten(-2).to(x)

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        if not bool(((x >= 0) & (x < self.categories) & (x == x.floor())).all()):
            raise MemgenError(
                f"a categorical likelihood with {self.categories} categories needs whole numbers from 0 to "
                f"{self.categories - 1}, these values go from {x.min():g} to {x.max():g}"
            )


LIKELIHOODS: dict[str, Callable[..., nn.Module]] = {
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "categorical": Categorical,
}
"""name -> f(features, columns, **options), a module h -> Distribution."""


def check_values(head: Head, x: Float[Tensor, "rows columns"], what: str = "the data") -> None:
    """Refuse, in one line, values that the model cannot score."""
    if x.ndim != 2 or x.shape[0] == 0:
        raise MemgenError(f"{what} must be a table with at least one row, this has shape {tuple(x.shape)}")
    if x.shape[1] != head.columns:
        raise MemgenError(f"{what} has {x.shape[1]} columns, the model has {head.columns}")
    if not bool(x.isfinite().all()):
        row, column = (~x.isfinite()).nonzero()[0].tolist()
        raise MemgenError(f"{what} has a NaN or an infinity, first at row {row}, column {column}")
    try:
        head.check(x)
    except MemgenError as error:
        raise MemgenError(f"{what}: {error}") from None
