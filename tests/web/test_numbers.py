"""Every number on the page is that of a task."""

from __future__ import annotations

import asyncio
import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import torch

from memgen.core.batch import Batch
from memgen.data import dataset
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs.modelfile import save
from memgen.tasks import density, imputation, inspection, sampling
from memgen.web import answers, queries, service, work
from memgen.web.examples import Finder
from memgen.web.models import Served, load
from tests.web.served import (
    as_bytes,
    client,
    decoded,
    post,
)


def test_samples_are_those_of_the_command_and_their_codes_decode_to_them(app: Any, served: list[Served]) -> None:
    found = post(app, "samples", n=5, seed=2)
    assert torch.equal(decoded(found["images"]), as_bytes(sampling.sample(served[0].model, 5, seed=2)))
    again = post(app, "decode", z=found["z"][3])
    assert (decoded(again["image"]) - decoded(found["images"]).view(5, -1)[3]).abs().max() <= 1


def test_samples_of_a_class_are_those_near_its_rows(app: Any, served: list[Served]) -> None:
    found = post(app, "samples", n=6, seed=1, label="7")
    data = dataset("digits")
    rows = data.rows("test")[data.labels["test"] == 7]
    expected = sampling.sample_near(served[0].model, Batch.of(rows), 6, seed=1)
    assert torch.equal(decoded(found["images"]), as_bytes(expected.x))
    assert post(app, "samples", 400, label="seven")["error"].startswith("there is no class 'seven'")


def test_held_levels_are_those_of_the_command(tmp_path: Path) -> None:
    settings = ["model.hidden=[[24], [16]]", "model.latent=[6, 3]", "model.slots=[[7], [5]]", "model.norm=none"]
    recipe = Recipe.named("digits-mem-vae").override([*settings, "objective.local_reconstruction=[]"])
    torch.manual_seed(3)
    save(build(recipe), tmp_path / "two.safetensors", recipe)
    [two] = load([str(tmp_path / "two.safetensors")])
    found = answers.samples(two, two.model, queries.Samples(n=5, hold=1))
    assert torch.equal(decoded(found["images"]), as_bytes(sampling.sample(two.model, 5, hold=1)))
    assert found["images"] != answers.samples(two, two.model, queries.Samples(n=5))["images"]


def test_a_silenced_slot_costs_what_the_task_says(app: Any, served: list[Served]) -> None:
    model, x = served[0].model, served[0].examples.rows[4:5]
    z = post(app, "encode", row=4)["z"]
    place = inspection.places(model)[1]
    intact = float(density.log_likelihood(model, Batch.of(x), 300).log_p)
    with inspection.without(place, 2):
        silenced = float(density.log_likelihood(model, Batch.of(x), 300).log_p)
    found = post(app, "look", z=z, row=4, samples=300, changes=[{"place": 1, "slot": 2}])
    assert abs(intact - silenced) > 0.01
    assert found["log_p"] == pytest.approx(intact, abs=2e-3)
    assert found["log_p_changed"] == pytest.approx(silenced, abs=2e-3)
    assert found["attention"][1][2] > 0 == found["changed"][1][2]


def test_a_silenced_layer_recalls_nothing(app: Any, served: list[Served]) -> None:
    model, z = served[0].model, post(app, "samples", n=1)["z"][0]
    with inspection.replaced(inspection.places(model)[0], 0.0):
        expected = as_bytes(service.decoded(model, torch.tensor([z])))
    found = post(app, "decode", z=z, changes=[{"place": 0, "slot": -1}])
    assert (decoded(found["image"]) - expected).abs().max() <= 1


def test_changes_that_cancel_change_nothing_and_none_stays(app: Any, served: list[Served]) -> None:
    z = post(app, "samples", n=1)["z"][0]
    plain = post(app, "decode", z=z)["image"]
    swap = {"place": 0, "slot": 1, "other": 3}
    assert post(app, "decode", z=z, changes=[swap])["image"] != plain
    assert post(app, "decode", z=z, changes=[swap, swap])["image"] == plain
    assert post(app, "decode", z=z, changes=[{"place": 0, "slot": 1, "factor": 1.0}])["image"] == plain
    assert post(app, "decode", z=z)["image"] == plain
    with served[0].view(lambda: None):
        assert not hooks_of(served[0].model)


def test_a_view_shares_the_weights_and_nothing_else(served: list[Served]) -> None:
    model = served[0].model
    with served[0].view(lambda: None) as view:
        pairs = list(zip(view.parameters(), model.parameters(), strict=True))
        assert pairs
        assert all(a is b for a, b in pairs)
        assert not {id(m) for m in view.modules()} & {id(m) for m in model.modules()}
        assert not hooks_of(model)
    assert not hooks_of(view)


def test_every_thread_has_its_own_view(served: list[Served]) -> None:
    def own() -> int:
        with served[0].view(lambda: None) as view:
            return id(view)

    with ThreadPoolExecutor(1) as pool:
        first, again = pool.submit(own).result(), pool.submit(own).result()
    assert first == again != own()


def hooks_of(model: torch.nn.Module) -> list[torch.nn.Module]:
    return [module for module in model.modules() if module._forward_hooks or module._forward_pre_hooks]


def test_work_whose_request_was_dropped_ends_within_one_pass(served: list[Served]) -> None:
    passes = 0

    def check() -> None:
        nonlocal passes
        passes += 1
        if passes > 5:
            raise work.OutdatedError

    query = queries.Complete(hidden="1" * 64, row=0, steps=400)
    with served[0].view(check) as model, pytest.raises(work.OutdatedError):
        answers.complete(served[0], model, query)
    assert passes == 6
    assert not hooks_of(model)


def test_completions_keep_what_is_visible_and_know_nothing_of_what_is_not(app: Any, served: list[Served]) -> None:
    hidden = post(app, "pattern", pattern="half")["hidden"]
    seen = torch.tensor([h == "0" for h in hidden])
    found = post(app, "complete", row=0, hidden=hidden, steps=40, seed=1)
    x = served[0].examples.rows[0]
    kinds = decoded(found["completions"]).view(-1, 64)
    assert torch.equal(kinds[:, seen], as_bytes(x)[seen].expand(len(kinds), -1))
    assert 0 < sum(found["weights"]) <= 1.0001
    assert found["weights"] == sorted(found["weights"], reverse=True)
    method = imputation.method_for(None, 0)
    expected = imputation.impute(served[0].model, Batch(x[None], seen[None]), method, steps=40, seed=1)
    assert found["log_visible"] == pytest.approx(float(expected.log_observed), abs=0.01)
    flipped = torch.where(seen, x, 1 - x)
    pixels = bytes((flipped * 255).byte().tolist()).hex()
    other = post(app, "complete", pixels=pixels, hidden=hidden, steps=40, seed=1)
    assert other["completions"] == found["completions"]


def test_the_map_is_an_isometry_of_its_plane(app: Any) -> None:
    found = post(app, "map")
    axes = torch.tensor(found["axes"])
    assert torch.allclose(axes @ axes.T, torch.eye(len(axes)), atol=1e-3)
    assert len(found["points"]) == len(found["labels"])


def test_slots_are_described_as_by_inspect(app: Any, served: list[Served]) -> None:
    found = post(app, "slots", place=1)
    classes = torch.tensor(found["classes"])
    assert classes.shape == (len(found["labels"]), 5)
    assert classes.sum(-1).allclose(torch.ones(len(classes)), atol=1e-3)
    pictures_of = inspection.slot_pictures(served[0].model, inspection.places(served[0].model)[1])
    assert torch.equal(decoded(found["pictures"]), as_bytes(pictures_of))
    near = post(app, "nearest", place=1, slot=2)
    train = dataset("digits").rows("train")
    assert near["distances"][0] == pytest.approx(float(torch.cdist(pictures_of[2:3], train).min()), abs=0.01)


def test_values_come_with_progress(app: Any, served: list[Served]) -> None:
    async def go() -> str:
        async with client(app) as own:
            return (await own.post("/api/values", json={"place": 1})).text

    events = [part.split("\ndata: ") for part in asyncio.run(go()).strip().split("\n\n")]
    assert events[-1][0] == "event: result"
    found = json.loads(events[-1][1])
    place = inspection.places(served[0].model)[1]
    x = served[0].examples.rows[: service.ABLATED]
    expected = inspection.ablation(served[0].model, place, Batch.of(x), samples=service.ABLATION_SAMPLES)
    assert found["mean"] == pytest.approx(expected.mean.tolist(), abs=1e-3)


def test_without_data_images_come_from_the_model(served: list[Served], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Served("alone", served[0].saved, lambda saved: None)
    assert alone.examples.train is None
    assert "drawn from the model" in alone.examples.about
    assert alone.examples.rows.unique().tolist() == [0.0, 1.0]
    found = answers.examples(alone, alone.model, queries.Examples(n=3))
    assert found["count"] == 3
    monkeypatch.delenv("MEMGEN_DATA", raising=False)
    mnist = Served("zoo", load(["zoo:mnist-vae"])[0].saved, Finder())
    assert mnist.examples.train is None
