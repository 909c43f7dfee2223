"""Tables: columns of different kinds, each with its own likelihood."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Bool, Float, Float64, Int
from torch import Tensor, nn

from memgen.core.batch import Batch
from memgen.core.likelihoods.base import Factorised, Head, IndependentColumns
from memgen.core.likelihoods.bernoulli import Bernoulli
from memgen.core.likelihoods.categorical import Categorical
from memgen.core.likelihoods.count import Count
from memgen.core.likelihoods.heavy import HeavyTailed
from memgen.core.likelihoods.inflated import ZeroInflated, ZeroInflatedColumns
from memgen.core.likelihoods.integer import Integer
from memgen.core.likelihoods.ordinal import Ordinal
from memgen.core.likelihoods.restricted import Given, RestrictedColumns
from memgen.core.likelihoods.standard import LogNormalColumns, Positive, Real
from memgen.core.likelihoods.units import Unit
from memgen.errors import MemgenError, unknown


class Described(NamedTuple):
    """A column as the likelihood sees it. x is in units of `scale`: the user's value is scale x, up to an offset."""

    kind: str
    levels: int = 0
    """Of a categorical or ordinal column."""
    scale: float = 1.0
    step: float = 1.0
    """Of an integer column: the distance of neighbouring values, in units of x."""
    low: float = -math.inf
    """Draws lie in low < x <= high; the density does not end there."""
    high: float = math.inf


Kind = tuple[str, int] | Described
"""A column's kind and the number of its levels, or more than that."""


@dataclass(frozen=True)
class MixedColumns(IndependentColumns):
    """Columns of several distributions, in the order of the table.

    log p(x_d) = log p of the part - log scale_d is the log-density in the user's units. The constants are left out in
    training: in single precision they would change the rounding of the gradients, and a fit would depend on the units.
    """

    parts: tuple[Factorised, ...]
    places: tuple[Int[Tensor, " _"], ...]
    """The columns of each part."""
    back: Int[Tensor, " columns"]
    """The position of each column of the table among the joined columns of all parts."""
    log_scale: Float64[Tensor, " columns"]
    """Zero for probabilities, which have no unit, and in training."""
    atoms: Bool[Tensor, " columns"]
    """Which columns are zero with a probability above zero, and have a density elsewhere."""
    limits: Given
    """Of draws: no value is drawn that is smaller or larger than all observed ones."""

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        log_p = self._join(p.log_probs(x[..., index]) for p, index in zip(self.parts, self.places, strict=True))
        return log_p - log_units(self.log_scale, self.atoms, x).to(log_p)

    @property
    def mean(self) -> Float[Tensor, "*rows columns"]:
        """The mean of each column; for categories the expected code, which is meaningful if they are ordered."""
        return self._join(p.mean for p in self.parts)

    @property
    def mode(self) -> Float[Tensor, "*rows columns"]:
        return self._join(p.mode for p in self.parts)

    def icdf(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        return self._join(p.icdf(u[..., index]) for p, index in zip(self.parts, self.places, strict=True))

    def cdf(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        return self._join(p.cdf(x[..., index]) for p, index in zip(self.parts, self.places, strict=True))

    def sample(self, u: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows columns"]:
        """A draw from the distribution restricted to the limits."""
        if not bool(self.limits.ranged.any()):
            return self.icdf(u)
        return RestrictedColumns(self, self.limits).icdf(u).to(u)

    def _join(self, values: object) -> Tensor:
        return torch.cat(list(values), -1)[..., self.back]  # type: ignore[call-overload]


KINDS: dict[str, Callable[[int, Sequence[Described], float], Head]] = {
    "real": lambda features, columns, floor: Real(features, len(columns), floor),
    "positive": lambda features, columns, floor: Positive(features, len(columns), floor),
    "heavy_tailed": lambda features, columns, floor: HeavyTailed(features, len(columns), floor),
    "zero_inflated": lambda features, columns, floor: ZeroInflated(features, len(columns), floor),
    "count": lambda features, columns, floor: Count(features, len(columns)),
    "integer": lambda features, columns, floor: Integer(features, [column.step for column in columns], floor),
    "ordinal": lambda features, columns, floor: Ordinal(features, len(columns), columns[0].levels),
    "binary": lambda features, columns, floor: Bernoulli(features, len(columns)),
    "categorical": lambda features, columns, floor: Categorical(features, len(columns), columns[0].levels),
}
"""kind of a column -> f(features, columns, floor), the head of all columns of that kind and number of levels."""
LEVELLED = ("ordinal", "categorical")
"""Kinds whose heads depend on the number of levels."""
DENSITIES = ("real", "positive", "heavy_tailed", "zero_inflated")
"""Kinds with a density in the user's units; those of all others are probabilities, which have none."""


def log_scales(columns: Sequence[Described]) -> Float64[Tensor, " columns"]:
    """log scale of every column with a density, 0 of all others."""
    logarithms = [math.log(column.scale) if column.kind in DENSITIES else 0.0 for column in columns]
    return torch.tensor(logarithms, dtype=torch.float64)


def log_units(
    log_scale: Float64[Tensor, " columns"], atoms: Bool[Tensor, " columns"], x: Float[Tensor, "*batch columns"]
) -> Float[Tensor, "*batch columns"]:
    """What is subtracted from the log-density of each value of x, so that it is one in the user's units. The zeros of a
    column with an atom there have a probability, which has no unit."""
    return log_scale.to(x).expand_as(x).where(~atoms.to(x.device) | (x > 0), 0)


class Answer(NamedTuple):
    """How an imputed value is computed from several distributions of it: averaged statistics, and a decision."""

    expected: Callable[[Any], Tensor] = lambda p: p.mean
    decide: Callable[[Tensor, int], Tensor] = lambda expected, columns: expected
    width: Callable[[Head], int] = lambda head: head.encoded


def _log_moments(p: LogNormalColumns) -> Tensor:
    """E[log x] and E[log^2 x]. The mean of x itself would be dominated by the most extreme state."""
    mean = p.log.mean
    return torch.cat([mean, mean.square() + p.variance], -1)


def _log_normal_mean(expected: Tensor, columns: int) -> Tensor:
    mean, square = expected.split(columns, -1)
    return torch.exp(mean + 0.5 * (square - mean.square()).clamp_min(0))


def _inflated_moments(p: ZeroInflatedColumns) -> Tensor:
    """P(x > 0), and the moments of log x times this probability."""
    positive = torch.sigmoid(-p.logits)
    return torch.cat([positive, positive.repeat(*[1] * (positive.ndim - 1), 2) * _log_moments(p.positive)], -1)


def _inflated_mean(expected: Tensor, columns: int) -> Tensor:
    positive, moments = expected[..., :columns], expected[..., columns:]
    conditional = moments / positive.repeat(*[1] * (positive.ndim - 1), 2).clamp_min(torch.finfo(expected.dtype).tiny)
    return positive * _log_normal_mean(conditional, columns)


def _probabilities(p: Any) -> Tensor:
    flat: Tensor = p.probabilities.flatten(-2)
    return flat


ANSWERS: dict[str, Answer] = {
    "real": Answer(),
    "positive": Answer(_log_moments, _log_normal_mean, lambda head: 2 * head.columns),
    "heavy_tailed": Answer(),
    "zero_inflated": Answer(_inflated_moments, _inflated_mean, lambda head: 3 * head.columns),
    "count": Answer(),
    "integer": Answer(),
    "ordinal": Answer(
        _probabilities,
        lambda expected, columns: (expected.unflatten(-1, (columns, -1)).cumsum(-1) < 0.5).sum(-1).to(expected),
        lambda head: head.columns * cast(Ordinal, head).levels,
    ),
    "binary": Answer(decide=lambda expected, columns: (expected > 0.5).to(expected)),
    "categorical": Answer(
        _probabilities, lambda expected, columns: expected.unflatten(-1, (columns, -1)).argmax(-1).to(expected)
    ),
}
"""kind of a column -> its answer: the mean of a number or count, the median of ordered levels, the most probable level
of a category."""


class Mixed(Head):
    """One head per kind of column; log p(x|z) is the density in the units of the table.

    >>> head = Mixed(4, 3, [("real", 0), ("categorical", 5), ("real", 0)])
    >>> head(torch.zeros(2, 4)).log_probs(torch.tensor([[0.0, 3.0, 0.5]])).shape
    torch.Size([2, 3])
    >>> head.encoded
    7
    """

    def __init__(self, features: int, columns: int, kinds: Sequence[Kind], floor: float = 0.01) -> None:
        if len(kinds) != columns:
            raise MemgenError(f"there are {len(kinds)} kinds for {columns} columns")
        described = [kind if isinstance(kind, Described) else Described(*kind) for kind in kinds]
        groups: dict[tuple[str, int], list[int]] = {}
        for column, (kind, levels, *_) in enumerate(described):
            if kind not in KINDS:
                raise unknown("kind of column", kind, KINDS)
            groups.setdefault((kind, levels if kind in LEVELLED else 0), []).append(column)
        heads = [KINDS[kind](features, [described[i] for i in index], floor) for (kind, _), index in groups.items()]
        super().__init__(columns, sum(head.encoded for head in heads))
        self.groups = [kind for kind, _ in groups]
        self.parts = nn.ModuleList(heads)
        for i, index in enumerate(groups.values()):
            self.register_buffer(f"places{i}", torch.tensor(index), persistent=False)
        order = torch.tensor([column for index in groups.values() for column in index])
        self.register_buffer("back", order.argsort(), persistent=False)
        # No buffers, which would lose digits in single precision.
        self.log_scale = log_scales(described)
        self.atoms = torch.tensor([column.kind == "zero_inflated" for column in described])
        nothing = torch.full((columns,), torch.nan, dtype=torch.float64)
        ends = torch.tensor([column[-2:] for column in described], dtype=torch.float64)
        self.limits = Given(nothing, ends[:, 0], ends[:, 1])

    back: Tensor

    @property
    def places(self) -> tuple[Int[Tensor, " _"], ...]:
        """The columns of each part."""
        return tuple(self.get_buffer(f"places{i}") for i in range(len(self.parts)))

    def forward(self, h: Float[Tensor, "*rows features"]) -> MixedColumns:
        log_scale = torch.zeros_like(self.log_scale) if self.training else self.log_scale
        parts = tuple(part(h) for part in self.parts)
        return MixedColumns(parts, self.places, self.back, log_scale, self.atoms, self.limits)

    def log_unit(self, batch: Batch) -> Float[Tensor, " B"]:
        """What the log-density of each row in the user's units has less than the one that training maximises."""
        units = log_units(self.log_scale, self.atoms, batch.x)
        return units.sum(-1) if batch.observed is None else units.where(batch.observed, 0).sum(-1)

    @property
    def owners(self) -> Int[Tensor, " encoded"]:
        return torch.cat([index[part.owners.to(index)] for part, index in self._pairs()])

    def encode(self, x: Float[Tensor, "*rows columns"]) -> Float[Tensor, "*rows encoded"]:
        return torch.cat([part.encode(x[..., index]) for part, index in self._pairs()], -1)

    def check(self, x: Float[Tensor, "*rows columns"]) -> None:
        for part, index in self._pairs():
            part.check(x[..., index])

    def measured(self, x: Float[Tensor, "rows columns"]) -> tuple[Float[Tensor, "rows _"], ...]:
        return tuple(quantity for part, index in self._pairs() for quantity in part.measured(x[..., index]))

    def set_units(self, units: Sequence[Unit]) -> None:
        rest = iter(units)
        for part, index in self._pairs():
            part.set_units([next(rest) for _ in part.measured(torch.empty(0, len(index)))])

    def start(self, weight: Float[Tensor, "encoded features"], mean: Float[Tensor, " encoded"], sigma: float) -> None:
        widths = [part.encoded for part in self.parts]
        for (part, _), W, m in zip(self._pairs(), weight.split(widths), mean.split(widths), strict=True):
            part.start(W, m, sigma)

    def expected(self, p: Factorised) -> Float[Tensor, "*rows stated"]:
        assert isinstance(p, MixedColumns)
        return torch.cat([self._answer(i).expected(part) for i, part in enumerate(p.parts)], -1)

    def decide(self, expected: Float[Tensor, "*rows stated"]) -> Float[Tensor, "*rows columns"]:
        widths = [self._answer(i).width(head) for i, head in enumerate(cast("Iterable[Head]", self.parts))]
        parts = zip(expected.split(widths, -1), self.places, strict=True)
        decided = [self._answer(i).decide(e, len(index)) for i, (e, index) in enumerate(parts)]
        return torch.cat(decided, -1)[..., self.back]

    def _answer(self, part: int) -> Answer:
        return ANSWERS[self.groups[part]]

    def _pairs(self) -> list[tuple[Head, Tensor]]:
        return list(zip(self.parts, self.places, strict=True))  # type: ignore[arg-type]
