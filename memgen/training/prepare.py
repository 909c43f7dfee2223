"""A recipe, its data and its model, checked against each other once; later code does not check them again."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import cast

import numpy as np
import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from memgen.core.batch import CELLS, Batch, BlockRows, Rows, pieces
from memgen.core.layers import batch_norms
from memgen.core.likelihoods import Head
from memgen.core.likelihoods.units import Parts, units
from memgen.core.model import GenerativeModel
from memgen.data.dataset import Dataset
from memgen.data.form import Form
from memgen.errors import MemgenError
from memgen.recipes.build import build, form_of
from memgen.recipes.settings import Recipe
from memgen.training.batches import batch_sizes, byte_levels, check_rows
from memgen.training.initial import start_linear, start_mean


@dataclass(frozen=True)
class Prepared:
    """A recipe, its data and its model, checked to fit together."""

    recipe: Recipe
    """Its likelihood is never "auto"."""
    data: Dataset
    """As the model reads it: grey levels stand for probabilities under a Bernoulli likelihood only."""
    form: Form
    model: GenerativeModel = field(repr=False)
    rows: Rows = field(repr=False)
    """To train on."""
    levels: UInt8[Tensor, "N D"] | None = field(repr=False)
    """v of grey levels v/256 that are binarised anew in every epoch; None where any value is another."""
    sizes: tuple[tuple[int, ...], ...]
    """For every stage, the number of rows in each step of an epoch."""

    @property
    def steps(self) -> int:
        """The number of steps of the whole training."""
        return sum(s.training.epochs * len(sizes) for s, sizes in zip(self.recipe.stages, self.sizes, strict=True))

    def on(self, device: torch.device | str) -> Prepared:
        """The same on a device: the model, and the rows, if they are in memory, in the model's precision."""
        model = cast(GenerativeModel, cast(nn.Module, self.model).to(device))
        rows = self.rows.to(next(model.parameters())) if isinstance(self.rows, Batch) else self.rows
        levels = None if self.levels is None else self.levels.to(device)
        return replace(self, model=model, rows=rows, levels=levels)


def prepare(
    recipe: Recipe, data: Dataset | Batch, form: Form | None = None, model: GenerativeModel | None = None
) -> Prepared:
    """Check a recipe and its data, before a folder is made or an hour is spent; `form` of the rows, if they are not
    those of a data set; `model`, if it is there already.

    >>> from memgen.data import dataset
    >>> ready = prepare(Recipe.named("digits-vae"), dataset("digits"))
    >>> ready.recipe.model.likelihood, len(ready.sizes[0])
    ('bernoulli', 13)
    """
    data = data if isinstance(data, Dataset) else Dataset.of(data)
    recipe = with_likelihood(recipe, data.likelihood)
    form = form_of(recipe) if form is None else form
    model = build(recipe, data.train.shape[1], form.kinds) if model is None else model
    data = as_read_by(model, data)
    rows: Rows = data.split(recipe.data.train_on)
    check_rows(model, rows, data.stochastic, "the training data")
    if data.valid is not None and recipe.data.train_on == "train":
        check_rows(model, data.split("valid"), data.stochastic, "the validation data")
    sizes = tuple(tuple(batch_sizes(len(rows), stage.training)) for stage in recipe.stages)
    if batch_norms(model):
        _refuse_single_rows(recipe, len(rows), sizes)
    levels = byte_levels(rows.x) if data.stochastic and isinstance(rows, Batch) else None
    return Prepared(recipe, data, form, model, rows, levels, sizes)


def with_likelihood(recipe: Recipe, likelihood: str) -> Recipe:
    """The recipe with the likelihood of the data, if its own is "auto"."""
    if recipe.model.likelihood != "auto":
        return recipe
    return replace(recipe, model=replace(recipe.model, likelihood=likelihood))


def as_read_by(model: GenerativeModel, data: Dataset) -> Dataset:
    """The data as the model reads them: grey levels stand for probabilities under a Bernoulli likelihood only."""
    return replace(data, stochastic=data.stochastic and model.likelihood.binary)


def _refuse_single_rows(recipe: Recipe, rows: int, sizes: tuple[tuple[int, ...], ...]) -> None:
    for stage, of_stage in zip(recipe.stages, sizes, strict=True):
        if min(of_stage) < 2:
            raise MemgenError(
                f"batch norm needs two rows or more in every step, and of {rows:,} rows in batches of "
                f"{stage.training.batch_size} a step would have 1 sample; use a larger training.batch_size, or "
                "model.norm=layer"
            )


def adapt(ready: Prepared) -> None:
    """Adapt a model before its first step: the likelihood takes the units of the columns from the training rows, and
    with model.start mean or linear the starting values come from them."""
    model, start, rows = ready.model, ready.recipe.model.start, ready.rows
    weights = next(model.parameters())

    def parts() -> Iterator[Float[Tensor, "part columns"]]:
        return (rows.rows(part).to(weights).values for part in pieces(rows))

    if isinstance(model.likelihood, Head):
        model.likelihood.adapt(parts)
    if start == "linear":
        start_linear(model, some(rows).to(weights).values)
    elif start == "mean":
        start_mean(model, _mean(rows, parts).to(weights))


def _mean(rows: Rows, parts: Parts) -> Float[Tensor, " columns"]:
    if isinstance(rows, Batch):  # in single precision, on which the bits of published runs depend
        return rows.values.nanmean(0)
    return units(lambda x: (x,), parts)[0].mean


def some(rows: Rows) -> Batch:
    """All rows in memory; of a file the rows of blocks at equal distances, as many as CELLS values."""
    if not isinstance(rows, BlockRows):
        return rows.rows(slice(None))
    blocks, columns = len(rows.bounds) - 1, rows.rows(slice(1)).x.shape[1]
    fraction = min(1.0, CELLS / (len(rows) * columns))
    chosen = np.linspace(0, blocks - 1, max(1, int(fraction * blocks))).astype(np.int64)
    bounds = zip(rows.bounds[chosen].tolist(), rows.bounds[chosen + 1].tolist(), strict=True)
    return rows.rows(torch.cat([torch.arange(first, end) for first, end in bounds]))
