"""log p(x) of rows for which q(z|x) is a bad proposal, such as rows far from all training rows.

    log p(x) ~ log 1/K sum_k p(x, z_k) / r(z_k),    z_k ~ r(z) = sum_m a_m r_m(z)

The mixture r has q(z|x) with limited widths, the prior, and Gaussians around modes of p(x, z). Weights divide by the
density of the whole mixture (balance heuristic: Veach and Guibas, 1995), so that the estimate of p(x) is unbiased for
any parts, and the prior bounds the weights (defensive importance sampling: Hesterberg, 1995).

Whether a row needs it is decided by a pilot: a few samples of q, of q with limited widths and of the prior estimate

    ESS / K of q  =  1 / E_{p(z|x)}[p(x, z) / q(z|x)] * p(x)

The row is scored by the mixture if this is less than LEAST, otherwise by q alone. The noise of the pilot is independent
of the noise of both estimates, so the choice does not bias them. The mixture is a function of the row and of the noise
of the pilot.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol, TypeGuard, runtime_checkable

import torch
from jaxtyping import Bool, Float64, Int
from torch import Tensor

from memgen.core.batch import Batch
from memgen.core.likelihoods import GaussianColumns, Mixed
from memgen.core.model import DGM, Encoding, GenerativeModel, Levels
from memgen.core.noise import ExampleNoise, Purpose
from memgen.tasks.modes import GaussianAt, gaussians_at_modes

LEAST = 0.01
"""The smallest estimated ESS / K with which q is the proposal."""
PILOT = 20
"""Samples of each part of the pilot's mixture."""
WIDTHS = (1e-3, 0.03, 1.0)
"""Least standard deviations of q with limited widths; the largest is that of the prior, 1."""
FARTHEST = 1e6
"""The largest mean of q with limited widths."""
STARTS = 5
"""Samples of the pilot from which modes are searched."""
DISTANCES = (1.0, 3.0, 10.0)
"""Standard deviations of further points from which modes are searched, STARTS of each."""
MODES = 3
SCALES = (1.0, 2.0)
"""Factors on the standard deviations of the Gaussians around modes."""
AT_MODES = 0.7
"""Fraction of the mixture that the Gaussians around modes have together."""


@runtime_checkable
class Part(Protocol):
    """One proposal: z as a function of standard normal noise, and its density."""

    def sample(self, noise: Levels) -> Levels: ...

    def log_prob(self, z: Levels) -> Float64[Tensor, "K B"]: ...


@dataclass(frozen=True)
class FromQ:
    model: DGM
    encoding: Encoding

    def sample(self, noise: Levels) -> Levels:
        return self.model.infer(self.encoding, noise).z

    def log_prob(self, z: Levels) -> Float64[Tensor, "K B"]:
        return sum(self.model.log_q(self.encoding, z), torch.zeros(()))


@dataclass(frozen=True)
class FromPrior:
    model: DGM
    batch: Batch

    def sample(self, noise: Levels) -> Levels:
        return self.model.prior(noise, self.batch)

    def log_prob(self, z: Levels) -> Float64[Tensor, "K B"]:
        return sum(self.model.log_p_z(self.batch, z), torch.zeros(()))


@dataclass(frozen=True)
class AtMode:
    """A Gaussian over all levels together."""

    gaussian: GaussianAt
    sizes: tuple[int, ...]

    def sample(self, noise: Levels) -> Levels:
        return tuple(self.gaussian.sample(torch.cat(noise, -1)).split(self.sizes, -1))

    def log_prob(self, z: Levels) -> Float64[Tensor, "K B"]:
        return self.gaussian.log_prob(torch.cat(z, -1))


@dataclass(frozen=True)
class Mixture:
    parts: Sequence[Part]
    fractions: Float64[Tensor, " M"]
    noise: tuple[int, ...]
    """The numbers of normal variables that `sample` needs: per level, and one that chooses the part."""

    @staticmethod
    def of(sizes: tuple[int, ...], at_modes: Sequence[Part], others: Sequence[Part]) -> Mixture:
        fractions = [AT_MODES / len(at_modes)] * len(at_modes) + [(1 - AT_MODES) / len(others)] * len(others)
        return Mixture([*at_modes, *others], torch.tensor(fractions, dtype=torch.float64), (*sizes, 1))

    def sample(self, noise: Levels) -> Levels:
        """z of a part that is chosen by its fraction."""
        *normal, choice = noise
        index = torch.searchsorted(self.fractions.cumsum(0).to(choice), torch.special.ndtr(choice))
        z = tuple(normal)
        for m, part in enumerate(self.parts):
            draw = part.sample(tuple(normal))
            z = tuple(torch.where(index == m, new, old) for new, old in zip(draw, z, strict=True))
        return z

    def log_prob(self, z: Levels) -> Float64[Tensor, "K B"]:
        """log sum_m a_m r_m(z)"""
        fractions = self.fractions.log().to(z[0])
        return torch.stack([a + part.log_prob(z) for a, part in zip(fractions, self.parts, strict=True)]).logsumexp(0)


class Pilot(NamedTuple):
    """Samples of the pilot, and what they say about q."""

    z: Float64[Tensor, "K B n"]
    log_joint: Float64[Tensor, "K B"]
    efficiency: Float64[Tensor, " B"]
    """The estimate of ESS / K with q as proposal."""

    @property
    def needed(self) -> Bool[Tensor, " B"]:
        """The rows that need the mixture."""
        return ~(self.efficiency >= LEAST)

    def rows(self, index: Int[Tensor, " n"]) -> Pilot:
        return Pilot(self.z[:, index], self.log_joint[:, index], self.efficiency[index])


def defended(model: GenerativeModel) -> TypeGuard[DGM]:
    """Whether rows are scored with a pilot: those of tables, whose values may lie anywhere."""
    return isinstance(model, DGM) and isinstance(model.likelihood, Mixed)


@dataclass(frozen=True)
class Defence:
    """Pilots and mixtures for rows of one model, in float64 as their batches."""

    model: DGM
    seed: int

    @staticmethod
    def of(model: DGM, seed: int) -> Defence:
        return Defence(copy.deepcopy(model).double().eval().requires_grad_(False), seed)

    @torch.no_grad()
    def pilot(self, batch: Batch, keys: Sequence[int]) -> Pilot:
        """PILOT samples of q and of each part of the mixture that needs no modes."""
        parts = [FromQ(self.model, self.model.encode(batch)), *self.limited(batch)]
        noise = ExampleNoise(self.seed, keys, self.model.latent, Purpose.PILOT).block()
        pieces = zip(*(level.to(batch.x).split(PILOT) for level in noise), strict=True)
        draws = [part.sample(piece) for part, piece in zip(parts, pieces, strict=False)]
        z = tuple(torch.cat(level) for level in zip(*draws, strict=True))
        log_joint = self.log_joint(batch, z)
        densities = torch.stack([part.log_prob(z) for part in parts]).nan_to_num(nan=-torch.inf)
        log_w = finite(log_joint - densities.logsumexp(0) + math.log(len(parts)))
        log_mean = log_w.logsumexp(0) - math.log(len(log_w))
        # of q's weights, p(x)^2 times E_{p(z|x)}[p(x, z) / q(z|x)] / p(x)
        log_squares = (log_w + log_joint - densities[0]).logsumexp(0) - math.log(len(log_w))
        return Pilot(torch.cat(z, -1), log_joint, torch.exp(2 * log_mean - log_squares))

    @torch.no_grad()
    def mixture(self, batch: Batch, pilot: Pilot, keys: Sequence[int]) -> Mixture:
        """The proposal for rows that need it.

        Modes are searched twice, the second time from samples of the mixture around the modes found first: with layers
        of rectified linear units p(x, z) has ridges, on which Newton's method stops.
        """
        noise = ExampleNoise(self.seed, keys, (*self.model.latent, 1), Purpose.MODES)
        far = torch.cat(noise.block()[:-1], -1).to(batch.x).split(STARTS)
        starts = [best(pilot.z, pilot.log_joint), *(d * eps for d, eps in zip(DISTANCES, far, strict=False))]
        first = self.around_modes(batch, torch.cat(starts))
        z = first.sample(tuple(level.to(batch.x) for level in noise.block()))
        return self.around_modes(batch, best(torch.cat(z, -1), self.log_joint(batch, z)))

    def around_modes(self, batch: Batch, starts: Float64[Tensor, "S B n"]) -> Mixture:
        sizes = self.model.latent
        gaussians = gaussians_at_modes(partial(self.log_joint_beside, batch), starts, MODES, SCALES)
        return Mixture.of(sizes, [AtMode(gaussian, sizes) for gaussian in gaussians], self.limited(batch))

    def limited(self, batch: Batch) -> list[Part]:
        """q with limited widths, and the prior."""
        q, features = self.model.encode(batch)
        from_q = [FromQ(self.model, Encoding(limited(q, width), features)) for width in WIDTHS]
        return [*from_q, FromPrior(self.model, batch)]

    def log_weights(self, batch: Batch, mixture: Mixture, noise: Levels) -> Float64[Tensor, "K B"]:
        """log p(x, z) - log r(z)"""
        z = mixture.sample(tuple(level.to(batch.x) for level in noise))
        return finite(self.log_joint(batch, z) - mixture.log_prob(z))

    def log_joint(self, batch: Batch, z: Levels) -> Float64[Tensor, "K B"]:
        """log p(x, z)"""
        log_p_x, log_p_z, _ = self.model.joint(batch, z)
        return finite(sum(log_p_z, log_p_x))

    def log_joint_beside(self, batch: Batch, z: Float64[Tensor, "K B n"]) -> Float64[Tensor, "K B"]:
        """log p(x, z) of levels that are side by side."""
        return self.log_joint(batch, z.split(self.model.latent, -1))


def best(z: Float64[Tensor, "K B n"], log_joint: Float64[Tensor, "K B"]) -> Float64[Tensor, "S B n"]:
    """The STARTS points of every row with the highest log p(x, z)."""
    return z[log_joint.topk(STARTS, 0).indices, torch.arange(z.shape[1], device=z.device)]


def limited(q: GaussianColumns, width: float) -> GaussianColumns:
    """q with standard deviations from `width` to 1, at a finite place."""
    log_variance = q.log_variance.nan_to_num(0).clamp(2 * math.log(width), 0)
    return GaussianColumns(q.mean.nan_to_num(0).clamp(-FARTHEST, FARTHEST), log_variance)


def finite(log_w: Float64[Tensor, "K B"]) -> Float64[Tensor, "K B"]:
    """Samples so extreme that their weight is not a number get the weight zero."""
    return log_w.nan_to_num(nan=-torch.inf, posinf=-torch.inf)
