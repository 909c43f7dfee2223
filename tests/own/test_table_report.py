"""What a report says about rows drawn from a model of a table."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from memgen.report.synthetic import DRAWS, associations, closest, coverage, cramers_v, distances
from memgen.tasks.sampling import sample
from tests.command import told
from tests.tasks.test_defensive import rows, trained

LEVELLED = np.array([False, True])


def table(n: int, seed: int = 0) -> NDArray[np.float64]:
    """A number, and a level that follows from its sign."""
    x = np.random.default_rng(seed).normal(size=n)
    return np.stack([x, (x > 0).astype(float)], 1)


def test_distances_are_those_of_the_distributions() -> None:
    """A shift of a uniform column by a quarter; a level 30% more frequent; and 0 for the same rows in another order."""
    x = np.stack([np.linspace(0, 1, 1000), np.arange(1000) % 10 < 5], 1)
    y = np.stack([np.linspace(0.25, 1.25, 1000), np.arange(1000) % 10 < 8], 1)
    np.testing.assert_allclose(distances(y, x, LEVELLED), [0.25, 0.3], atol=0.002)
    np.testing.assert_array_equal(distances(x[::-1], x, LEVELLED), [0, 0])
    x[::2, 0] = np.nan  # missing values count for nothing
    assert distances(x, y, LEVELLED)[0] == pytest.approx(0.25, abs=0.01)


def test_associations_of_dependent_and_independent_columns() -> None:
    a = np.repeat([0.0, 0.0, 1.0, 1.0], 25)
    b = np.tile([0.0, 1.0], 50)
    assert cramers_v(a, b) == pytest.approx(0, abs=0.03)
    assert cramers_v(a, 7 - a) == 1
    assert cramers_v(a, np.zeros(100)) == 0
    x = table(2000)
    matrix = associations(x, x, LEVELLED)
    assert matrix[0, 1] == matrix[1, 0] > 0.85  # the middle fifth of the numbers has both levels
    shuffled = np.stack([x[:, 0], np.random.default_rng(1).permutation(x[:, 1])], 1)
    assert associations(shuffled, x, LEVELLED)[0, 1] < 0.1


def test_copies_have_the_distance_zero() -> None:
    train = rows(50)
    distance = closest(trained(), torch.cat([train[:3], rows(3, seed=5)]), train)
    assert (distance[:3] == 0).all()
    assert (distance[3:] > 0).all()


def test_intervals_of_rows_drawn_from_the_model_itself_are_right() -> None:
    """Completions are then draws from the distribution that the hidden values come from: each of the DRAWS completions
    and the hidden value are exchangeable."""
    x = sample(trained(), 150, seed=3, draw=True).float()
    hidden, (half, most) = coverage(trained(), x, np.array([True, False, True]), seed=0)
    assert hidden[1] == 0 < hidden[0]
    n = hidden.sum()
    for covered, expected in ((half, 0.5), (most, 0.9)):
        fraction = float(np.nansum(covered * hidden) / n)
        # the interpolated quantiles of DRAWS draws are a little inside those of the distribution
        assert fraction == pytest.approx(expected, abs=4 * (expected * (1 - expected) / n) ** 0.5 + 2 / DRAWS)


def test_a_report_on_a_table_has_its_sections(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also with names that would be formulas, and with levels that have no room."""
    chance = np.random.RandomState(0)
    lines = [f"town {i % 15},{chance.randn() + 100:.3f},{i % 3}" for i in range(120)]
    (tmp_path / "t.csv").write_text("\n".join(["$a_{,a number with quite a long name,few", *lines]) + "\n")
    settings = ["--set", "model.hidden=[4]", "--set", "model.latent=1", "--set", "model.slots=[2]"]
    run = str(tmp_path / "run")
    told(capsys, ["train", "--data", str(tmp_path / "t.csv"), "--out", run, *settings, "--set", "training.epochs=1"])
    told(capsys, ["report", run, "-o", str(tmp_path / "r.html"), "--samples", "5", "--limit", "5"])
    text = (tmp_path / "r.html").read_text()
    for heading in ("Synthetic rows", "Columns and intervals", "Pairs of columns", "Distance to training rows"):
        assert f">{heading}</h2>" in text
    assert "of which the 12 most frequent are shown" in text
    numbers = (tmp_path / "r-figures" / "columns.csv").read_text().splitlines()
    assert numbers[0] == "column,from,to,level,training,synthetic"
    assert any(line.startswith("a number with quite a long name,9") for line in numbers)  # in the table's units
