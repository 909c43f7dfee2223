"""Distributions over columns: p(x|z) of the data, and the Gaussians of all latent levels.

A *head* is a module (features, columns) that turns features into a distribution. A *distribution* has two methods: log
p of the observed columns of x, and a sample from uniform numbers. Most are `Factorised`: their columns are independent,
and each has a mean, a mode and quantiles. Methods that need this call `factorised`. The head also has `encode(x)`, the
input of Q, and `check(x)`, which raises an error for values outside the support of the distribution.
"""

from __future__ import annotations

from collections.abc import Callable

from memgen.core.likelihoods.base import (
    Distribution,
    Factorised,
    Head,
    IndependentColumns,
    Likelihood,
    check_values,
    draw,
    factorised,
)
from memgen.core.likelihoods.bernoulli import Bernoulli, BernoulliColumns
from memgen.core.likelihoods.categorical import Categorical, CategoricalColumns
from memgen.core.likelihoods.count import Count
from memgen.core.likelihoods.gaussian import LOG_2PI, Gaussian, GaussianColumns
from memgen.core.likelihoods.heavy import HeavyTailed
from memgen.core.likelihoods.inflated import ZeroInflated
from memgen.core.likelihoods.integer import Integer
from memgen.core.likelihoods.mixed import KINDS, Described, Mixed
from memgen.core.likelihoods.ordinal import Ordinal
from memgen.core.likelihoods.pixels import DiscretisedLogistic
from memgen.core.likelihoods.restricted import Given, RestrictedColumns
from memgen.core.likelihoods.standard import Positive, Real

LIKELIHOODS: dict[str, Callable[..., Head]] = {
    "bernoulli": Bernoulli,
    "gaussian": Gaussian,
    "categorical": Categorical,
    "discretised_logistic": DiscretisedLogistic,
    "mixed": Mixed,
}
"""name -> f(features, columns, **options), a module h -> Distribution."""


__all__ = [
    "KINDS",
    "LIKELIHOODS",
    "LOG_2PI",
    "Bernoulli",
    "BernoulliColumns",
    "Categorical",
    "CategoricalColumns",
    "Count",
    "Described",
    "DiscretisedLogistic",
    "Distribution",
    "Factorised",
    "Gaussian",
    "GaussianColumns",
    "Given",
    "Head",
    "HeavyTailed",
    "IndependentColumns",
    "Integer",
    "Likelihood",
    "Mixed",
    "Ordinal",
    "Positive",
    "Real",
    "RestrictedColumns",
    "ZeroInflated",
    "check_values",
    "draw",
    "factorised",
]
