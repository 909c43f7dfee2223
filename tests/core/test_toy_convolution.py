"""A convolutional model whose decoder reads a memory at every position."""

from __future__ import annotations

import pytest
import torch

from memgen.core.layers import NORMS, MemoryLayer
from memgen.core.likelihoods import Bernoulli, Gaussian
from memgen.core.model import DGM, Conditional
from memgen.core.specification import ConvSpec, DenseSpec, LayerSpec, UpsampleSpec, ViewSpec, build_layers, output_of
from memgen.tasks.inspection import ablation, places, preferences, slot_pictures
from tests.exact import all_rows, check_density, check_training, prototypes

UP: list[LayerSpec] = [ViewSpec((2, 4, 1)), ConvSpec(6, size=3, stride=2)]
DOWN: list[LayerSpec] = [DenseSpec(8), ViewSpec((1, 2, 4)), UpsampleSpec(2), ConvSpec(5, size=3, slots=3)]


def toy() -> DGM:
    """Images of 2 x 4 binary pixels."""
    torch.manual_seed(0)
    q, (features,) = build_layers(UP, (8,), NORMS["batch"])
    p, _ = build_layers(DOWN, (1,), NORMS["batch"])
    return DGM([Conditional(q, Gaussian(features, 1))], [Conditional(p, Bernoulli(output_of(DOWN, (1,)), 8))])


def test_it_trains_is_a_density_and_can_be_inspected() -> None:
    model, rows = toy(), prototypes(200, 8)
    check_training(model, rows, "objective.samples=5", gain=1.0)
    check_density(model, all_rows(8))
    (place,) = places(model)
    share = preferences(model, rows)[place.name]
    torch.testing.assert_close(share.sum(1), torch.ones(200))
    assert slot_pictures(model, place).shape == (3, 8)
    assert ablation(model, place, rows.rows(slice(5)), samples=10).mean.abs().max() > 0


def test_slots_are_shared_over_positions() -> None:
    """A layer with memory does the same at every position: it commutes with a shift, away from the borders."""
    torch.manual_seed(0)
    (layer, _), _ = build_layers([ConvSpec(4, size=3, slots=5)], (9, 9, 2), NORMS["none"])
    assert isinstance(layer, MemoryLayer)
    layer.requires_grad_(False)
    layer.composition.a2.fill_(30.0)  # or the memory, which begins as the identity, would say nothing
    h = torch.zeros(2, 3, 9, 9, 2)
    h[..., 3:6, 3:6, :] = torch.randn(2, 3, 3, 3, 2)
    shifted = layer(h.roll(1, -3)).output
    torch.testing.assert_close(shifted[..., 1:-1, 1:-1, :], layer(h).output.roll(1, -3)[..., 1:-1, 1:-1, :])
    assert layer.attention(shifted).weights.shape == (2, 3, 9, 9, 5)
    assert float((layer(h).output - layer.dense(h).output).abs().max()) > 1e-3


def test_what_does_not_fit_is_refused() -> None:
    for specs in ([ConvSpec(4)], [ViewSpec((3, 3, 1))], [UpsampleSpec(2)]):
        with pytest.raises(ValueError, match=r"image of height|cannot be seen"):
            build_layers(specs, (8,), NORMS["none"])
