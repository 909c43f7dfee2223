"""Patterns of missing pixels, and the error of the error."""

from __future__ import annotations

import math

import pytest
import torch

from memgen.errors import MemgenError
from memgen.tasks.density import standard_error
from memgen.tasks.patterns import missing_entries, scaled_patterns
from memgen.tasks.scores import row_errors, squared_error


def test_patterns_are_the_papers() -> None:
    rect = missing_entries("rect-12", (28, 28), 784, 2)[1].view(28, 28)
    expected = torch.zeros(28, 28, dtype=torch.bool)
    expected[8:20, 8:20] = True
    assert rect.equal(expected)
    half = missing_entries("half", (28, 28), 784, 1).view(28, 28)
    assert half[:, :14].all()
    assert not half[:, 14:].any()
    rand = missing_entries("rand-0.6", (28, 28), 784, 400)
    assert rand.float().mean().item() == pytest.approx(0.6, abs=0.005)
    assert rand[:10].equal(missing_entries("rand-0.6", (28, 28), 784, 10))
    assert not rand.equal(missing_entries("rand-0.6", (28, 28), 784, 400, seed=1))
    assert not rand[0].equal(rand[1])


def test_halves_are_four() -> None:
    shape = (5, 4)
    parts = {
        name: missing_entries(f"half-{name}", shape, 20, 1).view(shape) for name in ("left", "right", "top", "bottom")
    }
    assert (parts["left"] ^ parts["right"]).all()
    assert (parts["top"] & parts["bottom"]).sum() == 0
    assert parts["top"][:2].all()
    assert parts["bottom"][3:].all()


@pytest.mark.parametrize(
    ("pattern", "shape", "words"),
    [
        ("rect-9", (8, 8), "does not fit"),
        ("rect-0", (8, 8), "does not fit"),
        ("rand-1.5", (8, 8), "between 0 and 1"),
        ("rand-x", (8, 8), "between 0 and 1"),
        ("half", (), "for images"),
        ("circle", (8, 8), "Choices: rect-N"),
        ("half-middle", (8, 8), "Choices"),
        ("rect-1e3", (8, 8), "Choices"),
        ("rect-\u00b2", (8, 8), "Choices"),
    ],
)
def test_patterns_that_do_not_fit_are_refused(pattern: str, shape: tuple[int, ...], words: str) -> None:
    with pytest.raises(MemgenError, match=words):
        missing_entries(pattern, shape, 64, 3)


def test_the_papers_patterns_scale_with_the_image() -> None:
    for shape in ((28, 28), (8, 8), (16, 8), (28, 20)):
        for pattern in scaled_patterns(shape):
            assert missing_entries(pattern, shape, shape[0] * shape[1], 1).any()
    assert scaled_patterns(()) == ("rand-0.3", "rand-0.6")


def test_the_error_of_the_error() -> None:
    """Where all rows miss as many values, it is the standard error of the rows' own means; in general, of a ratio."""
    torch.manual_seed(0)
    guess, truth = torch.rand(30, 8), torch.rand(30, 8)
    missing = torch.zeros(30, 8, dtype=torch.bool)
    missing[:, 2:5] = True
    own = ((guess - truth) ** 2)[:, 2:5].double().mean(-1)
    found = squared_error(guess, truth, missing)
    assert found.mean == pytest.approx(float(own.mean()))
    assert found.standard_error == pytest.approx(standard_error(own))
    assert found.missing == 90
    torch.testing.assert_close(row_errors(guess, truth, missing), own)
    alone = squared_error(guess[:1], truth[:1], missing[:1])
    assert math.isnan(alone.standard_error)
    assert math.isnan(squared_error(guess, truth, torch.zeros_like(missing)).mean)
