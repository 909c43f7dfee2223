"""Every row of the paper has its recipes, and rows that are compared are trained alike."""

from __future__ import annotations

from dataclasses import replace

import click
import pytest
import torch

import reproduction.__main__ as reproduction
from memgen.data import dataset
from memgen.recipes.settings import Recipe, recipe_names
from reproduction import pairs, rows
from reproduction.job import Job, Place
from reproduction.rows import GROUPS, PAIRS, ROWS, Row
from tests.conftest import needs_data
from tests.reproduction.commands import RESULTS, parsed


def test_every_row_of_the_paper_is_there() -> None:
    assert sorted(ROWS) == [name for name in recipe_names() if not name.startswith("digits")]
    assert len(ROWS) == 22
    assert set(GROUPS["all"]) - set(ROWS) == {rows.SWEEP}
    assert all(name in ROWS for pair in PAIRS for name in pair)
    mem = [name for name in ROWS if "mem" in name and "lre" not in name and "vis" not in name]
    assert all((name, name.replace("mem-", "")) in PAIRS for name in mem)


def test_every_schedule_can_be_asked_for() -> None:
    for schedule in rows.all_schedules():
        assert parsed("--schedule", schedule).schedule == schedule
    with pytest.raises(click.UsageError):
        parsed("--schedule", "another")


@pytest.mark.parametrize("row", ROWS.values(), ids=lambda row: row.name)
def test_every_training_ends_with_the_rows_model_and_loss(row: Row) -> None:
    paper = Recipe.named(row.name)
    for name, recipe in row.trainings.items():
        assert recipe.data == paper.data
        assert replace(recipe.model, start="random", norm_epsilon=paper.model.norm_epsilon) == paper.model
        last = recipe.objective
        assert replace(last, estimator="plain", kl_warmup_epochs=0.0) == paper.objective
        # All unbiased but for what batch norm does to them (docs/gradients.md).
        assert last.estimator in ("plain", "stl" if last.samples == 1 else "dreg")
        assert row.command(name).startswith(row.name)
        job = Job(row, name)
        assert len(job.chain) == len(recipe.stages) - 1
        assert [own.recipe.stages for own in job.chain] == [recipe.stages[: i + 1] for i in range(len(job.chain))]


UNLIKE = {("ocr-mem-iwae-50", "letters-long")}
"""Rows that have fewer epochs by a schedule than the other of their pair, and are not compared by it."""


@pytest.mark.parametrize("pair", PAIRS, ids="--".join)
def test_rows_that_are_compared_are_trained_alike(pair: tuple[str, str]) -> None:
    for schedule in ROWS[pair[0]].schedules:
        halves = [Job(ROWS[name], schedule) for name in pair]
        assert pairs.alike(halves) == ((pair[0], schedule) not in UNLIKE)
        if not pairs.alike(halves):
            assert pairs.difference(halves, Place(RESULTS, RESULTS)) is None
            continue
        first, second = (half.recipe for half in halves)
        assert first.training == second.training
        assert (first.objective.samples, first.data) == (second.objective.samples, second.data)


def test_the_group_of_faces_has_all_splits() -> None:
    def asked_for(*more: str) -> list[str]:
        return list(reproduction.jobs(parsed(*more)))

    splits = ["frey-vae-b10", *(f"frey-vae-b10-split{i}" for i in range(1, 5))]
    assert [name for name in asked_for("frey") if name.startswith("frey-vae-b10")][5:] == splits
    assert len(asked_for("frey")) == 20
    assert asked_for("frey-vae-b10") == splits[:1]
    assert asked_for("frey-vae-b10", "--splits") == splits
    assert asked_for("frey", "--status") == list(GROUPS["frey"])


@needs_data
def test_splits_of_frey_faces_are_others_of_the_same_faces() -> None:
    own, other = dataset("frey_faces"), dataset("frey_faces-1")
    assert own.test is not None
    assert other.test is not None
    assert not torch.equal(own.rows("test"), other.rows("test"))
    whole = [torch.cat([data.rows("train+valid"), data.rows("test")]) for data in (own, other)]
    assert torch.equal(*(faces[faces.double().pow(2).sum(1).argsort()].sum(0, dtype=torch.float64) for faces in whole))
