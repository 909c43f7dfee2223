"""Changes of the memory: their effect is that of the task on a changed model, and nothing stays behind."""

from __future__ import annotations

import pytest
import torch

from memgen.core.batch import Batch
from memgen.errors import MemgenError
from memgen.tasks.density import log_likelihood
from memgen.tasks.inspection import ALL, Change, ablation, changing, effect, places, read, replaced, without
from memgen.tasks.sampling import reconstruct, sample_near, sample_with_codes
from tests.tasks.test_inspection import TWO, sparse, stirred


@pytest.mark.parametrize("settings", [(), TWO], ids=["one level", "two levels"])
def test_a_silenced_layer_recalls_nothing_in_any_task(settings: tuple[str, ...]) -> None:
    model, x = stirred(*settings)
    rows = Batch(x[:3])
    intact = log_likelihood(model, rows, 50).log_p
    for index, place in enumerate(places(model)):
        with replaced(place, 0.0):
            expected = log_likelihood(model, rows, 50).log_p
        with changing(model, [Change(index, ALL)]):
            assert torch.allclose(log_likelihood(model, rows, 50).log_p, expected)
        with changing(model, [Change(index, slot) for slot in range(place.slots)]):
            assert torch.allclose(log_likelihood(model, rows, 50).log_p, expected)
        assert not torch.allclose(intact, expected, atol=1e-3)


@pytest.mark.parametrize("settings", [(), TWO], ids=["one level", "two levels"])
def test_the_effect_is_the_difference_of_two_estimates(settings: tuple[str, ...]) -> None:
    model, x = stirred(*settings)
    rows = Batch(x[:3])
    for index, place in enumerate(places(model)):
        result = effect(model, rows, [Change(index, slot=1)], 300)
        with without(place, 1):
            silenced = log_likelihood(model, rows, 300).log_p
        assert torch.allclose(result.intact, log_likelihood(model, rows, 300).log_p, atol=1e-3)
        assert torch.allclose(result.changed, silenced, atol=1e-3)
        assert (result.intact - result.changed).abs().max() > 1e-3
        lost = ablation(model, place, rows, samples=300).mean[1]
        assert float((result.intact - result.changed).mean()) == pytest.approx(float(lost), abs=1e-4)


def test_a_row_beside_a_changed_one_reads_the_intact_memory() -> None:
    model, _ = stirred()
    z = sample_with_codes(model, 1, seed=4).z
    alone, pair = read(model, z), read(model, z, [Change(0, ALL), Change(1, 2, factor=3.0)])
    assert torch.allclose(pair.x[0], alone.x[0], atol=1e-6)
    assert torch.allclose(alone.x[0], alone.x[1], atol=1e-6)
    assert torch.allclose(pair.x[0], sample_with_codes(model, 1, seed=4).x[0], atol=1e-6)
    with replaced(places(model)[0], 0.0), changing(model, [Change(1, 2, factor=3.0)]):
        assert torch.allclose(pair.x[1], read(model, z).x[0], atol=1e-6)
    assert not pair.attention[0][1].any()
    assert torch.allclose(pair.attention[1][1, 2], 3 * pair.attention[1][0, 2])


@pytest.mark.parametrize("chosen", [False, True], ids=["dense", "sparse"])
def test_swapping_twice_changes_nothing(chosen: bool) -> None:
    model, _ = stirred()
    if chosen:
        sparse(model)
    z = sample_with_codes(model, 1, seed=1).z
    swap = Change(0, slot=0, other=3)
    once, twice = read(model, z, [swap]), read(model, z, [swap, swap])
    assert torch.allclose(twice.x[0], twice.x[1], atol=1e-6)
    assert torch.equal(once.attention[0][1, [3, 0]], once.attention[0][0, [0, 3]])


def test_an_error_leaves_no_hook_behind() -> None:
    model, _ = stirred()
    with pytest.raises(MemgenError, match="5 slots"), changing(model, [Change(0, 1), Change(0, 5)]):
        pass
    with pytest.raises(MemgenError, match="no layer 2"):
        read(model, sample_with_codes(model, 1).z, [Change(2, 0)])
    assert not any(module._forward_hooks for module in model.modules())


def test_samples_near_rows_are_draws_of_their_posterior() -> None:
    """Near copies of one row, z has the mean and the deviation of q(z|x); rows are the decoded z."""
    model, x = stirred("model.norm=none")
    near = sample_near(model, Batch(x[:1].expand(7, -1)), 4000, seed=3)
    q = model.encode(Batch(x[:1])).q
    deviation = (0.5 * q.log_variance[0]).exp()
    assert ((near.z[0].mean(0) - q.mean[0]).abs() < 4 * deviation / 4000**0.5).all()
    assert torch.allclose(near.z[0].std(0), deviation, rtol=0.1)
    narrow = sample_near(model, Batch(x[:1]), 1, seed=3)
    assert narrow.x.shape == reconstruct(model, Batch(x[:1])).shape
    assert set(sample_near(model, Batch(x[:3]), 50, draw=True).x.unique().tolist()) == {0.0, 1.0}


def test_layers_above_the_first_level_are_read_too() -> None:
    model, _ = stirred(*TWO)
    z = sample_with_codes(model, 1, seed=4).z
    pair = read(model, z, [Change(1, 2)])
    assert pair.attention[1][0, 2] > 0 == pair.attention[1][1, 2]
    assert torch.allclose(pair.x[0], pair.x[1], atol=1e-6)  # x depends on z_1 alone
