"""What the tests of the page are given; where its extra is not installed they are skipped, and say so."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.checks import unchecked

if TYPE_CHECKING:
    from playwright.sync_api import Browser

    from memgen.web.models import Served
    from memgen.web.safety import Guard
    from tests.web.browser import Opened, Site

NEEDED = ("starlette", "uvicorn", "pydantic", "httpx", "hypothesis")


class Skipped(pytest.Module):
    """A file of tests that is not even imported."""

    def collect(self) -> NoReturn:
        pytest.skip("the page needs packages that are not installed: pip install '.[web]', and playwright")


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> pytest.Module | None:
    needed = (*NEEDED, "playwright") if "browser" in module_path.name else NEEDED
    if module_path.name.startswith("test_") and not all(map(find_spec, needed)):
        return Skipped.from_parent(parent, path=module_path)
    return None


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> list[Served]:
    """A model of images and one of a table."""
    from memgen.web.models import load
    from tests.web.served import image_model, table_model

    folder = tmp_path_factory.mktemp("models")
    return load([str(image_model(folder)), str(table_model(folder))])


@pytest.fixture
def app(served: list[Served], tmp_path: Path) -> Iterator[Guard]:
    from memgen.web import application, work
    from memgen.web.runs import Runs
    from memgen.web.safety import Access
    from tests.web.served import TOKEN, run_folder

    run_folder(tmp_path / "runs" / "one")
    workers = work.Workers()
    yield application.application(served, Runs((), tmp_path / "runs"), Access(TOKEN), workers)
    workers.close()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    from tests.web.browser import Site

    with unchecked():  # as users have it: a page waits for its answers
        found = Site(tmp_path_factory.mktemp("site"))
        yield found
        found.close()


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    from playwright.sync_api import sync_playwright

    from tests.web.browser import CHROMIUM, FLAGS

    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=[f"--{flag}" for flag in FLAGS])
        yield found
        found.close()


@pytest.fixture
def opened(browser: Browser, site: Site) -> Iterator[Opened]:
    from tests.web.browser import Opened

    found = Opened(browser, site)
    yield found
    for context in browser.contexts:
        context.close()
    assert found.complaints == []
