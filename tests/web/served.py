"""Small models, runs and clients for the tests of the page."""

from __future__ import annotations

import asyncio
import base64
from pathlib import Path
from typing import Any

import httpx
import torch

from memgen.core.model import DGM
from memgen.data.columns import Columns
from memgen.data.form import Form
from memgen.recipes.build import build
from memgen.recipes.settings import Recipe
from memgen.runs.modelfile import save
from memgen.runs.run import Run
from memgen.tasks import inspection
from memgen.training.fit import Epoch
from memgen.web import application

TOKEN = "a-token"
HOST = "127.0.0.1:8765"


def image_model(folder: Path) -> Path:
    """Digits of 8 x 8, a memory on both layers, weights as they begin, but with attention that tells slots apart."""
    recipe = Recipe.named("digits-mem-vae").override(
        ["model.hidden=[24, 16]", "model.slots=[7, 5]", "model.latent=6", "model.norm=none", "model.composition=sum"]
    )
    torch.manual_seed(3)
    model = with_memory(build(recipe))
    save(model, folder / "images.safetensors", recipe)
    return folder / "images.safetensors"


def with_memory(model: DGM) -> DGM:
    """The model with a memory that matters: its slots begin near zero."""
    with torch.no_grad():
        for place in inspection.places(model):
            place.layer.memory.M.mul_(80)
    return model


def table_model(folder: Path) -> Path:
    import numpy as np

    generator = np.random.RandomState(0)
    town = generator.choice(["Bern", "=Basel"], 60).astype(object)
    columns = Columns.infer([town, generator.randn(60) * 10 + 50], ["town", "age"])
    recipe = Recipe().override(
        ["model.hidden=[8]", "model.slots=[4]", "model.latent=2", "model.norm=none", "model.likelihood=mixed"]
    )
    torch.manual_seed(0)
    form = Form(columns=columns)
    save(with_memory(build(recipe, 2, form.kinds)), folder / "table.safetensors", recipe, form=form)
    return folder / "table.safetensors"


def run_folder(folder: Path, epochs: int = 3) -> Run:
    folder.parent.mkdir(exist_ok=True)
    run = Run.create(folder, Recipe.named("digits-vae"))
    for epoch in range(1, epochs + 1):
        run.log(Epoch(epoch, 20.0 / epoch, -20.0 / epoch, 1e-3, float(epoch)))
    return run


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


def page_of(app: Any) -> application.Page:
    """The page behind an application."""
    own = next(route.endpoint.__self__ for route in app.app.routes if hasattr(route.endpoint, "__self__"))
    assert isinstance(own, application.Page)
    return own
