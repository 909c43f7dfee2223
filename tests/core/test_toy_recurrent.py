"""A recurrent model in the manner of DRAW: two steps look at what is still missing and add to a canvas."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from memgen.core.batch import Batch
from memgen.core.layers import NORMS, Dense
from memgen.core.likelihoods import Bernoulli, BernoulliColumns, Gaussian, GaussianColumns, Head
from memgen.core.model import Conditional, Joint, Levels, Posterior, StandardPrior, Terms, as_constant
from tests.exact import all_rows, check_density, check_training, prototypes


class TwoSteps(StandardPrior, nn.Module):
    """c_t = c_{t-1} + write(z_t), z_t ~ q(z_t | x, x - sigmoid(c_{t-1})); p(x|z): logits c_2; p(z_t) = N(0, 1)."""

    latent, mask = (1, 1), False

    def __init__(self) -> None:
        super().__init__()
        self.read = Conditional([Dense(12, 10, NORMS["layer"])], Gaussian(10, 1))
        self.write = Conditional([Dense(1, 10, NORMS["layer"])], Bernoulli(10, 6))

    @property
    def likelihood(self) -> Head:
        return self.write.head  # type: ignore[return-value]

    def encode(self, batch: Batch) -> Tensor:
        return batch.x

    def infer(self, x: Tensor, noise: Levels) -> Posterior:
        canvas, steps = torch.zeros(len(noise[0]), *x.shape), []
        for eps in noise:
            steps.append(self.look(x, canvas).reparameterise(eps))
            canvas = canvas + self.write(steps[-1][0])[0].logits
        z, log_q = zip(*steps, strict=True)
        return Posterior(z, log_q, ())

    def look(self, x: Tensor, canvas: Tensor, fixed: bool = False) -> GaussianColumns:
        h = torch.cat([x.expand_as(canvas), x - torch.sigmoid(canvas)], -1)
        return (as_constant(self.read, h) if fixed else self.read(h))[0]

    def log_q(self, x: Tensor, z: Levels, *, fixed: bool = False) -> Terms:
        first = self.write(z[0])[0].logits
        canvases = torch.zeros_like(first), first
        return tuple(self.look(x, c, fixed).log_prob(z_t) for c, z_t in zip(canvases, z, strict=True))

    def joint(self, batch: Batch, z: Levels) -> Joint:
        return Joint(self.decode(z, batch).log_prob(batch.x, batch.observed), self.log_p_z(batch, z), ())

    def decode(self, z: Levels, batch: Batch) -> BernoulliColumns:
        return BernoulliColumns(sum(self.write(z_t)[0].logits for z_t in z))


def test_it_trains_and_is_a_density() -> None:
    torch.manual_seed(0)
    check_training(model := TwoSteps(), prototypes(200, 6), "objective.samples=4", "objective.estimator=dreg", gain=0.7)
    check_density(model, all_rows(6))
