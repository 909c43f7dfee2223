"""Missing values: p(x_mis | x_obs), by chains and by importance sampling.

    p(x_mis | x_obs) = integral of p(x_mis | z) p(z | x_obs) dz

Every method walks through states z_1, z_2, ... at one decoder pass each (methods.py), and the last `keep` of them stand
for p(z | x_obs), equally or by weight. Three answers follow from the states (answers.py): the mean of the missing
values, completions drawn from them, and, where the truth is known, its log-likelihood log mean_m p(x_mis | z_m).

Chains run in float64, and the noise belongs to the row: in float32 the last bit of a row depends on the rows beside it,
and a chain that accepts, or draws 0 or 1, magnifies a bit into another path.
"""

from memgen.tasks.imputation.answers import Imputation, join
from memgen.tasks.imputation.filling import check_incomplete, imputations, impute
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
    "State",
    "check_incomplete",
    "imputations",
    "impute",
    "join",
    "method_for",
]
