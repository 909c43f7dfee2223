"""Tables: columns of different kinds, each with its own likelihood."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from memgen.core.likelihoods.base import Factorised, Head, IndependentColumns
from memgen.core.likelihoods.bernoulli import Bernoulli
from memgen.core.likelihoods.categorical import Categorical
from memgen.core.likelihoods.count import Count
from memgen.core.likelihoods.standard import LogNormalColumns, Positive, Real
from memgen.core.likelihoods.units import Unit
from memgen.errors import MemgenError, unknown

Kind = tuple[str, int]
"""A column's kind and, for a categorical column, the number of categories."""


@dataclass(frozen=True)
class MixedColumns(IndependentColumns):
    """Columns of several distributions, in the order of the table."""

    parts: tuple[Factorised, ...]
    places: tuple[Int[Tensor, " _"], ...]
    """The columns of each part."""
    back: Int[Tensor, " columns"]
    """The position of each column of the table among the joined columns of all parts."""

    def log_probs(self, x: Float[Tensor, "*batch columns"]) -> Float[Tensor, "*rows columns"]:
        return self._join(p.log_probs(x[..., index]) for p, index in zip(self.parts, self.places, strict=True))

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

    def _join(self, values: object) -> Tensor:
        return torch.cat(list(values), -1)[..., self.back]  # type: ignore[call-overload]


KINDS: dict[str, Callable[[int, int, float, int], Head]] = {
    "real": lambda features, columns, floor, levels: Real(features, columns, floor),
    "positive": lambda features, columns, floor, levels: Positive(features, columns, floor),
    "count": lambda features, columns, floor, levels: Count(features, columns),
    "binary": lambda features, columns, floor, levels: Bernoulli(features, columns),
    "categorical": Categorical.of_levels,
}
"""kind of a column -> f(features, columns, floor, levels), the head of all columns of that kind."""


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


ANSWERS: dict[str, Answer] = {
    "real": Answer(),
    "positive": Answer(_log_moments, _log_normal_mean, lambda head: 2 * head.columns),
    "count": Answer(),
    "binary": Answer(decide=lambda expected, columns: (expected > 0.5).to(expected)),
    "categorical": Answer(
        expected=lambda p: p.probabilities.flatten(-2),
        decide=lambda expected, columns: expected.unflatten(-1, (columns, -1)).argmax(-1).to(expected),
    ),
}
"""kind of a column -> its answer: the mean of a number or count, the most probable level of a category."""


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
        for kind, _ in kinds:
            if kind not in KINDS:
                raise unknown("kind of column", kind, KINDS)
        groups: dict[Kind, list[int]] = {}
        for column, (kind, levels) in enumerate(kinds):
            groups.setdefault((kind, levels if kind == "categorical" else 0), []).append(column)
        places = list(groups.values())
        heads = [KINDS[kind](features, len(index), floor, levels) for (kind, levels), index in groups.items()]
        super().__init__(columns, sum(head.encoded for head in heads))
        self.groups = [kind for kind, _ in groups]
        self.parts = nn.ModuleList(heads)
        for i, index in enumerate(places):
            self.register_buffer(f"places{i}", torch.tensor(index), persistent=False)
        order = torch.tensor([column for index in places for column in index])
        self.register_buffer("back", order.argsort(), persistent=False)

    back: Tensor

    @property
    def places(self) -> tuple[Int[Tensor, " _"], ...]:
        """The columns of each part."""
        return tuple(self.get_buffer(f"places{i}") for i in range(len(self.parts)))

    def forward(self, h: Float[Tensor, "*rows features"]) -> MixedColumns:
        return MixedColumns(tuple(part(h) for part in self.parts), self.places, self.back)

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
