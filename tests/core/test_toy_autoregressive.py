"""A head whose columns depend on each other: log_prob and sample, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from memgen.core.layers import NORMS, Dense
from memgen.core.likelihoods import BernoulliColumns, Gaussian, Head
from memgen.core.model import DGM, Conditional
from memgen.errors import MemgenError
from memgen.tasks.imputation import impute
from memgen.tasks.sampling import reconstruct, sample
from tests.exact import all_rows, check_density, check_training, prototypes


@dataclass(frozen=True)
class InOrder:
    """p(x) = prod_d p(x_d | x_1 ... x_{d-1}), p(x_d = 1 | ...) = sigmoid(l_d + sum_{j<d} W_dj x_j)."""

    logits: Tensor
    W: Tensor

    def given(self, x: Tensor) -> BernoulliColumns:
        return BernoulliColumns(self.logits + x @ self.W.tril(-1).T)

    def log_prob(self, x: Tensor, observed: Tensor | None = None) -> Tensor:
        assert observed is None or bool(observed.all()), "complete rows alone"
        return self.given(x).log_prob(x)

    def sample(self, u: Tensor) -> Tensor:
        x = torch.zeros_like(u)
        for d in range(u.shape[-1]):
            x[..., d] = self.given(x).icdf(u)[..., d]
        return x


class Autoregressive(Head):
    def __init__(self, features: int, columns: int) -> None:
        super().__init__(columns)
        self.logits, self.W = nn.Linear(features, columns), nn.Parameter(torch.zeros(columns, columns))

    def forward(self, h: Tensor) -> InOrder:
        return InOrder(self.logits(h), self.W)


def test_it_trains_is_a_density_and_tasks_that_need_more_say_so() -> None:
    torch.manual_seed(0)
    q, p = ([Dense(inputs, 8, NORMS["batch"])] for inputs in (6, 1))
    model = DGM([Conditional(q, Gaussian(8, 1))], [Conditional(p, Autoregressive(8, 6))])
    check_training(model, rows := prototypes(200, 6), "objective.samples=5", gain=0.7)
    assert float(model.likelihood.get_parameter("W").detach().abs().max()) > 0.1  # columns depend on each other
    check_density(model, all_rows(6))
    for task in (lambda: sample(model, 3), lambda: reconstruct(model, rows), lambda: impute(model, rows)):
        with pytest.raises(MemgenError, match="needs a distribution with independent columns, and InOrder has none"):
            task()
