"""scikit-learn estimators: the density of a table's rows, and a table without missing values."""

from memgen.estimators.table import MemDensity, MemImputer

__all__ = ["MemDensity", "MemImputer"]
