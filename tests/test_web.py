"""The server of `memgen serve`: the numbers of the tasks, its limits, and who is let in."""

from __future__ import annotations

import asyncio
import base64
import csv
import io
import json
import os
import resource
import socket
import string
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

pytest.importorskip("starlette", reason="the page needs its extra: pip install 'memgen[web]'")
pytest.importorskip("httpx", reason="these tests ask the server through httpx")

import httpx
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from memgen.cli.main import main
from memgen.data import dataset
from memgen.data.columns import Columns
from memgen.data.form import Form
from memgen.errors import MemgenError
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs.run import Run, save
from memgen.tasks import density, imputation, inspection, sampling
from memgen.training.fit import Epoch
from memgen.web import asks, pictures, safety, server, service, tables, work
from memgen.web.runs import Runs
from memgen.web.safety import Door
from memgen.web.shelf import Finder, Shown, shelf

TOKEN = "a-token"
HOST = "127.0.0.1:8765"
FUZZ = int(os.environ.get("MEMGEN_FUZZ", "120"))
"""Requests of the fuzz test; `make fuzz` asks for 5,000."""
CLIENTS = 32
SECONDS = float(os.environ.get("MEMGEN_LOAD_SECONDS", "2"))

Ask = Callable[..., Awaitable[httpx.Response]]


def image_model(folder: Path) -> Path:
    """Digits of 8 x 8, a memory on both layers, weights as they begin, but with attention that tells slots apart."""
    recipe = Recipe.named("digits-mem-vae").override(
        ["model.hidden=[24, 16]", "model.slots=[7, 5]", "model.latent=6", "model.norm=none", "model.composition=sum"]
    )
    torch.manual_seed(3)
    model = build(recipe)
    with torch.no_grad():
        for place in inspection.places(model):
            place.layer.memory.M.mul_(80)
    save(model, folder / "images.safetensors", recipe)
    return folder / "images.safetensors"


def table_model(folder: Path) -> Path:
    import numpy as np

    generator = np.random.RandomState(0)
    town = generator.choice(["Bern", "=Basel"], 60).astype(object)
    columns = Columns.infer([town, generator.randn(60) * 10 + 50], ["town", "age"])
    recipe = Recipe().override(["model.hidden=[8]", "model.latent=2", "model.norm=none", "model.likelihood=mixed"])
    torch.manual_seed(0)
    form = Form(columns=columns)
    save(build(recipe, 2, form.kinds), folder / "table.safetensors", recipe, form=form)
    return folder / "table.safetensors"


def run_folder(folder: Path, epochs: int = 3) -> Run:
    folder.parent.mkdir(exist_ok=True)
    run = Run.create(folder, Recipe.named("digits-vae"))
    for epoch in range(1, epochs + 1):
        run.log(Epoch(epoch, 20.0 / epoch, -20.0 / epoch, 1e-3, float(epoch)))
    return run


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory) -> list[Shown]:
    folder = tmp_path_factory.mktemp("models")
    return shelf([str(image_model(folder)), str(table_model(folder))])


@pytest.fixture
def app(shown: list[Shown], tmp_path: Path) -> Iterator[safety.Guard]:
    run_folder(tmp_path / "runs" / "one")
    workers = work.Workers()
    yield server.application(shown, Runs((), tmp_path / "runs"), Door(TOKEN), workers)
    workers.close()


def client(app: Any, **headers: str) -> httpx.AsyncClient:
    own = {"x-memgen-token": TOKEN, "host": HOST} | headers
    transport = httpx.ASGITransport(app=app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url=f"http://{HOST}", headers=own, timeout=60)


def post(app: Any, name: str, status: int = 200, **body: Any) -> Any:
    async def go() -> httpx.Response:
        async with client(app) as own:
            return await own.post(f"/api/{name}", json=body)

    response = asyncio.run(go())
    assert response.status_code == status, response.text
    return response.json()


def get(app: Any, path: str, **headers: str) -> httpx.Response:
    async def go() -> httpx.Response:
        async with client(app, **headers) as own:
            return await own.get(path)

    return asyncio.run(go())


def decoded(text: str) -> torch.Tensor:
    return torch.tensor(list(base64.b64decode(text)))


def as_bytes(x: torch.Tensor) -> torch.Tensor:
    return (x.clamp(0, 1) * 255).round().flatten().long()


# ---- the numbers are those of the tasks


def test_samples_are_those_of_the_command_and_their_codes_decode_to_them(app: Any, shown: list[Shown]) -> None:
    found = post(app, "samples", n=5, seed=2)
    assert torch.equal(decoded(found["images"]), as_bytes(sampling.sample(shown[0].model, 5, seed=2)))
    again = post(app, "decode", z=found["z"][3])
    assert (decoded(again["image"]) - decoded(found["images"]).view(5, -1)[3]).abs().max() <= 1


def test_a_silenced_slot_costs_what_the_task_says(app: Any, shown: list[Shown]) -> None:
    model, x = shown[0].model, shown[0].pool.rows[4:5]
    z = post(app, "encode", image=4)["z"]
    place = inspection.places(model)[1]
    intact = float(density.log_likelihood(model, x, service.SAMPLES).log_p)
    with inspection.without(place, 2):
        silenced = float(density.log_likelihood(model, x, service.SAMPLES).log_p)
    found = post(app, "look", z=z, image=4, changes=[{"place": 1, "slot": 2}])
    assert abs(intact - silenced) > 0.01
    assert found["log_p"] == pytest.approx(intact, abs=2e-3)
    assert found["log_p_changed"] == pytest.approx(silenced, abs=2e-3)
    assert found["attention"][1][2] > 0 == found["changed"][1][2]


def test_a_silenced_layer_recalls_nothing(app: Any, shown: list[Shown]) -> None:
    model, z = shown[0].model, post(app, "samples", n=1)["z"][0]
    with inspection.replaced(inspection.places(model)[0], 0.0):
        expected = as_bytes(service.decoded(model, torch.tensor([z])))
    found = post(app, "decode", z=z, changes=[{"place": 0, "slot": -1}])
    assert (decoded(found["image"]) - expected).abs().max() <= 1


def test_changes_that_cancel_change_nothing_and_none_stays(app: Any, shown: list[Shown]) -> None:
    z = post(app, "samples", n=1)["z"][0]
    plain = post(app, "decode", z=z)["image"]
    swap = {"place": 0, "slot": 1, "other": 3}
    assert post(app, "decode", z=z, changes=[swap])["image"] != plain
    assert post(app, "decode", z=z, changes=[swap, swap])["image"] == plain
    assert post(app, "decode", z=z, changes=[{"place": 0, "slot": 1, "factor": 1.0}])["image"] == plain
    assert post(app, "decode", z=z)["image"] == plain
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in shown[0].model.modules())


def test_a_view_shares_the_weights_and_nothing_else(shown: list[Shown]) -> None:
    own = service.view(shown[0].model)
    pairs = list(zip(own.parameters(), shown[0].model.parameters(), strict=True))
    assert pairs
    assert all(a is b for a, b in pairs)
    assert not {id(m) for m in own.modules()} & {id(m) for m in shown[0].model.modules()}


def test_work_that_nobody_waits_for_ends_within_one_pass(shown: list[Shown]) -> None:
    passes = 0

    def check() -> None:
        nonlocal passes
        passes += 1
        if passes > 5:
            raise work.OutdatedError

    ask = asks.Complete(hidden="1" * 64, image=0, steps=400)
    with pytest.raises(work.OutdatedError):
        pictures.complete(shown[0], ask, check)
    assert passes == 6


def test_completions_keep_what_is_visible_and_know_nothing_of_what_is_not(app: Any, shown: list[Shown]) -> None:
    hidden = post(app, "pattern", pattern="half")["hidden"]
    seen = torch.tensor([h == "0" for h in hidden])
    found = post(app, "complete", image=0, hidden=hidden, steps=40, seed=1)
    x = shown[0].pool.rows[0]
    kinds = decoded(found["completions"]).view(-1, 64)
    assert torch.equal(kinds[:, seen], as_bytes(x)[seen].expand(len(kinds), -1))
    assert 0 < sum(found["weights"]) <= 1.0001
    assert found["weights"] == sorted(found["weights"], reverse=True)
    method = imputation.method_for(None, 0)
    expected = imputation.impute(shown[0].model, x[None], seen[None], method, steps=40, seed=1)
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


def test_slots_are_described_as_by_inspect(app: Any, shown: list[Shown]) -> None:
    found = post(app, "slots", place=1)
    classes = torch.tensor(found["classes"])
    assert classes.shape == (len(found["labels"]), 5)
    assert classes.sum(-1).allclose(torch.ones(len(classes)), atol=1e-3)
    pictures_of = inspection.slot_pictures(shown[0].model, inspection.places(shown[0].model)[1])
    assert torch.equal(decoded(found["pictures"]), as_bytes(pictures_of))
    near = post(app, "nearest", place=1, slot=2)
    train = dataset("digits").rows("train")
    assert near["distances"][0] == pytest.approx(float(torch.cdist(pictures_of[2:3], train).min()), abs=0.01)


def test_values_come_with_progress(app: Any, shown: list[Shown]) -> None:
    async def go() -> str:
        async with client(app) as own:
            return (await own.post("/api/values", json={"place": 1})).text

    events = [part.split("\ndata: ") for part in asyncio.run(go()).strip().split("\n\n")]
    assert events[-1][0] == "event: result"
    found = json.loads(events[-1][1])
    place = inspection.places(shown[0].model)[1]
    x = shown[0].pool.rows[: service.ABLATED]
    expected = inspection.ablation(shown[0].model, place, x, samples=service.ABLATION_SAMPLES)
    assert found["mean"] == pytest.approx(expected.mean.tolist(), abs=1e-3)


def test_without_data_images_come_from_the_model(shown: list[Shown], monkeypatch: pytest.MonkeyPatch) -> None:
    alone = Shown("alone", shown[0].saved, lambda saved: None)
    assert not alone.pool.real
    assert "drawn from the model" in alone.pool.about
    assert alone.pool.rows.unique().tolist() == [0.0, 1.0]
    found = pictures.images(alone, asks.Images(n=3), lambda: None)
    assert found["count"] == 3
    monkeypatch.delenv("MEMGEN_DATA", raising=False)
    mnist = Shown("zoo", shelf(["zoo:mnist-vae"])[0].saved, Finder())
    assert not mnist.pool.real


# ---- tables


def test_cells_that_were_there_stay_and_missing_ones_are_those_of_impute(app: Any, shown: list[Shown]) -> None:
    text = "town,age\nBern,\n,41.5\n=Basel,60\n"
    found = post(app, "fill", model=1, text=text)
    assert found["filled"] == [[1], [0], []]
    assert (found["cells"][0][0], found["cells"][1][1], found["cells"][2]) == ("Bern", "41.5", ["=Basel", "60"])
    columns = tables.schema_of(shown[1])
    x = tables.read(text, columns).x.float()
    expected = imputation.impute(shown[1].model, x, ~x.isnan(), "importance", steps=100, draws=20, batch_size=50)
    assert float(found["cells"][0][1]) == pytest.approx(float(expected.mean[0, 1]) + columns.columns[1].offset, rel=1e-4)
    whole = density.log_likelihood(shown[1].model, x[2:], tables.SCORE_SAMPLES).log_p
    assert found["log_p"][2] == pytest.approx(float(whole), abs=0.01)
    assert "of 20" in found["spread"][1][0]


def test_no_cell_of_a_download_is_a_formula(app: Any) -> None:
    found = post(app, "fill", model=1, text="town,age\n=Basel,-3.5\nBern,\n")
    rows = list(csv.reader(io.StringIO(found["csv"])))
    assert rows[1] == ["'=Basel", "-3.5"]
    drawn = post(app, "rows", model=1, n=40, seed=1)
    assert not any(cell.startswith("=") for row in csv.reader(io.StringIO(drawn["csv"])) for cell in row)


def test_given_columns_are_given(app: Any) -> None:
    found = post(app, "rows", model=1, n=12, fixed={"town": "Bern"})
    assert {row[0] for row in found["cells"]} == {"Bern"}
    assert len({row[1] for row in found["cells"]}) == 12
    error = post(app, "rows", 400, model=1, fixed={"town": "Paris"})["error"]
    assert "Paris" in error
    assert "/" not in error


# ---- who is let in


def test_only_this_machine_with_the_token_gets_in(app: Any) -> None:
    assert get(app, "/api/about").status_code == 200
    assert get(app, "/api/about", **{"x-memgen-token": "wrong"}).status_code == 401
    assert get(app, "/report/0").status_code == 401
    for host in ("evil.example", "evil.example:8765", "127.0.0.1.evil.example", "", "[::1", "10.0.0.1"):
        assert get(app, "/api/about", host=host).status_code == 403, host
        assert get(app, "/", host=host).status_code == 403, host
    for origin in ("http://evil.example", "null", "http://127.0.0.1:1", f"https://{HOST}"):
        assert get(app, "/api/about", origin=origin).status_code == 403, origin
    assert get(app, "/api/about", origin=f"http://{HOST}").status_code == 200
    assert get(app, "/api/about", **{"sec-fetch-site": "cross-site"}).status_code == 403


def test_every_answer_carries_the_policy(app: Any) -> None:
    for path in ("/", "/app.js", "/api/about", "/nowhere", "/api/samples"):
        headers = get(app, path).headers
        assert headers["content-security-policy"].startswith("default-src 'self'"), path
        assert headers["x-content-type-options"] == "nosniff"
    assert "set-cookie" not in get(app, "/").headers


def test_no_path_reaches_the_file_system(app: Any, tmp_path: Path) -> None:
    (tmp_path / "runs" / "one" / "report.html").write_text("<p>report</p>")
    for path in ("/../asks.py", "/..%2fasks.py", "/static/../../asks.py", "//etc/passwd", "/report/-1", "/report/99999999999999999999"):
        assert get(app, path).status_code in (400, 401, 404), path
    asyncio.run(_looked(app))
    answer = get(app, f"/report/0?token={TOKEN}")
    assert answer.text == "<p>report</p>"
    assert "sandbox" in answer.headers["content-security-policy"]


async def _looked(app: Any) -> None:
    await anext(aiter(page_of(app)._changes()))


def page_of(app: Any) -> server.Page:
    """The page behind an application."""
    own = next(route.endpoint.__self__ for route in app.app.routes if hasattr(route.endpoint, "__self__"))
    assert isinstance(own, server.Page)
    return own


def test_requests_that_are_too_large_are_refused(app: Any) -> None:
    async def go(content: Any) -> int:
        async with client(app) as own:
            return (await own.post("/api/fill", content=content)).status_code

    async def endless() -> Any:
        for _ in range(40):
            yield b"x" * 100_000

    assert asyncio.run(go(b"x" * (safety.LARGEST_BODY + 1))) == 413
    assert asyncio.run(go(endless())) == 413
    rows = "\n".join(["town,age"] + ["Bern,1"] * (asks.MOST_ROWS + 1))
    assert "1,000 rows" in post(app, "fill", 400, model=1, text=rows)["error"]


def test_errors_are_one_line_and_tell_nothing_of_this_machine(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, body in (("decode", {"z": [1.0]}), ("images", {"model": 9}), ("decode", {"z": "x"}), ("fill", {"text": "a"})):
        error = post(app, name, 400, **body)["error"]
        assert error
        assert "\n" not in error
        assert "/tmp" not in error

    def broken(*anything: Any) -> None:
        raise RuntimeError("secret /path")

    monkeypatch.setattr(service, "samples", broken)
    assert "secret" not in post(app, "samples", 500)["error"]


def test_other_machines_are_let_in_only_if_that_is_said(tmp_path: Path) -> None:
    with pytest.raises(MemgenError, match="--allow-remote"):
        server.serve(host="0.0.0.0")
    with pytest.raises(MemgenError, match="in numbers"):
        server.serve(host="example.org", allow_remote=True)


def test_the_command_says_what_is_wrong_in_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        assert main(["serve", str(image_model(tmp_path)), "--port", port]) == 2
    assert f"port {port}" in capsys.readouterr().err
    assert main(["serve", "zoo:nothing"]) == 2
    assert main(["serve", "--host", "0.0.0.0"]) == 2


# ---- bounded and in turn


def test_a_newer_request_outdates_the_older_ones_of_its_client_and_topic() -> None:
    workers = work.Workers(1)
    first, other = workers.ticket("me", "decode", 1), workers.ticket("you", "decode", 1)
    first.check()
    second = workers.ticket("me", "decode", 2)
    with pytest.raises(work.OutdatedError):
        first.check()
    second.check()
    other.check()
    for i in range(3 * work.REMEMBERED):
        workers.ticket(str(i), "t", 1)
    assert len(workers.latest) == work.REMEMBERED
    workers.close()


def test_an_outdated_request_is_answered_as_such(app: Any) -> None:
    async def go() -> list[int]:
        async with client(app, **{"x-memgen-client": "me", "x-memgen-topic": "t"}) as own:
            late = await own.post("/api/samples", json={"n": 1}, headers={"x-memgen-turn": "2"})
            early = await own.post("/api/samples", json={"n": 1}, headers={"x-memgen-turn": "1"})
            return [late.status_code, early.status_code]

    assert asyncio.run(go()) == [200, 409]


def test_work_has_an_end() -> None:
    ticket = work.Ticket(lambda: True)
    ticket.start()
    ticket.until = 0.0
    with pytest.raises(MemgenError, match="longer than"):
        ticket.check()


def test_too_many_requests_are_turned_away(app: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work, "MOST_WAITING", 0)
    assert post(app, "samples", 429)["error"].startswith("busy")


def test_runs_are_told_again_when_they_go_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shown: list[Shown]) -> None:
    monkeypatch.setattr(server, "POLL", 0.0)
    run = run_folder(tmp_path / "runs" / "one")
    page = server.Page(shown, Runs((), tmp_path / "runs"), work.Workers())

    async def go() -> list[int]:
        events, seen = page._changes(), []
        async for name, value in events:
            if name == "run":
                seen.append(len(value["epochs"]))
                if len(seen) == 2:
                    await events.aclose()  # type: ignore[attr-defined]
                    break
                run.log(Epoch(4, 1.0, -1.0, 1e-3, 4.0))
        return seen

    assert asyncio.run(go()) == [3, 4]
    assert page.runs.describe(0)["settings"]["data.name"] == "digits"
    assert page.streams == 0


def test_many_clients_at_once_get_what_one_gets(app: Any) -> None:
    """MEMGEN_LOAD_SECONDS says for how long."""
    z = post(app, "samples", n=CLIENTS)["z"]
    changes = [{"place": 0, "slot": 1}]
    alone = [post(app, "look", z=code, changes=changes) for code in z]

    async def ask_for(own: httpx.AsyncClient, i: int, until: float) -> int:
        done = 0
        while asyncio.get_running_loop().time() < until or not done:
            found = await own.post("/api/look", json={"z": z[i], "changes": changes})
            if found.status_code == 429:
                continue
            assert found.json() == alone[i]
            done += 1
        return done

    async def go() -> int:
        async with client(app) as own:
            until = asyncio.get_running_loop().time() + SECONDS
            return sum(await asyncio.gather(*(ask_for(own, i, until) for i in range(CLIENTS))))

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    assert asyncio.run(go()) >= CLIENTS
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 300_000  # kilobytes


# ---- anything at all

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=30),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
codes = st.lists(st.floats(-50, 50), min_size=5, max_size=7)
fields: dict[str, st.SearchStrategy[Any]] = {
    "model": st.integers(-1, 3),
    "z": codes,
    "a": codes,
    "b": codes,
    "seed": st.integers(-1, 2**31),
    "n": st.integers(-1, 101),
    "image": st.integers(-1, 2000),
    "first": st.integers(-1, 3000),
    "pixels": st.text("0123456789abcdef", max_size=130),
    "hidden": st.text("01", min_size=60, max_size=66),
    "steps": st.integers(0, 40),
    "place": st.integers(-1, 3),
    "slot": st.integers(-2, 9),
    "draw": st.booleans(),
    "pattern": st.sampled_from(["half", "rect-3", "rand-0.5", "rect-99", "rand-x", "half-top"]),
    "changes": st.lists(
        st.fixed_dictionaries(
            {"place": st.integers(-1, 3), "slot": st.integers(-2, 9)},
            optional={"factor": st.floats(-1, 21), "other": st.integers(-1, 9)},
        ),
        max_size=3,
    ),
    "text": st.text(string.printable, max_size=80) | st.just("town,age\nBern,\n,3\n"),
    "fixed": st.dictionaries(st.sampled_from(["town", "age", "x"]), st.text(max_size=6), max_size=2),
}


def requests() -> st.SearchStrategy[tuple[str, bytes]]:
    """For every name: fields that it knows, each likely to be right, or anything at all."""
    def of(name: str) -> st.SearchStrategy[tuple[str, bytes]]:
        known = {key: fields[key] for key in server.ANSWERS[name][0].model_fields if key in fields}
        right = st.fixed_dictionaries({}, optional=known)
        wrong = st.dictionaries(st.sampled_from([*known, "x"]), json_values, max_size=4)
        bodies = st.one_of(right, right, right, wrong).map(lambda body: json.dumps(body).encode())
        return st.tuples(st.just(name), bodies | st.binary(max_size=40))

    return st.one_of([of(name) for name in server.ANSWERS])


def test_no_request_breaks_the_server(shown: list[Shown], tmp_path: Path) -> None:
    workers = work.Workers()
    app = server.application(shown, Runs(), Door(TOKEN), workers)
    loop = asyncio.new_event_loop()
    own = client(app)

    @settings(max_examples=FUZZ, deadline=None, derandomize=True, database=None, suppress_health_check=list(HealthCheck))
    @given(requests())
    def ask(request: tuple[str, bytes]) -> None:
        name, body = request
        answer = loop.run_until_complete(asyncio.wait_for(own.post(f"/api/{name}", content=body), 30))
        assert answer.status_code in (200, 400), (name, body, answer.text)
        found = answer.json()
        if answer.status_code == 400:
            assert found["error"]
            assert "\n" not in found["error"]

    ask()
    loop.run_until_complete(own.aclose())
    loop.close()
    workers.close()


def test_models_of_tables_have_no_images_and_say_so(app: Any) -> None:
    hidden = "00"
    for name, body in (("images", {}), ("complete", {"image": 0, "hidden": hidden}), ("pattern", {"pattern": "half"})):
        assert post(app, name, 400, model=1, **body)["error"]
