"""The results of a model: samples, the terms of log w, and features."""

from __future__ import annotations

from typing import NamedTuple

from jaxtyping import Float
from torch import Tensor

from memgen.core.layers import Activation
from memgen.core.likelihoods import GaussianColumns

Levels = tuple[Float[Tensor, "K B _"], ...]
"""z or its noise: one tensor per stochastic level, from the data upwards, of any width."""
Codes = tuple[Float[Tensor, "*rows _"], ...]
"""z with any number of leading axes, the last of which has the rows of a batch."""
Terms = tuple[Float[Tensor, "K B"], ...]
"""One term of log w per stochastic level."""


class Encoding(NamedTuple):
    """q(z_1|x) and the features of its net: the part of Q that does not depend on K."""

    q: GaussianColumns
    features: tuple[Activation, ...]


class Posterior(NamedTuple):
    """Samples of Q, from the data upwards."""

    z: Levels
    log_q: Terms
    up: tuple[tuple[Activation, ...], ...]


class Joint(NamedTuple):
    """The terms of log p(x, z), from the data upwards."""

    log_p_x: Float[Tensor, "K B"]
    log_p_z: Terms
    down: tuple[tuple[Activation, ...], ...]


class Inference(NamedTuple):
    """All terms of log w, and the features that the local reconstruction compares.

    `up` are the features of Q and `down` those of P, per level and both listed from the data upwards, so that the local
    reconstruction compares the entries with the same index.
    """

    z: Levels
    log_p_x: Float[Tensor, "K B"]
    log_p_z: Terms
    log_q: Terms
    up: tuple[tuple[Activation, ...], ...]
    down: tuple[tuple[Activation, ...], ...]

    @staticmethod
    def of(posterior: Posterior, joint: Joint) -> Inference:
        """The terms of log w from the results of `infer` and `joint`."""
        return Inference(posterior.z, joint.log_p_x, joint.log_p_z, posterior.log_q, posterior.up, joint.down)

    @property
    def log_w(self) -> Float[Tensor, "K B"]:
        """log p(x|z) + log p(z) - log q(z|x)"""
        return self.tempered(1.0)

    def tempered(self, beta: float) -> Float[Tensor, "K B"]:
        """log p(x|z) + beta * (log p(z) - log q(z|x)).

        beta < 1 while the KL term is warmed up. Reported bounds on log p(x) always have beta = 1."""
        ratio = sum(self.log_p_z[1:], self.log_p_z[0]) - sum(self.log_q[1:], self.log_q[0])
        return self.log_p_x + (ratio if beta == 1.0 else beta * ratio)
