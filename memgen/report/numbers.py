"""The numbers of a report for programs."""

from __future__ import annotations

from typing import Any

from memgen.report.gather import Gathered, paired_difference
from memgen.tasks.density import standard_error


def numbers(one: Gathered) -> dict[str, Any]:
    """The numbers of one run."""
    bits = one.bits
    return {
        "run": str(one.subject.run.folder),
        "log_likelihood": one.likelihood.mean,
        "standard_error": one.likelihood.standard_error,
        "elbo": float(one.likelihood.elbo.mean()),
        "bits_per_dimension": None if bits is None else bits.mean,
        "bits_per_dimension_standard_error": None if bits is None else bits.standard_error,
        "examples": len(one.likelihood.log_p),
        "imputation": {
            pattern: {
                "mse": filled.error.mean,
                "standard_error": filled.error.standard_error,
                "effective_states": filled.effective,
            }
            for pattern, filled in one.imputation.items()
        },
    }


def difference(a: Gathered, b: Gathered) -> dict[str, float] | None:
    """log p(x) of b minus that of a, paired over rows."""
    values = paired_difference(a, b)
    return None if values is None else {"mean": float(values.mean()), "standard_error": standard_error(values)}
