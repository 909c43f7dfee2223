"""Inside the memory: hooks do what they say, and the numbers are those of plain arithmetic."""

from __future__ import annotations

import copy
import subprocess
import sys
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import memgen
from memgen.core.batch import Batch
from memgen.core.layers import linear
from memgen.core.memory import Preference
from memgen.core.model import DGM
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.density import log_likelihood, standard_error
from memgen.tasks.inspection import (
    ablation,
    by_class,
    correlation,
    dense,
    disabled_samples,
    inspect,
    nearest,
    places,
    preferences,
    require_memory,
    resemblance,
    slot_pictures,
    usage,
    without,
)
from memgen.tasks.sampling import sample
from memgen.training.statistics import collect_statistics


def stirred(*settings: str, columns: int = 9) -> tuple[DGM, Tensor]:
    """A model whose memory matters, and binary rows."""
    torch.manual_seed(3)
    base = ["model.hidden=[8, 7]", "model.latent=3", "model.slots=[5, 4]"]
    model = build(Recipe().override([*base, *settings]), columns)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.6 * torch.randn_like(parameter))
    x = (torch.rand(30, columns) < 0.5).float()
    collect_statistics(model, Batch.of(x))
    return model.eval(), x


TWO = ("model.hidden=[[8, 7], [6]]", "model.latent=[3, 2]", "model.slots=[[5, 0], [4]]")


class Chosen(nn.Module):
    """A sparse attention: the two best slots, by index."""

    def __init__(self, features: int, slots: int) -> None:
        super().__init__()
        self.A = linear(features, slots)

    def forward(self, h_g: Tensor) -> Preference:
        best = self.A(h_g).topk(2, -1)
        return Preference(torch.softmax(best.values, -1), best.indices)


def sparse(model: DGM) -> DGM:
    for place in places(model):
        attention: Any = place.layer.attention
        features, slots = attention.A.in_features, place.slots
        place.layer.attention = Chosen(features, slots)
    return model


def test_layers_are_counted_from_the_data_upwards() -> None:
    model, _ = stirred()
    assert [(place.name, place.slots) for place in places(model)] == [("layer 1", 5), ("layer 2", 4)]
    assert places(model)[0].layer is model.p[0].layers[-1]
    two, _ = stirred(*TWO)
    assert [(place.name, place.slots) for place in places(two)] == [("level 1 layer 1", 5), ("level 2 layer 1", 4)]


@pytest.mark.parametrize("settings", [(), ("model.attention=softmax", "model.composition=sum"), TWO])
def test_preferences_are_what_attention_said_normalised(settings: tuple[str, ...]) -> None:
    model, x = stirred(*settings)
    h = preferences(model, Batch.of(x))
    assert [tuple(value.shape) for value in h.values()] == [(30, place.slots) for place in places(model)]
    for value in h.values():
        torch.testing.assert_close(value.sum(-1), torch.ones(30))
    again = preferences(model, Batch.of(x))
    assert all(again[name].equal(h[name]) for name in h)
    assert not any(module._forward_hooks for module in model.modules())  # nothing is left behind


@pytest.mark.parametrize("composition", ["sum", "mlp"])
@pytest.mark.parametrize("kind", ["dense", "sparse"])
def test_a_silenced_slot_is_a_slot_of_zeros(composition: str, kind: str) -> None:
    """h_m = M h_a is linear in M: h_a[j] := 0 and M[j] := 0 are the same."""
    model, x = stirred(f"model.composition={composition}")
    model = sparse(model) if kind == "sparse" else model
    for slot, place in ((2, 0), (0, 1)):
        with without(places(model)[place], slot):
            silenced = log_likelihood(model, Batch.of(x), 50).log_p
        zeroed = copy.deepcopy(model)
        with torch.no_grad():
            places(zeroed)[place].layer.memory.M[slot] = 0
        torch.testing.assert_close(silenced, log_likelihood(zeroed, Batch.of(x), 50).log_p, atol=1e-5, rtol=1e-6)
        assert not torch.allclose(silenced, log_likelihood(model, Batch.of(x), 50).log_p)


def test_ablation_counts_nats_of_a_slot_and_none_of_a_dead_one() -> None:
    model, x = stirred("model.slots=[5, 0]")
    place = places(model)[0]
    attention: Any = place.layer.attention
    with torch.no_grad():
        attention.A.bias[3] = -200.0  # sigmoid: never read
    ticks: list[int] = []
    found = ablation(model, place, Batch.of(x), samples=500, tick=ticks.append)
    assert sum(ticks) == 5 * 30
    assert found.mean[3] == 0
    intact = log_likelihood(model, Batch.of(x), 500)  # the same noise belongs to the same rows
    for slot in (0, 1, 2, 4):
        with without(place, slot):
            lost = intact.log_p - log_likelihood(model, Batch.of(x), 500).log_p
        assert found.mean[slot].item() == pytest.approx(float(lost.mean()), abs=1e-4)
        assert found.standard_error[slot].item() == pytest.approx(standard_error(lost), abs=1e-4)


def test_what_is_read_of_a_row_does_not_depend_on_the_others() -> None:
    model, x = stirred()
    many = preferences(model, Batch.of(x.repeat(50, 1)))["layer 1"]
    torch.testing.assert_close(preferences(model, Batch.of(x[:7]))["layer 1"], many[:7])
    assert not many[:30].equal(many[30:60])  # other rows, other noise


def test_disabled_memory_is_a_constant_reading() -> None:
    model, _ = stirred("model.composition=sum")
    rows = disabled_samples(model, 6)
    assert list(rows) == [
        "intact",
        "h_m = 1, layer 1",
        "h_m = 1, layer 2",
        "h_m = 1, all layers",
        "h_m = 0, layer 1",
        "h_m = 0, layer 2",
        "h_m = 0, all layers",
    ]
    assert rows["intact"].equal(sample(model, 6))
    nothing = copy.deepcopy(model)
    with torch.no_grad():
        for place in places(nothing):
            place.layer.memory.M.zero_()
    torch.testing.assert_close(rows["h_m = 0, all layers"], sample(nothing, 6))
    assert not torch.allclose(rows["h_m = 1, layer 1"], rows["h_m = 0, layer 1"])


def test_a_slots_picture_is_the_slot_decoded_alone() -> None:
    model, _ = stirred("model.composition=sum", "model.slots=[5, 0]")
    place = places(model)[0]
    memory: Any = place.layer.memory
    expected = model.likelihood(torch.relu(memory.M)).mean
    torch.testing.assert_close(slot_pictures(model, place), expected)
    two, _ = stirred(*TWO)
    for here in places(two):
        assert slot_pictures(two, here).shape == (here.slots, 9)


def test_usage_entropy_and_dead_slots() -> None:
    even = usage(torch.full((6, 4), 0.25))
    assert even.entropy == pytest.approx(np.log(4))
    assert even.dead == []
    h = torch.tensor([[0.9, 0.1, 0.0], [0.2, 0.8, 0.0]])
    found = usage(h)
    torch.testing.assert_close(found.share, torch.tensor([0.55, 0.45, 0.0]))
    torch.testing.assert_close(found.used, torch.tensor([0.5, 0.5, 0.0]))
    torch.testing.assert_close(found.top, torch.tensor([0.5, 0.5, 0.0]))
    assert found.dead == [2]
    torch.testing.assert_close(
        dense(Preference(torch.tensor([[0.5, 0.2]]), torch.tensor([[2, 0]])), 4), torch.tensor([[0.2, 0.0, 0.5, 0.0]])
    )


def test_classes_and_their_correlations() -> None:
    torch.manual_seed(0)
    h, labels = torch.rand(20, 6), torch.arange(20) % 3
    mean = by_class(h, labels)
    torch.testing.assert_close(mean[1], h[labels == 1].mean(0))
    np.testing.assert_allclose(correlation(mean), np.corrcoef(mean), atol=1e-5)
    a, b = correlation(torch.randn(5, 8)), correlation(torch.randn(5, 8))
    above = np.triu_indices(5, 1)
    assert resemblance(a[:2, :2], b[:2, :2]) is None
    assert resemblance(torch.ones(4, 4), a[:4, :4]) is None
    assert resemblance(a, b) == pytest.approx(np.corrcoef(a.numpy()[above], b.numpy()[above])[0, 1], abs=1e-5)


def test_the_nearest_row_to_a_row_is_itself() -> None:
    rows = torch.rand(50, 9)
    distances, indices = nearest(rows[[7, 30]], rows, 2)
    assert indices[:, 0].tolist() == [7, 30]
    torch.testing.assert_close(distances[:, 0], torch.zeros(2), atol=1e-3, rtol=0)
    assert nearest(rows[:1], rows[:1])[1].shape == (1, 1)


@pytest.mark.parametrize("labelled", [True, False])
@pytest.mark.parametrize("kind", ["dense", "sparse", "levels"])
def test_inspection_works_for_any_attention_and_without_labels(kind: str, labelled: bool) -> None:
    model, x = stirred(*(TWO if kind == "levels" else ()))
    model = sparse(model) if kind == "sparse" else model
    labels = torch.arange(30) % 4 if labelled else None
    found = inspect(model, Batch.of(x, labels), Batch.of(x[:10]), x, samples=20)
    assert len(found.layers) == 2
    for layer in found.layers:
        assert layer.usage.share.sum().item() == pytest.approx(1, abs=1e-5)
        assert layer.ablation.mean.isfinite().all()
        assert (layer.classes is not None) == labelled
        assert (layer.pixel_resemblance is not None) == labelled
    assert found.labels == ([0, 1, 2, 3] if labelled else [])


def test_a_model_without_memory_is_refused() -> None:
    model, x = stirred("model.slots=[]")
    with pytest.raises(MemgenError, match="no memory"):
        preferences(model, Batch.of(x))


COMPILED = """
import torch
from memgen.core.model import Batch
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.tasks.inspection import places, preferences, replaced
from memgen.tasks.sampling import sample
from memgen.training.fit import train_step
from memgen.training.state import begin
from memgen.training.statistics import collect_statistics

torch.manual_seed(0)
recipe = Recipe().override(["model.hidden=[8]", "model.slots=[4]", "model.latent=3", "model.composition=sum"])
model, x = build(recipe, 9), (torch.rand(20, 9) < 0.5).float()
state = begin(model, recipe)
step = torch.compile(train_step, backend="eager")
for _ in range(2):
    step(state, Batch(x), recipe, 1)
collect_statistics(model, Batch(x))
model.eval()
intact = sample(model, 4)
assert preferences(model, Batch(x))["layer 1"].shape == (20, 4)
with replaced(places(model)[0], 3.0):
    assert not torch.allclose(sample(model, 4), intact)
assert sample(model, 4).equal(intact)
"""


def test_a_hook_acts_after_a_compiled_training_step() -> None:
    """Only functions are compiled, never the module: what is hooked later still acts. (In a process of its own, because
    torch's compiler cannot look through the checks of types that this test run adds.)
    """
    done = subprocess.run([sys.executable, "-c", COMPILED], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.fixture(scope="module")
def trained() -> DGM:
    recipe = Recipe.named("digits-mem-vae").override(["training.epochs=3", "training.evaluate_every=0"])
    model = build(recipe)
    for _ in memgen.fit(model, memgen.dataset("digits"), recipe):
        pass
    return model


def test_on_real_digits_alike_classes_prefer_alike_slots(trained: DGM) -> None:
    """The whole chain: a class is nearer to itself, on other images, than to the other classes."""
    data = memgen.dataset("digits")
    h, labels = preferences(trained, Batch.of(data.rows("train")))["layer 2"], data.labels["train"]
    half = torch.arange(len(h)) % 2 == 0
    a, b = by_class(h[half], labels[half]), by_class(h[~half], labels[~half])
    assert (torch.cdist(a, b).argmin(1) == torch.arange(10)).sum() >= 8


def test_more_slots_than_can_be_looked_at_one_by_one_are_refused() -> None:
    model, _ = stirred("model.attention=product", "model.slots=[10201, 0]")
    with pytest.raises(MemgenError, match="10,201"):
        require_memory(model)
