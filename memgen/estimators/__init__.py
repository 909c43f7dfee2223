"""scikit-learn estimators: the density of a table's rows, a table without missing values, and Rubin's rules."""

from memgen.estimators.pooling import Pooled, pool
from memgen.estimators.table import MemDensity, MemImputer

__all__ = ["MemDensity", "MemImputer", "Pooled", "pool"]
