"""The panels for images, as a person uses them, in a real browser."""

from __future__ import annotations

import re
from urllib.parse import urlsplit

import pytest
from playwright.sync_api import expect

from tests.web.browser import CHROMIUM, Opened, changed, drag, pixels, wait_until_painted

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on this machine: make browser")


def test_a_point_is_dragged_over_the_map_and_the_view_can_be_shared(opened: Opened) -> None:
    page = opened("generate")
    bench = page.locator("#bench")
    first = wait_until_painted(bench)
    expect(page.locator(".samples .tile")).to_have_count(48)
    expect(page.locator("#direction-0")).to_be_visible()
    count = bench.get_attribute("data-count")
    drag(page, page.locator(".map"), (0.5, 0.5), (0.9, 0.2))
    page.wait_for_timeout(300)
    dragged = changed(bench, count)
    assert dragged != first
    page.get_by_role("button", name="To the centre").click()
    page.wait_for_timeout(300)
    count = bench.get_attribute("data-count")
    page.locator("#direction-2").focus()
    page.keyboard.press("End")
    changed(bench, count)
    page.wait_for_timeout(600)
    shared = urlsplit(page.url).fragment
    assert "token" not in shared
    other = opened("generate", more=f"&{shared.replace('panel=generate&', '')}")
    wait_until_painted(other.locator("#bench"))
    other.wait_for_timeout(500)
    assert pixels(other.locator("#bench")) == pixels(bench)


def test_samples_go_onto_the_bench_and_into_a_morph(opened: Opened) -> None:
    page = opened("generate")
    bench = page.locator("#bench")
    wait_until_painted(bench)
    for index, name in ((5, "Start of morph"), (9, "End of morph")):
        count = bench.get_attribute("data-count")
        page.locator(".samples .tile").nth(index).click()
        changed(bench, count)
        page.get_by_role("button", name=name).click()
    expect(page.locator(".morph .tile")).to_have_count(9)
    page.get_by_role("button", name="New samples").click()
    expect(page.locator("#seed")).to_have_value("1")
    page.get_by_role("button", name="Draws").click()
    expect(page.locator(".samples .note")).to_contain_text("One draw of x")
    page.locator("#class").select_option("7")
    expect(page.locator(".samples .note")).to_contain_text("of class 7 (the model itself has no classes)")
    expect(page.locator("#hold")).to_have_count(0)
    with page.expect_download() as download:
        page.get_by_role("button", name="Save PNG").click()
    assert download.value.suggested_filename == "memgen.png"


def test_a_slot_is_silenced_amplified_and_swapped(opened: Opened) -> None:
    page = opened("memory")
    difference = page.locator("#difference")
    expect(page.locator(".near canvas")).to_have_count(4)
    page.locator(".onbench .tile").nth(2).click()
    expect(page.locator(".onbench .note").first).to_contain_text("image 2")
    chart = page.locator(".chart").first
    chart.focus()
    page.keyboard.press("Home")
    for _ in range(3):
        page.keyboard.press("ArrowRight")
    expect(chart).to_have_attribute("aria-valuenow", "3")
    page.keyboard.press("s")
    expect(page.locator(".chips")).to_contain_text("slot 3 silenced")
    expect(difference).not_to_have_text(re.compile("^(\u2013|\u2212?0.00)$"))
    expect(difference).to_have_attribute("data-samples", "1000")
    page.locator("#factor").focus()
    page.keyboard.press("End")
    expect(page.locator(".chips")).to_contain_text("\u00d7 5.0")
    page.locator("#other").fill("1")
    page.get_by_role("button", name="Swap").click()
    expect(page.locator(".chips")).to_contain_text("slots 3 and 1 swapped")
    page.get_by_role("button", name="Silence the layer").nth(1).click()
    page.wait_for_timeout(600)
    expect(difference).to_have_attribute("data-samples", "1000")
    again = opened("memory", more=f"&{urlsplit(page.url).fragment.replace('panel=memory&', '')}")
    expect(again.locator(".chips li")).to_have_count(4)
    expect(again.locator("#difference")).to_have_attribute("data-samples", "1000")
    expect(again.locator("#difference")).to_have_text(difference.inner_text())
    page.get_by_role("button", name="Undo all").click()
    expect(page.locator(".chips")).to_be_hidden()
    page.locator("#measure-0").click()
    expect(page.locator(".slot dl")).to_contain_text("nats")


def test_a_click_on_the_chosen_column_silences_it(opened: Opened) -> None:
    page = opened("memory")
    canvas = page.locator(".chart canvas").first
    expect(page.locator(".readout").first).to_contain_text("weight")
    page.locator(".chart").first.press("Home")
    box = canvas.bounding_box()
    assert box is not None
    for _ in range(2):
        canvas.click(position={"x": 44 + (box["width"] - 44) * 2.5 / 7, "y": 60})
    expect(page.locator(".chips")).to_contain_text("slot 2 silenced")


def test_a_part_is_erased_with_the_brush_and_completed_by_two_models(opened: Opened) -> None:
    page = opened("complete")
    status = page.locator(".edit [role=status]")
    expect(status).to_contain_text("32 of 64")
    expect(page.locator(".result")).to_have_count(2)
    expect(page.locator(".result .measure").nth(1)).to_contain_text("nats")
    page.get_by_role("button", name="Nothing erased").click()
    expect(status).to_contain_text(re.compile("^0 of 64"))
    drag(page, page.locator(".editor"), (0.2, 0.2), (0.8, 0.2))
    expect(status).not_to_contain_text(re.compile("^0 of 64"))
    page.locator(".editor").focus()
    page.get_by_role("button", name="RECT-3").click()
    expect(status).to_contain_text("9 of 64")
    page.locator("#beside").select_option(label="nothing")
    expect(page.locator(".result")).to_have_count(1)
    page.get_by_role("button", name="Blank sheet").click()
    drag(page, page.locator(".editor"), (0.5, 0.1), (0.5, 0.9))
    expect(status).to_contain_text("drawn by hand")
    page.locator(".edit .tile").nth(3).click()
    expect(status).to_contain_text("image 3")
    expect(page.locator(".completions canvas").first).to_be_visible()
