"""Starting values from the data.

model.start=mean: all weights are random, but the output begins at the mean of the rows, which otherwise costs the first
epochs. model.start=linear: a model with a linear path begins as probabilistic PCA.

    y = m + W z + sigma * noise,    z ~ N(0, I),    y = encode(x)

W and sigma have a closed form (Tipping and Bishop, 1999): with eigenvalues l_1 >= l_2 >= ... of the covariance of y and
eigenvectors u_i, w_i = sqrt(l_i - sigma^2) u_i, and sigma^2 is the mean of the eigenvalues that find no place. The
posterior of z given a complete row is Gaussian with independent entries, so Q is exact for it, too. With one latent
variable less than there are columns, that is the Gaussian with the full covariance of the rows. Training can start from
it (model.start=linear); the estimators keep it where training from random values brings no better model.
"""

from __future__ import annotations

import math
from typing import cast

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor

from memgen.core.likelihoods import Gaussian, Head
from memgen.core.likelihoods.base import set_linear
from memgen.core.model import DGM, GenerativeModel
from memgen.errors import MemgenError

ITERATIONS = 50
"""The most iterations of EM, which is used where values are missing."""
LEAST = 1e-4
"""The least sigma^2, in units of the standardised columns."""
TINY = 1e-8
"""Added to variances, so that a column that depends linearly on others leaves an invertible matrix."""
TOLERANCE = 1e-4
"""EM stops when no covariance changes by more than this, in units of the variance."""
CHUNK = 1 << 22
"""Numbers held at once by a step of EM."""


def start_mean(model: GenerativeModel, mean: Float[Tensor, " D"]) -> None:
    """Let p(x|z) begin around the mean of the rows, in which NaN stands for a column without values."""
    cast(Head, model.likelihood).centre(mean.nan_to_num())


@torch.no_grad()
def start_linear(model: GenerativeModel, x: Float[Tensor, "N D"]) -> None:
    """Give P and Q of the first level the values of probabilistic PCA of the rows x, in which NaN is missing.

    The layers keep their random values, but the heads give them weight zero.
    """
    if not isinstance(model, DGM) or not (model.p[0].skip and model.q[0].skip):
        raise MemgenError("model.start linear needs model.skip=true, the linear path around the layers")
    q, head = model.q[0], model.likelihood
    observed = ~x.isnan()
    y = head.encode(x.where(observed, 0)).double()
    mean, covariance = gaussian(y, observed[..., head.owners.to(x.device)])
    W, sigma = principal(covariance, model.latent[0])
    head.start(W.to(x), mean.to(x), sigma)
    spread = W.square().sum(0) + sigma**2  # W'W is diagonal
    back = W.T / spread.unsqueeze(1)
    mask = back.new_zeros(len(back), x.shape[1] if model.mask else 0)
    inner = cast(Gaussian, q.head)
    set_linear(inner.mean, torch.cat([back, mask], 1), -back @ mean)
    set_linear(inner.log_variance, torch.zeros_like(back), torch.log(sigma**2 / spread))


def principal(covariance: Float64[Tensor, "E E"], latent: int) -> tuple[Float64[Tensor, "E latent"], float]:
    """W and sigma.

    >>> W, sigma = principal(torch.diag(torch.tensor([4.0, 1.0, 0.5], dtype=torch.float64)), 1)
    >>> W.abs().squeeze(), round(sigma**2, 2)
    (tensor([1.8028, 0.0000, 0.0000], dtype=torch.float64), 0.75)
    """
    values, vectors = (part.flip(-1) for part in torch.linalg.eigh(covariance))
    used = min(latent, len(values) - 1)
    variance = max(float(values[used:].mean()), LEAST) if len(values) > 1 else 0.5 * float(values[0])
    W = covariance.new_zeros(len(values), latent)
    used = max(used, 1)
    W[:, :used] = vectors[:, :used] * (values[:used] - variance).clamp_min(0).sqrt()
    return W, math.sqrt(variance)


def gaussian(
    y: Float64[Tensor, "N E"], observed: Bool[Tensor, "N E"]
) -> tuple[Float64[Tensor, " E"], Float64[Tensor, "E E"]]:
    """The maximum-likelihood mean and covariance of incomplete rows, by EM.

    A missing value is filled by its conditional mean given the observed part of its row; its conditional covariance is
    added.
    """
    n, known = len(y), observed.to(y)
    mean = (y * known).sum(0) / known.sum(0).clamp_min(1)
    filled = torch.where(observed, y, mean)
    covariance = _regular((filled - mean).T @ (filled - mean) / n)
    if bool(observed.all()):
        return mean, covariance
    patterns, which = observed.unique(dim=0, return_inverse=True)
    for _ in range(ITERATIONS):
        before, extra = covariance, torch.zeros_like(covariance)
        counts = torch.bincount(which, minlength=len(patterns)).to(y)
        for chosen in torch.arange(len(patterns)).split(max(1, CHUNK // covariance.numel())):
            gain, rest = _regression(patterns[chosen], covariance)
            rows = ((which >= chosen[0]) & (which <= chosen[-1])).nonzero()[:, 0]
            known = torch.where(observed[rows], y[rows] - mean, 0.0)
            guess = mean + (gain[which[rows] - chosen[0]] @ known.unsqueeze(2)).squeeze(2)
            filled[rows] = torch.where(observed[rows], y[rows], guess)
            extra += torch.einsum("p,pij->ij", counts[chosen], rest)
        mean = filled.mean(0)
        covariance = _regular(((filled - mean).T @ (filled - mean) + extra) / n)
        if float((covariance - before).abs().max()) < TOLERANCE * float(covariance.diagonal().mean()):
            break
    return mean, covariance


def _regression(
    patterns: Bool[Tensor, "patterns E"], covariance: Float64[Tensor, "E E"]
) -> tuple[Float64[Tensor, "patterns E E"], Float64[Tensor, "patterns E E"]]:
    """For each pattern of observed columns: the matrix that predicts the missing values, and their conditional
    covariance."""
    both = patterns.unsqueeze(1) & patterns.unsqueeze(2)
    # Rows and columns of missing values become those of the identity: the inverse is then that of the observed part.
    seen = torch.where(both, covariance, torch.diag_embed((~patterns).to(covariance)))
    from_seen = torch.where(patterns.unsqueeze(2), covariance, 0.0)
    gain = torch.linalg.solve(seen, from_seen).mT
    missing = ~patterns
    rest = torch.where(missing.unsqueeze(1) & missing.unsqueeze(2), covariance - gain @ from_seen, 0.0)
    return gain, rest


def _regular(covariance: Float64[Tensor, "E E"]) -> Float64[Tensor, "E E"]:
    return covariance + TINY * torch.eye(len(covariance)).to(covariance)
