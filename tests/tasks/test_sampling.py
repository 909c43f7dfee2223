"""Generation from the prior and around given rows."""

from __future__ import annotations

import math

import pytest
import torch

from memgen.core.batch import Batch
from memgen.errors import MemgenError
from memgen.tasks.sampling import interpolate, reconstruct, sample, slerp, walk
from tests.exact import linear_gaussian


def test_reconstruction_is_the_decoder_at_the_posterior_mean() -> None:
    """Linear-Gaussian: A gain (x - b) + b, which is a linear map; exact at its fixed point, the mean of x."""
    exact = linear_gaussian(1)
    at_mean = reconstruct(exact.model, Batch.of(exact.mean[None]))
    torch.testing.assert_close(at_mean[0], exact.mean, atol=1e-4, rtol=0)
    x = exact.sample(4)
    moved = reconstruct(exact.model, Batch.of(exact.mean + 2 * (x - exact.mean)))
    torch.testing.assert_close(
        moved - exact.mean, 2 * (reconstruct(exact.model, Batch.of(x)) - exact.mean), atol=1e-3, rtol=0
    )
    assert (reconstruct(exact.model, Batch.of(x)) - x).norm() < (exact.mean - x).norm()


def test_slerp_turns_at_a_constant_rate_and_keeps_its_ends() -> None:
    torch.manual_seed(0)
    a, b = torch.randn(7, 12), 3 * torch.randn(7, 12)
    z = slerp(a, b, 9)
    torch.testing.assert_close(z[:, 0], a)
    torch.testing.assert_close(z[:, -1], b)
    lengths = z.norm(dim=-1)
    torch.testing.assert_close(lengths.diff(dim=1), ((b.norm(dim=-1) - a.norm(dim=-1)) / 8)[:, None].expand(7, 8))
    cosines = torch.nn.functional.cosine_similarity(z[:, 1:], z[:, :-1], dim=-1)
    torch.testing.assert_close(cosines, cosines[:, :1].expand_as(cosines))


@pytest.mark.parametrize("factor", [2.0, -1.0, 0.0])
def test_slerp_without_a_plane_to_turn_in_stays_finite(factor: float) -> None:
    a = torch.randn(3, 4)
    z = slerp(a, factor * a, 5)
    assert z.isfinite().all()
    torch.testing.assert_close(z[:, 0], a)
    torch.testing.assert_close(z[:, -1], factor * a, atol=1e-6, rtol=1e-5)


def test_interpolation_ends_are_reconstructions() -> None:
    exact = linear_gaussian(2)
    a, b = exact.sample(3, seed=1), exact.sample(3, seed=2)
    between = interpolate(exact.model, Batch.of(a), Batch.of(b), 6)
    assert between.shape == (3, 6, 5)
    torch.testing.assert_close(between[:, 0], reconstruct(exact.model, Batch.of(a)))
    torch.testing.assert_close(between[:, -1], reconstruct(exact.model, Batch.of(b)))
    with pytest.raises(MemgenError, match="at least 2 steps"):
        interpolate(exact.model, Batch.of(a), Batch.of(b), 1)


def test_a_walk_is_a_circle_around_the_reconstruction() -> None:
    exact = linear_gaussian(1)
    x = exact.sample(1)
    circles = walk(exact.model, Batch.of(x), 12, (0.5, 2.0))
    centre = reconstruct(exact.model, Batch.of(x))[0]
    torch.testing.assert_close(circles.mean(1), centre.expand(2, -1), atol=1e-4, rtol=0)  # the decoder is linear
    torch.testing.assert_close((circles[1] - centre) / 4, circles[0] - centre, atol=1e-4, rtol=0)
    assert not walk(exact.model, Batch.of(x), 12, seed=1).equal(walk(exact.model, Batch.of(x), 12, seed=2))


def test_levels_that_are_held_are_shared() -> None:
    """x | z_2 has another covariance than x: that of the levels below."""
    exact = linear_gaussian(2)
    free, held = sample(exact.model, 20_000, draw=True), sample(exact.model, 20_000, draw=True, hold=1)
    assert held.T.cov().trace() < 0.7 * free.T.cov().trace()
    assert len(sample(exact.model, 250, hold=2).unique(dim=0)) == 1  # all of z is shared, over blocks of rows too
    assert len(sample(exact.model, 250, hold=1).unique(dim=0)) == 250
    for bad in (-1, 3):
        with pytest.raises(MemgenError, match="0 to 2"):
            sample(exact.model, 3, hold=bad)


def test_draws_scatter_around_the_means_of_the_same_z() -> None:
    exact = linear_gaussian(1)
    difference = sample(exact.model, 5000, draw=True) - sample(exact.model, 5000)
    torch.testing.assert_close(difference.var(0), torch.full((5,), 0.3), atol=0.03, rtol=0)
    assert difference.mean(0).abs().max() < 5 * math.sqrt(0.3 / 5000)
