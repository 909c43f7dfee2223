"""Tensors and records in, figures out."""

from memgen.figures.base import Figure as Figure
from memgen.figures.images import grid as grid
