"""Tensors and records in, figures out."""

from memgen.report.figures.base import Figure as Figure
from memgen.report.figures.images import grid as grid
