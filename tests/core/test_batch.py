"""Batches, rows that are read by index, sums over rows, and layers as values."""

from __future__ import annotations

from dataclasses import dataclass

import torch

import memgen
from memgen.core.batch import UNKNOWN, Batch, Index, Rows, chunks
from memgen.core.rows import Moments, moments, normalise
from memgen.data import Dataset
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood
from memgen.tasks.features import features
from memgen.tasks.imputation import impute
from memgen.training.fit import fit
from memgen.training.statistics import collect_statistics


class FromDisk:
    """Rows that are made when they are asked for, and are never all there: row i says i in binary."""

    def __init__(self, n: int) -> None:
        self.n = n

    def __len__(self) -> int:
        return self.n

    def rows(self, index: Index) -> Batch:
        numbers = torch.arange(self.n)[index]
        return Batch(((numbers[:, None] >> torch.arange(6)) & 1).float(), label=numbers % 3)


@dataclass(frozen=True)
class OnDisk(Dataset):
    def split(self, name: str) -> Rows:
        return FromDisk(60)


RECIPE = Recipe().override(
    ["model.hidden=[8]", "model.latent=2", "training.epochs=2", "training.batch_size=20", "training.evaluate_every=0"]
)


def test_rows_that_are_read_by_index_give_what_those_in_memory_give() -> None:
    rows = FromDisk(60)
    whole = rows.rows(slice(None))
    weights, answers = [], []
    for source, data in ((rows, OnDisk("disk", torch.zeros(1, 6))), (whole, Dataset.of(whole))):
        model = build(RECIPE, 6)
        list(fit(model, data, RECIPE))
        collect_statistics(model, source)
        weights.append(torch.cat([value.flatten() for value in model.state_dict().values()]))
        masked = source if source is rows else Batch(whole.x)
        filled = impute(model, masked, "gibbs", steps=4).mean
        answers.append((log_likelihood(model, masked, 20).log_p, features(model, masked).mean, filled))
    assert weights[0].equal(weights[1])
    for a, b in zip(*answers, strict=True):
        assert a.equal(b)


def test_labels_travel_with_their_rows() -> None:
    x, label = torch.rand(5, 2), torch.tensor([4, 3, 2, 1, 0])
    data = Dataset("labelled", x, x[:3], labels={"train": label})
    both = data.split("train+valid").rows(torch.tensor([7, 1]))
    assert both.label is not None
    assert both.label.tolist() == [UNKNOWN, 3]
    assert both.x.equal(torch.stack([x[2], x[1]]))
    assert data.split("valid").rows(slice(None)).label is None
    assert data.fixed("train", 2).label is not None
    digits = memgen.dataset("digits")
    assert digits.fixed("test", 7).label is not None
    assert Dataset.of(Batch(x, label=label)).split("train").rows(slice(1)).label == torch.tensor([4])


def test_a_batch_keeps_what_is_observed() -> None:
    x = torch.tensor([[0.0, torch.nan], [1.0, 0.0]])
    batch = Batch.of(x)
    assert batch.values.equal(x) or batch.values.isnan().equal(x.isnan())
    assert Batch(torch.ones(2, 2), ~x.isnan()).values.isnan().equal(x.isnan())
    assert batch.rows(slice(1, 2)).observed is not None
    assert Batch.of(x.nan_to_num()).observed is None
    assert batch.to(x.double()).x.dtype is torch.float64
    assert [len(batch.rows(part)) for part in chunks(batch, 1)] == [1, 1]


def test_moments_of_chunks_are_those_of_all_rows_and_of_what_normalise_takes() -> None:
    h = torch.randn(4, 50, 3, generator=torch.Generator().manual_seed(0)) * 3 + 5
    gathered = Moments()
    for part in h.split([1, 3]):
        gathered.add(part)
    mean, variance = moments(h)
    torch.testing.assert_close(gathered.mean.float(), mean)
    torch.testing.assert_close(gathered.variance.float(), variance)
    torch.testing.assert_close(normalise(h, None, None, 0.0), (h - mean) / variance.sqrt(), atol=1e-5, rtol=1e-5)
