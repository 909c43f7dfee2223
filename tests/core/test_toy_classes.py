"""A model of classes: both nets see the label of the row."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from memgen.core.batch import Batch
from memgen.core.layers import NORMS, Dense
from memgen.core.likelihoods import Bernoulli, BernoulliColumns, Gaussian, Head
from memgen.core.model import Conditional, Encoding, Joint, Levels, Posterior, StandardPrior, Terms
from tests.exact import all_rows, check_density, check_training, prototypes


class OfClasses(StandardPrior, nn.Module):
    """q(z|x, y) and p(x|z, y) of two classes y; p(z) = N(0, 1)."""

    latent, mask = (1,), False

    def __init__(self) -> None:
        super().__init__()
        self.q = Conditional([Dense(6 + 2, 8, NORMS["batch"])], Gaussian(8, 1))
        self.p = Conditional([Dense(1 + 2, 8, NORMS["batch"])], Bernoulli(8, 6))

    @property
    def likelihood(self) -> Head:
        return self.p.head  # type: ignore[return-value]

    def encode(self, batch: Batch) -> Encoding:
        return Encoding(*self.q(beside(batch.x, batch)))

    def infer(self, encoding: Encoding, noise: Levels) -> Posterior:
        z, log_q = encoding.q.reparameterise(noise[0])
        return Posterior((z,), (log_q,), (encoding.features,))

    def log_q(self, encoding: Encoding, z: Levels, *, fixed: bool = False) -> Terms:
        return ((encoding.q.detach() if fixed else encoding.q).log_prob(z[0]),)

    def joint(self, batch: Batch, z: Levels) -> Joint:
        p, features = self.p(beside(z[0], batch))
        return Joint(p.log_prob(batch.x, batch.observed), self.log_p_z(batch, z), (features,))

    def decode(self, z: Levels, batch: Batch) -> BernoulliColumns:
        return self.p(beside(z[0], batch))[0]


def beside(h: Tensor, batch: Batch) -> Tensor:
    """h and the label, one of two; of a row of unknown class zeros."""
    assert batch.label is not None
    return torch.cat([h, F.one_hot(batch.label + 1, 3)[:, 1:].to(h).expand(*h.shape[:-1], -1)], -1)


def test_it_trains_and_is_a_density_for_every_class() -> None:
    torch.manual_seed(0)
    check_training(model := OfClasses(), prototypes(200, 6), "objective.estimator=stl", gain=0.5)
    of_class = [check_density(model, all_rows(6, label)) for label in (0, 1)]
    first = int((all_rows(6).x @ torch.tensor([1.0, 1, 1, -1, -1, -1])).argmax())  # the prototype of class 0
    assert of_class[0][first] > of_class[1][first] + 3
