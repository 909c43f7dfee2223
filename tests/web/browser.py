"""A served page and a browser that may talk to this machine only."""

from __future__ import annotations

import os
import re
import shutil
import threading
from pathlib import Path
from urllib.parse import urlsplit

import uvicorn
from playwright.sync_api import Browser, Locator, Page, Route, expect

from memgen.runs.run import Run
from memgen.web import application, server
from memgen.web.models import load
from memgen.web.runs import Runs
from memgen.web.safety import Access
from memgen.web.work import Workers
from tests.web.served import image_model, run_folder, table_model

CHROMIUM = next((path for name in ("chromium", "chromium-browser") if (path := shutil.which(name))), None)

AXE = Path(os.environ.get("MEMGEN_AXE", Path(__file__).parents[2] / ".browser" / "axe.min.js"))
FLAGS = ["no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking"]
FLAGS += ["disable-component-update", "disable-sync"]
TOKEN = "a-token"
PANELS = {
    "generate": "Generate",
    "complete": "Complete",
    "memory": "Inside the memory",
    "tables": "Tables",
    "runs": "Runs",
}


class Site:
    """A server, and where it is."""

    def __init__(self, folder: Path) -> None:
        self.run: Run = run_folder(folder / "runs" / "one")
        run_folder(folder / "runs" / "two", 9)
        (folder / "runs" / "two" / "report.html").write_text("<h1>A report</h1>")
        (folder / "vae").mkdir()
        models = [str(image_model(folder)), str(image_model(folder / "vae")), str(table_model(folder))]
        socket = server.listen("127.0.0.1", 0)
        self.address = f"http://127.0.0.1:{socket.getsockname()[1]}/"
        self.workers = Workers()
        app = application.application(load(models), Runs((), folder / "runs"), Access(TOKEN), self.workers)
        self.server = uvicorn.Server(
            uvicorn.Config(app, log_level="error", ws="none", lifespan="off", timeout_graceful_shutdown=1)
        )
        self.thread = threading.Thread(target=self.server.run, kwargs={"sockets": [socket]})
        self.thread.start()

    def close(self) -> None:
        self.server.should_exit = True
        self.thread.join()
        self.workers.close()


class Opened:
    """Pages that may talk to the server alone; every complaint of theirs fails the test."""

    def __init__(self, browser: Browser, site: Site) -> None:
        self.browser, self.site = browser, site
        self.complaints: list[str] = []

    def __call__(
        self, panel: str, *, width: int = 1280, scheme: str = "light", more: str = "", **options: bool
    ) -> Page:
        context = self.browser.new_context(
            viewport={"width": width, "height": 900},
            color_scheme="dark" if scheme == "dark" else "light",
            accept_downloads=True,
            bypass_csp=options.get("bypass_csp", False),
            has_touch=options.get("has_touch", False),
        )
        context.set_default_timeout(120_000)
        expect.set_options(timeout=120_000)
        context.route("**/*", self._local)
        page = context.new_page()
        page.on("pageerror", lambda error: self.complaints.append(str(error)))
        page.on("console", lambda said: self.complaints.append(said.text) if said.type == "error" else None)
        page.goto(f"{self.site.address}#token={TOKEN}&panel={panel}{more}")
        expect(page.get_by_role("tabpanel")).to_be_visible()
        return page

    def _local(self, route: Route) -> None:
        if urlsplit(route.request.url).netloc == urlsplit(self.site.address).netloc:
            route.continue_()
            return
        self.complaints.append(f"queries for {route.request.url}")
        route.abort()


def pixels(canvas: Locator) -> str:
    return str(canvas.evaluate("canvas => canvas.toDataURL()"))


def wait_until_painted(canvas: Locator) -> str:
    expect(canvas).to_have_attribute("data-count", re.compile("."))
    return pixels(canvas)


def changed(canvas: Locator, before: str | None) -> str:
    """Its pixels, once it has been painted anew."""
    expect(canvas).not_to_have_attribute("data-count", before or "")
    return pixels(canvas)


def drag(page: Page, canvas: Locator, start: tuple[float, float], end: tuple[float, float]) -> None:
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    points = [(box["x"] + x * box["width"], box["y"] + y * box["height"]) for x, y in (start, end)]
    page.mouse.move(*points[0])
    page.mouse.down()
    page.mouse.move(*points[1], steps=8)
    page.mouse.up()
