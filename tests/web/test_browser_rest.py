"""Tables, runs, the keyboard, narrow screens: as a person uses them, in a real browser."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from playwright.sync_api import Browser, expect

from memgen.training.fit import Epoch
from tests.web.browser import AXE, CHROMIUM, PANELS, Opened, Site, changed, wait_until_painted

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine: make browser")


def test_a_table_is_uploaded_filled_in_and_downloaded(opened: Opened, tmp_path: Path) -> None:
    page = opened("tables", more="&model=table")
    source = tmp_path / "mine.csv"
    source.write_text("town,age\nBern,\n,41.5\n=Basel,60\n")
    page.locator("#file").set_input_files(source)
    expect(page.locator("td.new")).to_have_count(2)
    page.locator("td.new").nth(1).focus()
    expect(page.locator(".status")).to_contain_text("of 20")
    with page.expect_download() as download:
        page.locator(".result-table").get_by_role("button", name="Download CSV").click()
    text = Path(download.value.path()).read_text()
    assert "'=Basel,60" in text
    page.get_by_role("button", name="Take an example").click()
    expect(page.locator("#csv")).to_have_value(re.compile("^town,age\n(.*\n){11}.*$"))


def test_rows_are_scored_and_drawn_given_a_range(opened: Opened) -> None:
    page = opened("tables", more="&model=table")
    page.locator("#csv").fill("town,age\nBern,48\n=Basel,600\n")
    page.locator("#score").click()
    first = page.locator(".result-table tbody tr").first
    expect(first).to_contain_text("age")
    expect(first.locator("th")).to_have_text("2")
    expect(first.locator("td.new")).to_contain_text(["600"])
    page.get_by_role("button", name="Least likely first").click()
    expect(first.locator("th")).to_have_text("1")
    page.locator("#column-0").select_option("Bern")
    page.locator("#column-1").fill(">45")
    page.locator("#draw-rows").click()
    expect(page.locator("td.given")).to_have_count(20)
    expect(page.locator(".conditional .note")).to_contain_text("Log probability of the condition")


def test_the_memory_of_a_table_shows_rows(opened: Opened) -> None:
    page = opened("memory", more="&model=table")
    expect(page.locator(".onbench table").first).to_contain_text("Memory intact")
    page.get_by_role("button", name="Row 3").click()
    expect(page.locator(".onbench .note").first).to_contain_text("x is row 3")
    chart = page.locator(".chart").first
    chart.press("Home")
    chart.press("s")
    expect(page.locator(".chips")).to_contain_text("slot 0 silenced")
    expect(page.locator("#difference")).to_have_attribute("data-samples", "1000")
    expect(page.locator(".slot table").first).to_contain_text("town")
    expect(page.locator(".nearest table")).to_contain_text("Distance")
    expect(page.locator("#by")).to_have_value("town")
    expect(page.locator(".slot dl")).to_contain_text("Bern")


def test_runs_go_on_while_one_looks(opened: Opened, site: Site) -> None:
    page = opened("runs")
    expect(page.locator(".run")).to_have_count(2)
    expect(page.locator(".run").first).to_contain_text("epoch 3 of")
    site.run.log(Epoch(4, 1.0, -1.0, 1e-3, 4.0))
    expect(page.locator(".run").first).to_contain_text("epoch 4 of")
    with page.context.expect_page() as report:
        page.get_by_role("link", name="Report").click()
    expect(report.value.get_by_role("heading")).to_have_text("A report")
    page.get_by_role("button", name="All").click()
    expect(page.locator(".settings table")).to_contain_text("training.epochs")


def test_everything_is_reached_by_keyboard(opened: Opened) -> None:
    page = opened("generate")
    expect(page.locator(".samples .tile")).to_have_count(48)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    page.locator("#tab-generate").focus()
    for name in ["complete", "memory", "tables", "runs", "generate"]:
        page.keyboard.press("ArrowRight")
        expect(page.locator(f"#tab-{name}")).to_be_focused()
        expect(page.locator(f"#tab-{name}")).to_have_attribute("aria-selected", "true")
    wait_until_painted(page.locator("#bench"))
    expect(page.locator("#direction-0")).to_be_visible()
    page.locator(".map").focus()
    count = page.locator("#bench").get_attribute("data-count")
    page.keyboard.press("ArrowRight")
    changed(page.locator("#bench"), count)
    page.locator("#tab-complete").focus()
    page.keyboard.press("Enter")
    expect(page.locator(".edit [role=status]")).to_contain_text("32 of 64")
    page.get_by_role("button", name="Nothing erased").press("Enter")
    page.locator(".editor").focus()
    page.keyboard.press("ArrowRight")
    page.keyboard.press("Space")
    page.locator(".edit .note").first.wait_for()
    expect(page.locator(".result").first).to_contain_text("nats")


def test_panels_fit_a_narrow_screen_and_turn_dark(opened: Opened) -> None:
    page = opened("generate", width=360, has_touch=True)
    for panel, name in PANELS.items():
        page.locator(f"#tab-{panel}").tap()
        expect(page.get_by_role("tab", name=name)).to_have_attribute("aria-selected", "true")
        page.wait_for_timeout(400)
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), panel
    page.locator("#model").select_option(label="table")
    page.locator("#tab-tables").tap()
    page.locator("#draw-rows").tap()
    expect(page.locator(".conditional td").first).to_be_visible()
    assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
    light = page.evaluate("getComputedStyle(document.body).backgroundColor")
    page.get_by_role("button", name="Dark theme").tap()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") != light


def test_a_page_without_the_token_says_what_to_do(browser: Browser, site: Site) -> None:
    page = browser.new_page()
    page.goto(site.address)
    expect(page.get_by_role("heading", name="This page needs its token")).to_be_visible()
    page.context.close()


@pytest.mark.skipif(not AXE.exists(), reason="axe-core is not here: make browser")
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_axe_finds_no_serious_issue(opened: Opened, scheme: str) -> None:
    page = opened("generate", scheme=scheme, bypass_csp=True)
    wait_until_painted(page.locator("#bench"))
    page.add_script_tag(content=AXE.read_text())
    for panel in PANELS:
        page.locator(f"#tab-{panel}").click()
        page.wait_for_timeout(700)
        found = page.evaluate("axe.run(document, {resultTypes: ['violations']}).then(r => r.violations)")
        bad = [(one["id"], one["nodes"][0]["html"][:120]) for one in found if one["impact"] in ("serious", "critical")]
        assert bad == [], panel
