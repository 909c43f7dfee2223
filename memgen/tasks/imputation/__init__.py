"""Missing values: p(x_mis | x_obs), by chains and by importance sampling.

    p(x_mis | x_obs) = integral of p(x_mis | z) p(z | x_obs) dz

Every method generates states z_1, z_2, ... at one decoder pass each (methods.py). The last `keep` states, with or
without weights, represent p(z | x_obs). Three results are computed from them (answers.py): the mean of the missing
values, completions, and, if the true values are known, their log-likelihood log mean_m p(x_mis | z_m).

Chains run in float64, and the noise is fixed per row. In float32 the last bit of a row depends on the other rows of the
batch, and one bit can change whether a chain accepts a proposal or draws 0 or 1.
"""

from memgen.tasks.imputation.answers import Imputation, join
from memgen.tasks.imputation.filling import Settings, borders, check_incomplete, imputations, impute
from memgen.tasks.imputation.methods import (
    AUTHORS_BATCH,
    DEFAULT,
    DEFAULT_DRAWS,
    DEFAULT_MASKED,
    METHODS,
    Method,
    method_for,
)
from memgen.tasks.imputation.states import State

__all__ = [
    "AUTHORS_BATCH",
    "DEFAULT",
    "DEFAULT_DRAWS",
    "DEFAULT_MASKED",
    "METHODS",
    "Imputation",
    "Method",
    "Settings",
    "State",
    "borders",
    "check_incomplete",
    "imputations",
    "impute",
    "join",
    "method_for",
]
