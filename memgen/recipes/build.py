"""From names to objects: the model of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch

from memgen.core.layers import NORMS
from memgen.core.likelihoods import LIKELIHOODS, Gaussian, Head
from memgen.core.likelihoods.mixed import Kind
from memgen.core.likelihoods.pixels import TOP
from memgen.core.model import DGM, Conditional
from memgen.core.noise import Purpose, stream
from memgen.core.specification import DenseSpec, LayerSpec, Reading, build_layers, output_of
from memgen.data import DATASETS
from memgen.data.form import Form
from memgen.errors import MemgenError
from memgen.recipes.settings import Model, Recipe


def levels_of(values: Sequence[Sequence[Any]], like: Sequence[Sequence[Any]], none: Any) -> list[list[Any]]:
    """`values` filled up where it is empty: one `none` per layer."""
    return [list(level) for level in values] if any(values) else [[none] * len(level) for level in like]


def likelihood_name(recipe: Recipe) -> str:
    """The likelihood, with "auto" looked up in the data set."""
    name = recipe.model.likelihood
    if name == "auto" and recipe.data.name not in DATASETS:
        raise MemgenError(
            f"model.likelihood auto is what the data ask for, and {recipe.data.name} must be read to know"
        )
    return DATASETS[recipe.data.name].likelihood if name == "auto" else name


def form_of(recipe: Recipe) -> Form:
    """The form of the rows as far as it is known without reading them: nothing is known of the user's own data.

    >>> form_of(Recipe()).shape
    (8, 8)
    """
    if recipe.data.name not in DATASETS:
        return Form()
    source = DATASETS[recipe.data.name]
    return Form(source.shape, levels=source.levels)


TABLE_FLOOR = 0.01
"""The least sigma of a table's real columns, in units of their standard deviations."""


def build(recipe: Recipe, columns: int | None = None, kinds: Sequence[Kind] = ()) -> DGM:
    """The model of a recipe, with starting values from its seed; `columns` of x if not those of its data set, and the
    `kinds` of a table's columns.

    >>> from memgen.core.model import count_parameters
    >>> count_parameters(build(Recipe.named("mnist-mem-vae")))
    1550084
    """
    settings = recipe.model
    if columns is None:
        if recipe.data.name not in DATASETS:
            raise MemgenError(f"how many columns {recipe.data.name} has is not known before it is read; give columns=")
        columns = DATASETS[recipe.data.name].columns
    heads: dict[str, dict[str, Any]] = {
        "gaussian": {"floor": settings.sigma_floor},
        "categorical": {"categories": settings.categories},
        "discretised_logistic": {"top": recipe.data.levels or TOP},
        "mixed": {"kinds": kinds, "floor": settings.sigma_floor or TABLE_FLOOR},
    }
    name = likelihood_name(recipe)
    if name == "mixed" and not kinds:
        raise MemgenError("the likelihood mixed is for tables, whose columns have kinds; these have none")
    likelihood = partial(LIKELIHOODS[name], **heads.get(name, {}))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(stream(recipe.stages[0].training.seed, Purpose.START_VALUES))
        try:
            return assemble(settings, columns, likelihood)
        except (RuntimeError, MemoryError) as error:  # torch reports a failed allocation as a RuntimeError
            raise MemgenError(f"cannot build this model: {str(error).splitlines()[0]}") from None


def layers_of(settings: Model) -> list[tuple[Sequence[LayerSpec], Sequence[LayerSpec]]]:
    """The layers of Q and P of every level, in the order in which they run.

    >>> layers_of(Recipe().override(["model.hidden=[3, 2]", "model.slots=[5, 0]"]).model)[0][1]
    [DenseSpec(units=2, slots=0, kind='dense'), DenseSpec(units=3, slots=5, kind='dense')]
    """
    if settings.encoder or settings.decoder:
        return [(settings.encoder, settings.decoder)]
    slots = levels_of(settings.slots, settings.hidden, 0)
    # P runs from z down to the data, so its layers are built from the last of `hidden` to the first.
    return [
        ([*map(DenseSpec, hidden)], [*map(DenseSpec, reversed(hidden), reversed(of_memory))])
        for hidden, of_memory in zip(settings.hidden, slots, strict=True)
    ]


def assemble(settings: Model, columns: int, likelihood: Callable[[int, int], Head]) -> DGM:
    """Q and P of every level. Level l lies between `below` (x or z_l) and z_{l+1}."""
    norm = partial(NORMS[settings.norm], epsilon=settings.norm_epsilon)
    reading = Reading(settings.attention, settings.composition, settings.top)
    q, p, below = [], [], columns
    for level, ((upwards, downwards), latent) in enumerate(zip(layers_of(settings), settings.latent, strict=True)):
        around_q, around_p = settings.skip and len(upwards) > 0, settings.skip and len(downwards) > 0
        make: Callable[[int, int], Head] = likelihood if level == 0 else Gaussian
        head = make(output_of(downwards, (latent,)) + around_p * latent, below)
        inputs = head.encoded + (columns if settings.mask and level == 0 else 0)
        q_layers, (features,) = build_layers(upwards, (inputs,), norm)
        p_layers, _ = build_layers(downwards, (latent,), norm, reading)
        q.append(Conditional(q_layers, Gaussian(features + around_q * inputs, latent), settings.skip))
        p.append(Conditional(p_layers, head, settings.skip))
        below = latent
    return DGM(q, p, settings.mask)
