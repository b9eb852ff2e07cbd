"""How the page reads, in a real browser: by keyboard, in light and dark, on a phone, on paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from tests.viewer.recordings import Script, long, small

Show = Callable[..., Page]


def test_the_keys_move_through_the_cards_and_a_question_mark_lists_them(show: Show) -> None:
    page = show(long(200))
    page.keyboard.press("2")
    for key, expected in (("j", "e1"), ("j", "e2"), ("k", "e1"), ("G", "e201"), ("g", "e1")):
        page.keyboard.press(key)
        expect(page.locator(f"#{expected}")).to_be_focused()
        expect(page.locator(f"#{expected}")).to_be_in_viewport()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("j")  # belongs to the dialog now
    page.keyboard.press("Escape")
    expect(page.locator("#e1")).to_be_focused()


def test_the_first_tab_stop_skips_to_the_cards_and_focus_can_be_seen(show: Show) -> None:
    page = show(small().entries)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("j")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert (page.evaluate("document.activeElement.tagName"), outline) == ("ARTICLE", "solid")


def test_the_tabs_go_by_arrows(show: Show) -> None:
    page = show(small().entries)
    page.locator("#tab-conversation").focus()
    page.keyboard.press("ArrowRight")
    expect(page.get_by_role("tab", name="Events")).to_be_focused()
    expect(page.get_by_role("tab", name="Events")).to_have_attribute("aria-selected", "true")
    expect(page.locator("#events .card").first).to_be_visible()


def test_the_theme_is_the_systems_until_it_is_toggled(show: Show) -> None:
    page = show(small().entries, color_scheme="dark")
    ground = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(ground)
    page.keyboard.press("t")
    light = page.evaluate(ground)
    assert light != dark
    page.emulate_media(color_scheme="light")
    assert page.evaluate(ground) == light
    page.get_by_role("button", name="Light or dark").click()
    assert page.evaluate(ground) == dark


OVERFLOW = "() => Math.max(...[document.documentElement, ...document.querySelectorAll('#main > div, nav, .card, .toolbar, .top')].map((one) => one.scrollWidth - one.clientWidth))"


@pytest.mark.parametrize("key, width", [("1", 390), ("2", 390), ("3", 390), ("1", 800), ("2", 1080)])
def test_nothing_overflows_on_a_phone_or_a_tablet(show: Show, bought: list[dict[str, Any]], key: str, width: int) -> None:
    wide = Script().add("final", "w" * 4_000).add("x" * 300, {"y" * 300: "z" * 3_000}).entries
    page = show([*bought, *wide], title="t" * 300, viewport={"width": width, "height": 844})
    page.keyboard.press(key)
    expect(page.locator("#tree .row, .card").locator("visible=true").first).to_be_visible()
    assert page.evaluate(OVERFLOW) <= 0
    page.keyboard.press("G")
    assert page.evaluate(OVERFLOW) <= 0


@pytest.mark.parametrize("width, height", [(320, 256), (640, 450)])
def test_a_page_zoomed_far_in_gives_its_panes_the_screen(show: Show, bought: list[dict[str, Any]], width: int, height: int) -> None:
    page = show(bought, viewport={"width": width, "height": height})
    for key, pane in (("1", "conversation"), ("2", "events"), ("3", "timeline")):
        page.keyboard.press(key)
        assert page.locator(f"#panel-{pane}").evaluate("(pane) => pane.clientHeight") == height
        assert page.evaluate(OVERFLOW) <= 0


def test_buttons_are_named_as_they_are_labelled(show: Show, bought: list[dict[str, Any]]) -> None:
    """WCAG 2.5.3: who speaks the words that are seen reaches the button."""
    page = show(bought)
    named = "[...document.querySelectorAll('button[aria-label]')].map((one) => [one.getAttribute('aria-label'), one.innerText])"
    assert [pair for pair in page.evaluate(named) if pair[1].isascii() and pair[1].strip("?") not in pair[0]] == []


def test_on_a_phone_the_time_line_is_a_view_of_its_own_that_leads_to_the_cards(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought, viewport={"width": 390, "height": 844})
    expect(page.locator("#tree")).to_be_hidden()
    page.get_by_role("tab", name="Time line").click()
    expect(page.locator("#conversation")).to_be_hidden()
    page.locator(".row", has=page.get_by_text("Step 2", exact=True)).click()
    expect(page.locator(".target h3")).to_have_text("Step 2")
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(page.locator("#tree")).to_be_visible()


def test_paper_gets_every_card(show: Show) -> None:
    page = show(long(1_000), at="#e1")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("#events .card").count() == 1_001
    assert page.locator(".toolbar").is_hidden()
    assert page.locator(".track .bar").first.is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")


def test_json_is_laid_out_on_demand_with_its_numbers_as_recorded(show: Show) -> None:
    text = '{"orders": [{"id": 12345678901234567890, "note": "a, b: {c}", "tags": []}, {"id": 2.50, "note": "\\"", "tags": {}}]}'
    page = show(Script().add("final", text).entries)
    page.keyboard.press("2")
    block = page.locator("#events .card .text")
    page.get_by_role("button", name="Lay out").click()
    assert block.inner_text() == """\
{
  "orders": [
    {
      "id": 12345678901234567890,
      "note": "a, b: {c}",
      "tags": []
    },
    {
      "id": 2.50,
      "note": "\\"",
      "tags": {}
    }
  ]
}"""
    page.get_by_role("button", name="As recorded").click()
    assert block.inner_text() == text


@pytest.mark.parametrize("text", ["{" + "no JSON, " * 20, '{"short": 1}', "[" * 100], ids=["no JSON", "short", "cut off"])
def test_only_json_that_is_long_enough_to_need_it_can_be_laid_out(show: Show, text: str) -> None:
    page = show(Script().add("final", text).entries)
    page.keyboard.press("2")
    expect(page.locator("#events .card .text")).to_have_text(text)
    expect(page.get_by_role("button", name="Lay out")).to_have_count(0)
