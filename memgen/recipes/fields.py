"""The types of settings, each with the values that it may have."""

from __future__ import annotations

from typing import Annotated

from pydantic import BeforeValidator, ConfigDict, Field

from memgen.core.specification import LARGEST as LARGEST
from memgen.core.specification import Layer
from memgen.recipes.checks import list_of, list_of_lists

STRICT = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)

LONGEST = 1 << 53
"""Epochs, steps and seeds."""

WHOLE = "a list of whole numbers"
Counts = Annotated[
    tuple[tuple[Annotated[int, Field(ge=0, le=LARGEST)], ...], ...], BeforeValidator(list_of_lists(WHOLE, ()))
]
Sizes = Annotated[
    tuple[tuple[Annotated[int, Field(ge=1, le=LARGEST)], ...], ...], BeforeValidator(list_of_lists(WHOLE, ((),)))
]
"""One whole number per deterministic layer and level, from the data upwards."""
Weights = Annotated[
    tuple[tuple[Annotated[float, Field(ge=0)], ...], ...], BeforeValidator(list_of_lists("a list of numbers", ()))
]
Latent = Annotated[
    tuple[Annotated[int, Field(ge=1, le=LARGEST)], ...],
    BeforeValidator(list_of("a whole number, or a list of them with one per level", int)),
]
Layers = Annotated[
    tuple[Annotated[Layer, Field(discriminator="kind")], ...],
    BeforeValidator(list_of("a list of tables, one per layer")),
]
Texts = Annotated[tuple[str, ...], BeforeValidator(list_of("a list of texts"))]
