"""Distributions over columns: p(x|z) of the data, and the Gaussians of all latent levels.

A *head* is a module (features, columns) that turns features into a distribution; a *distribution* knows per column its
log_prob, mean, mode and how a uniform number becomes a draw. The model sums over the columns that are observed, so
mixed tables, masks and categorical columns need no second path. The head also knows `encode(x)`, what Q sees of x, and
`check(x)`, which values the distribution can give a probability to.
"""

from __future__ import annotations

from collections.abc import Callable

from jaxtyping import Bool, Float
from torch import Tensor

from memgen.core.likelihoods.base import Distribution, Head, check_values, draw
from memgen.core.likelihoods.bernoulli import Bernoulli, BernoulliColumns
from memgen.core.likelihoods.categorical import Categorical, CategoricalColumns
from memgen.core.likelihoods.count import Count
from memgen.core.likelihoods.gaussian import LOG_2PI, Gaussian, GaussianColumns
from memgen.core.likelihoods.mixed import KINDS, Mixed
from memgen.core.likelihoods.pixels import DiscretisedLogistic
from memgen.core.likelihoods.standard import Positive, Real

LIKELIHOODS: dict[str, Callable[..., Head]] = {
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "categorical": Categorical,
    "discretised_logistic": DiscretisedLogistic,
    "mixed": Mixed,
}
"""name -> f(features, columns, **options), a module h -> Distribution."""


def total_log_prob(
    p: Distribution, x: Float[Tensor, "B columns"], observed: Bool[Tensor, "B columns"] | None = None
) -> Float[Tensor, "*rows"]:
    """sum_d log p(x_d) over the observed columns."""
    if observed is not None:
        return p.log_prob(x.where(observed, 0)).where(observed, 0).sum(-1)
    return p.log_prob(x).sum(-1)


__all__ = [
    "KINDS",
    "LIKELIHOODS",
    "LOG_2PI",
    "Bernoulli",
    "BernoulliColumns",
    "Categorical",
    "CategoricalColumns",
    "Count",
    "DiscretisedLogistic",
    "Distribution",
    "Gaussian",
    "GaussianColumns",
    "Head",
    "Mixed",
    "Positive",
    "Real",
    "check_values",
    "draw",
    "total_log_prob",
]
