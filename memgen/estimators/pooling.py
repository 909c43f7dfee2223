"""Rubin's rules: one estimate, with its error, from the estimates of several completed tables."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from jaxtyping import Float64
from numpy.typing import ArrayLike, NDArray
from scipy.stats import t

from memgen.errors import MemgenError


class Pooled(NamedTuple):
    """Of each parameter; with M tables (Rubin, 1987, chapter 3)."""

    estimate: Float64[NDArray[np.float64], " *shape"]
    """The mean of the estimates."""
    variance: Float64[NDArray[np.float64], " *shape"]
    """T = W + (1 + 1/M) B."""
    within: Float64[NDArray[np.float64], " *shape"]
    """W, the mean of the variances of the estimates."""
    between: Float64[NDArray[np.float64], " *shape"]
    """B, the variance among the estimates."""
    freedom: Float64[NDArray[np.float64], " *shape"]
    """Degrees of freedom, (M - 1) (1 + W / ((1 + 1/M) B))^2, or those of Barnard and Rubin (1999)."""
    missing: Float64[NDArray[np.float64], " *shape"]
    """(1 + 1/M) B / T, the fraction of the variance that is due to missing values."""

    def interval(self, level: float = 0.95) -> Float64[NDArray[np.float64], "2 *shape"]:
        """The bounds that contain the parameter with probability `level`, by Student's distribution."""
        half = t.ppf((1 + level) / 2, self.freedom) * np.sqrt(self.variance)
        return np.stack([self.estimate - half, self.estimate + half])


def pool(estimates: ArrayLike, variances: ArrayLike, freedom: float = np.inf) -> Pooled:
    """Combine M estimates of the same parameters, one from each completed table, and the squares of their standard
    errors. `freedom`: the degrees of freedom that the estimate would have if nothing were missing, such as N - 1 of a
    mean; with few rows the interval is then the wider one of Barnard and Rubin (1999).

    >>> pooled = pool([1.0, 2.0, 3.0], [0.5, 0.5, 0.5])
    >>> print(pooled.estimate, pooled.within, pooled.between, pooled.variance.round(4))
    2.0 0.5 1.0 1.8333
    """
    q, u = np.asarray(estimates, dtype=np.float64), np.asarray(variances, dtype=np.float64)
    if q.shape != u.shape or q.ndim < 1 or len(q) < 2:
        raise MemgenError(
            "pool needs the estimates of at least 2 tables and as many variances, of the same shape; these have the "
            f"shapes {q.shape} and {u.shape}"
        )
    if not (np.isfinite(q).all() and np.isfinite(u).all() and (u >= 0).all()):
        raise MemgenError("estimates must be finite, and variances finite and at least 0")
    within, between = u.mean(0), q.var(0, ddof=1)
    extra = (1 + 1 / len(q)) * between
    variance = within + extra
    with np.errstate(divide="ignore", invalid="ignore"):
        missing = np.where(variance > 0, extra / variance, 0.0)
        many = np.where(missing > 0, (len(q) - 1) / missing**2, np.inf)
        if np.isfinite(freedom):
            observed = (freedom + 1) / (freedom + 3) * freedom * (1 - missing)
            many = 1 / (1 / many + 1 / observed)
    return Pooled(q.mean(0), variance, within, between, many, missing)
