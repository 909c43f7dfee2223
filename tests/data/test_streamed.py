"""Rows that stay in a file: their splits, their order, training and scoring from them, and files that change."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import numpy as np
import pytest
import torch

from memgen.core.batch import Batch
from memgen.core.layers import batch_norms
from memgen.core.likelihoods import Mixed
from memgen.data import Dataset
from memgen.data import stored as stored_module
from memgen.data import streamed as streamed_module
from memgen.data.form import Form
from memgen.data.own import read_own
from memgen.data.streamed import Streamed
from memgen.errors import MemgenError
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood
from memgen.training.fit import stages
from memgen.training.order import draw_order, rows_of_steps, shuffled
from memgen.training.prepare import Prepared, adapt, prepare
from memgen.training.state import State, begin
from memgen.training.statistics import collect_statistics

ROWS = 1234
SPLITS = ("train", "valid", "test")
CHANGES = """
    model.hidden=[8] model.latent=2 model.mask=true training.epochs=2 training.batch_size=100
    training.evaluate_every=1 training.evaluate_rows=50 training.evaluate_samples=5
"""
RECIPE = Recipe().override(CHANGES.split())


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of 100 rows, two of which are shuffled together and four of which are in memory."""
    monkeypatch.setattr(stored_module, "BLOCK_BYTES", 1)
    monkeypatch.setattr(streamed_module, "WINDOW_BYTES", 1)


def values(rows: int = ROWS) -> np.ndarray:
    """The number of the row, a count, a positive number, two levels, a constant, and one with missing values."""
    chance = np.random.RandomState(0)
    x = np.stack(
        [
            np.arange(rows) - 0.5,
            chance.poisson(2 * chance.gamma(1.0, size=rows)),
            np.exp(2 * chance.randn(rows)),
            chance.randint(2, size=rows) * 3.0,
            np.full(rows, 0.1),
            np.where(chance.rand(rows) < 0.1, np.nan, chance.randn(rows)),
        ],
        1,
    )
    return x.astype(np.float32)


def table(folder: Path, rows: int = ROWS) -> Path:
    np.save(folder / "table.npy", values(rows))
    return folder / "table.npy"


def numbers(rows: Streamed, data: Dataset) -> list[int]:
    """Which rows of the file these are."""
    assert data.columns is not None
    first = data.columns.columns[0]
    column = rows.rows(slice(None)).x[:, 0].double().numpy() * first.scale + first.offset
    return (column + 0.5).round().astype(int).tolist()


def streamed(path: Path) -> Dataset:
    data = read_own(path, stream="yes")
    assert data.is_streamed
    return data


def ready(path: Path, *changes: str) -> Prepared:
    data = streamed(path)
    recipe = RECIPE.override(["model.likelihood=mixed", *changes])
    prepared = prepare(recipe, data, Form.of(data))
    adapt(prepared)
    return prepared


def test_splits_are_disjoint_exhaustive_and_from_every_block(tmp_path: Path) -> None:
    data = streamed(table(tmp_path))
    splits = {split: numbers(data.split(split), data) for split in SPLITS}  # type: ignore[arg-type]
    assert sorted(itertools.chain(*splits.values())) == list(range(ROWS))
    for split in ("valid", "test"):
        assert np.bincount(np.array(splits[split]) // 100, minlength=13).tolist() == [10] * 12 + [3]
    both = numbers(data.split("train+valid"), data)  # type: ignore[arg-type]
    assert sorted(both) == sorted(splits["train"] + splits["valid"])
    assert [data.count(split) for split in SPLITS] == [len(splits[split]) for split in SPLITS]
    assert sum(map(data.missing, SPLITS)) == np.isnan(values()).sum()


def test_rows_do_not_depend_on_which_blocks_are_in_memory(tmp_path: Path) -> None:
    rows = streamed(table(tmp_path)).split("train")
    everything = rows.rows(slice(None)).values
    chance = torch.Generator().manual_seed(0)
    for _ in range(20):
        chosen = torch.randint(len(rows), (70,), generator=chance)
        assert rows.rows(chosen).values.equal(everything[chosen]) or torch.equal(
            rows.rows(chosen).values.nan_to_num(9), everything[chosen].nan_to_num(9)
        )
    assert rows.rows(slice(5, 9)).values.nan_to_num(9).equal(everything[5:9].nan_to_num(9))


def test_the_schema_is_that_of_the_table_in_memory(tmp_path: Path) -> None:
    path = table(tmp_path)
    one, other = streamed(path).columns, read_own(path).columns
    assert one is not None
    assert other is not None
    assert [column[:2] for column in one.modelled] == [column[:2] for column in other.modelled]  # kind and levels
    assert [(c.format, c.step) for c in one] == [(c.format, c.step) for c in other]
    assert [(c.levels, c.why) for c in one] == [(c.levels, c.why) for c in other]
    assert one.columns[4].offset == other.columns[4].offset  # of a constant, which must not deviate from itself
    x = values()
    rows = streamed(path).split("train").rows(slice(None)).x.double().mean(0)
    assert abs(float(rows[0])) < 1e-3 < abs(float(np.nanmean(x[:, 0])))  # the offset is the mean of training rows


def test_an_epoch_has_every_row_once_from_few_blocks_at_a_time(tmp_path: Path) -> None:
    rows = streamed(table(tmp_path)).split("train")
    assert isinstance(rows, Streamed)
    windows = list(shuffled(rows, seed=5))
    assert torch.cat(windows).sort().values.equal(torch.arange(len(rows)))
    assert all(len(np.unique(np.searchsorted(rows.bounds, w.numpy(), side="right"))) <= 2 for w in windows)
    again, other = torch.cat(list(shuffled(rows, seed=5))), torch.cat(list(shuffled(rows, seed=6)))
    assert again.equal(torch.cat(windows))
    assert not again.equal(other)
    sizes = [100] * 9 + [len(rows) - 900]
    order = draw_order(rows, torch.Generator().manual_seed(1))
    steps = list(rows_of_steps(rows, order, sizes))
    assert [len(step) for step in steps] == sizes
    assert len(order) == 1
    assert all(a.equal(b) for a, b in zip(rows_of_steps(rows, order, sizes, 6), steps[6:], strict=True))


class Enough(Exception):
    """Stops a training."""


def stop_after(steps: int) -> object:
    def tick(state: State, of: int) -> None:
        if state.epoch * of + state.step == steps:
            raise Enough

    return tick


def test_a_resumed_training_ends_with_the_same_bits(tmp_path: Path) -> None:
    path = table(tmp_path, rows=500)
    whole = ready(path)
    *_, (epoch, _) = stages(whole, begin(whole.model, whole.recipe))
    assert epoch.valid_bound is not None
    first = ready(path)
    state = begin(first.model, first.recipe)
    with pytest.raises(Enough):
        list(stages(first, state, tick=stop_after(6)))  # type: ignore[arg-type]
    kept = {name: value.clone() for name, value in state.tensors().items()}
    assert max(value.numel() for name, value in kept.items() if name in ("order", "log")) < 100
    second = ready(path)
    again = begin(second.model, second.recipe)
    again.restore(kept)
    again.epoch, again.step = state.epoch, state.step
    list(stages(second, again))
    for name, value in whole.model.state_dict().items():
        assert value.equal(second.model.state_dict()[name]), name


def test_statistics_units_and_scores_are_those_of_the_rows_in_memory(tmp_path: Path) -> None:
    prepared = ready(table(tmp_path))
    model, rows = prepared.model, prepared.rows
    in_memory = rows.rows(slice(None))
    collect_statistics(model, rows)
    exact = [(norm.mean.clone(), norm.variance.clone()) for norm in batch_norms(model)]
    scores = log_likelihood(model, prepared.data.to_score("test"), samples=20)
    head = model.likelihood
    assert isinstance(head, Mixed)
    units = {name: value.clone() for name, value in head.named_buffers()}
    head.adapt(lambda: (in_memory.values,))
    for name, value in head.named_buffers():
        assert torch.allclose(value, units[name]), name
    collect_statistics(model, in_memory)
    for (mean, variance), norm in zip(exact, batch_norms(model), strict=True):
        assert torch.allclose(mean, norm.mean, atol=1e-5)
        assert torch.allclose(variance, norm.variance, rtol=1e-4)
    again = log_likelihood(model, Batch.of(prepared.data.rows("test")), samples=20)
    assert torch.allclose(scores.log_p, again.log_p, atol=1e-3)


@pytest.mark.parametrize("start", ["linear", "mean"])
def test_starting_values_come_from_the_file(tmp_path: Path, start: str) -> None:
    np.save(tmp_path / "x.npy", np.random.RandomState(0).randn(500, 4).astype(np.float32) + 3)
    data = streamed(tmp_path / "x.npy")
    likelihood = "mixed" if start == "linear" else "gaussian"
    recipe = RECIPE.override([f"model.likelihood={likelihood}", f"model.start={start}", "model.skip=true"])
    prepared = prepare(recipe, data, Form.of(data))
    adapt(prepared)
    if start == "mean":
        mean = prepared.model.p[0].head.mean.bias.detach()  # type: ignore[attr-defined]
        assert mean.allclose(data.rows("train").mean(0), atol=1e-5)
    collect_statistics(prepared.model, prepared.rows)
    assert log_likelihood(prepared.model, data.to_score("valid"), samples=10).log_p.isfinite().all()


def test_grey_levels_are_binarised_by_their_row_alone(tmp_path: Path) -> None:
    np.save(tmp_path / "scans.npy", np.random.RandomState(0).randint(0, 256, (300, 3, 2)).astype(np.uint8))
    data = read_own(tmp_path / "scans.npy", stream="yes", likelihood="bernoulli")
    assert data.stochastic
    assert data.shape == (3, 2)
    rows = data.to_score("test")
    everything = rows.rows(slice(None)).x
    assert everything.unique().tolist() == [0, 1]
    assert torch.cat([rows.rows(slice(i, i + 7)).x for i in range(0, len(rows), 7)]).equal(everything)
    assert data.to_score("test", 11).rows(slice(None)).x.equal(everything[:11])
    assert abs(float(everything.mean()) - float(data.rows("test").mean())) < 0.15


@pytest.mark.parametrize("change", ["shorter", "written", "gone"])
def test_a_file_that_changes_while_it_is_used_is_one_line(tmp_path: Path, change: str) -> None:
    path = table(tmp_path)
    prepared = ready(path)
    if change == "shorter":
        os.truncate(path, path.stat().st_size // 2)
    elif change == "written":
        os.utime(path, ns=(1, 1))
    else:
        path.unlink()
    with pytest.raises(MemgenError, match=r"changed while it was in use|cannot read") as caught:
        list(stages(prepared, begin(prepared.model, prepared.recipe)))
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_bad_values_are_told_with_the_row_of_the_file(tmp_path: Path) -> None:
    x = values()
    x[731, 5] = np.inf
    np.save(tmp_path / "x.npy", x)
    with pytest.raises(MemgenError, match=r"infinity in row 32 .rows are counted from row 701 of the file"):
        read_own(tmp_path / "x.npy", stream="yes")
    with pytest.raises(MemgenError, match="needs numbers above 0"):
        read_own(table(tmp_path), stream="yes", kinds={"column 1": "positive"})


def test_what_cannot_be_streamed_says_so(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b\n" + "1,2\n" * 20)
    np.save(tmp_path / "columns.npy", np.asfortranarray(values(50)))
    for name, words in (("a.csv", "cannot be streamed"), ("columns.npy", "column by column")):
        with pytest.raises(MemgenError, match=words) as caught:
            read_own(tmp_path / name, stream="yes")
        assert "\n" not in str(caught.value)
        assert name in str(caught.value)
    with pytest.raises(MemgenError, match="at least 10"):
        read_own(table(tmp_path, rows=9), stream="yes")
