"""Filters, the search and links to events, in a real browser."""

from __future__ import annotations

import json
import re
from typing import Any

from playwright.sync_api import Page, expect

from kernai.events import KINDS
from tests.viewer.conftest import Show, rows
from tests.viewer.recordings import Script, long, small


def test_filters_by_type_scope_and_errors_hold_together_in_every_view(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    page.keyboard.press("e")
    headings = page.locator("#conversation").locator(".divider h2, .card h3").all_inner_texts()
    assert headings == ["Run buyer", "Step 0", "Task buyer \u203a south", "Step 0"]
    assert rows(page) == ["buyer", "Step 0 · no_such", "Step 1", "south", "Step 0 · look_up"]
    page.keyboard.press("e")
    expect(page.locator("#errors")).to_have_attribute("aria-pressed", "false")
    assert bars_of_tokens(page) == 8
    page.keyboard.press("2")
    page.locator("#scope").select_option(label=next(
        label for label in page.locator("#scope option").all_inner_texts() if "(1.south)" in label))
    shown = [entry["event"] for entry in bought if entry["scope"] == "1.south"]
    expect(page.locator("#events .type")).to_have_text(shown)
    assert (rows(page), bars_of_tokens(page)) == (["south", "Step 0 · look_up", "Step 1"], 2)
    page.get_by_text("Types", exact=True).click()
    page.get_by_role("checkbox", name="messages_sent").uncheck()
    page.keyboard.press("Escape")
    assert page.locator("#events .type").all_inner_texts() == [kind for kind in shown if kind != "messages_sent"]
    page.locator("#errors").click()
    assert page.locator("#events .type").all_inner_texts() == ["skill_error"]
    assert (rows(page), bars_of_tokens(page)) == (["south", "Step 0 · look_up"], 1)
    page.get_by_role("button", name="Clear filters").click()
    expect(page.locator("#events .card").first).to_have_attribute("aria-setsize", str(len(bought)))
    assert len(rows(page)) == 12


def bars_of_tokens(page: Page) -> int:
    drawn = page.get_by_role("img", name="Tokens by step").locator("path.prompt").get_attribute("d") or ""
    return drawn.count("M")


def test_the_search_counts_and_marks_matches_and_moves_between_them(show: Show) -> None:
    page = show(long(2_000))
    page.keyboard.press("2")
    page.keyboard.press("/")
    page.keyboard.type("PAGE 31")  # case does not matter
    page.keyboard.press("Enter")
    expect(page.locator("#found")).to_have_text(re.compile(r"^1 of \d+$"))
    found = int(page.locator("#found").inner_text().rpartition(" ")[2])
    assert found == 3 * 11  # 31 and 310 to 319, each in the call, its result, and the messages
    expect(page.locator(".current mark").first).to_be_in_viewport()
    page.keyboard.press("Shift+Enter")
    expect(page.locator("#found")).to_have_text(f"{found} of {found}")
    page.keyboard.press("Escape")
    expect(page.locator("#found")).to_have_text("")
    assert page.locator("mark").count() == 0


def test_a_match_names_its_step_and_the_time_line_selects_it(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    page.locator("#tree .row", has=page.get_by_text("south", exact=True)).locator(".twisty").click()
    assert len(rows(page)) == 10  # of 12 steps, because south's two are hidden
    page.locator("#search").fill("south is closed")
    places = []
    for _ in range(3):
        page.locator("#search").press("Enter")
        places.append(page.locator("#found-in").inner_text())
    assert places == ["buyer, step 1", "buyer \u203a south, step 0", "buyer \u203a south, step 1"]
    expect(page.locator("#tree .row[aria-selected=true] .name")).to_have_text("Step 1")
    assert len(rows(page)) == 12
    page.locator("#search").press("Escape")
    expect(page.locator("#found-in")).to_have_text("")


def test_a_match_in_the_hidden_part_of_a_text_is_revealed_and_special_characters_are_literal(show: Show) -> None:
    page = show(Script().add("final", "x " * 50_000 + "needle (c)" + " x" * 50_000).entries)
    page.keyboard.press("2")
    page.locator("#search").fill("needle (c)")
    expect(page.locator("#found")).to_have_text("1 found")
    expect(page.locator("#events mark")).to_have_text("needle (c)")
    page.locator("#search").fill("needle+|c")
    expect(page.locator("#found")).to_have_text("none found")


def test_a_url_with_an_event_opens_that_event(show: Show) -> None:
    page = show(long(3_000), at="#e1500")
    expect(page.locator("#e1500")).to_be_in_viewport()
    expect(page.locator("#e1500")).to_be_focused()
    page.evaluate("location.hash = '#e2998'")
    expect(page.locator("#e2998")).to_be_in_viewport()
    assert page.locator("#events .card").count() < 400  # cards far away are not drawn


def test_the_way_back_from_an_event_leads_to_the_conversation_and_a_link_removes_a_filter(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    page.locator("#conversation .card.step .link").first.click()
    expect(page.locator("#e3")).to_be_in_viewport()
    page.go_back()
    expect(page.locator("#conversation")).to_be_visible()
    page.keyboard.press("2")
    page.locator("#errors").click()
    page.evaluate("location.hash = '#e1'")
    expect(page.locator("#e1")).to_be_in_viewport()
    expect(page.locator("#errors")).to_have_attribute("aria-pressed", "false")
    page.evaluate("location.hash = '#e99999'")
    expect(page.locator("#said")).to_have_text("There is no event 99999.")


def test_each_kind_has_the_colour_of_its_group_and_an_unknown_one_shows_its_data(show: Show) -> None:
    script = Script()
    for kind in KINDS:
        script.add(kind, {})
    page = show(script.add("model_napping", {"seconds": 3}).add("new_error", {}).entries, at=f"#e{len(KINDS) + 1}")
    card = page.locator(f"#e{len(KINDS) + 1}")
    expect(card.get_by_role("heading")).to_have_text("model napping")
    expect(card.locator(".text").first).to_contain_text('"seconds": 3')
    page.locator("#types-box summary").click()
    shown = {label.locator(".name").inner_text(): label.get_attribute("class") for label in page.locator("#types label").all()}
    assert shown == {kind.type: kind.group for kind in KINDS.values()} | {"model_napping": "other", "new_error": "other"}
    page.locator("#errors").click()
    problems = {kind.type for kind in KINDS.values() if kind.is_warning or kind.group == "problem"} | {"new_error"}
    expect(page.locator("#events")).to_contain_text("fails")
    assert page.evaluate("document.querySelectorAll('#events .card:not(.bad)').length") == 0
    expect(page.locator("#head")).to_contain_text(f"{len(problems)} problems")


def test_the_link_of_each_event_can_be_copied(show: Show) -> None:
    page = show(small().entries, at="#e4")
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    assert [link.get_attribute("href") for link in page.locator("#events header .link").all()] == [f"#e{n}" for n in range(1, 7)]
    page.keyboard.press("c")
    expect(page.locator("#said")).to_have_text("The link is copied.")
    assert page.evaluate("navigator.clipboard.readText()").endswith("run.html#e4")


def test_the_details_of_an_event_show_its_json_but_do_not_repeat_messages_that_were_sent_before(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought, at="#e3")
    page.keyboard.press("o")
    assert json.loads(page.locator("#e3 .json").inner_text()) == bought[2]
    page.keyboard.press("o")
    expect(page.locator("#e3 .json")).to_be_hidden()
    second = [at for at, entry in enumerate(bought, 1) if entry["event"] == "messages_sent" and entry["scope"] == ""][1]
    page.evaluate(f"location.hash = '#e{second}'")
    expect(page.locator(f"#e{second}")).to_be_focused()
    page.keyboard.press("o")
    expect(page.locator(f"#e{second} .note")).to_have_text("Messages 1 to 2 were sent before and are not repeated here.")
