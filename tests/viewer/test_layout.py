"""What the page shows at first, in common window sizes: complete names and figures, the answer, the colours."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from playwright.sync_api import Page, ViewportSize, expect

from tests.viewer.conftest import Show, box_of, step_card
from tests.viewer.recordings import Script, long, small

CUT = """() => [...document.querySelectorAll(".row .name, .row .figure, #axis > .figure")]
  .filter((one) => one.scrollWidth > one.clientWidth).map((one) => one.textContent)"""
COLUMNS = """() => [document.getElementById("axis"), ...document.querySelectorAll(".row")].map((row) =>
  [...row.querySelectorAll(":scope > .figure")].map((figure) => Math.round(figure.getBoundingClientRect().right)).join())"""
COLOUR = "(one) => getComputedStyle(one).backgroundColor"


def window(width: int, height: int = 900) -> ViewportSize:
    return {"width": width, "height": height}


def costly() -> Script:
    """A recording of four levels, with realistic names and costs of every size."""
    script = Script().add("run_start", {"agent": "incident_investigation", "input": "x"})
    script.turn(0, "x", prompt_tokens=9_999, completion_tokens=0, cost=0.0000012).turn(0, "x", cost=None)
    for step, cost in enumerate((0.00012, 0.0345, 0.999, 12_345.67, 0), 1):
        script.turn(step, "x", prompt_tokens=10**step, completion_tokens=7, cost=cost)
    for step, name in enumerate(("find_shared_devices", "look_up_customers")):
        script.add("task_start", {"task_id": "shared_devices"}, 1).turn(step, "x", prompt_tokens=70, completion_tokens=7, cost=0.0023)
        for event in script.entries[-2:]:
            event["scope"] = "1.shared_devices"
        script.add("skill_execute", {"call_id": f"1.shared_devices/{step}.0", "skill": name}, step, "1.shared_devices")
        script.add("skill_error", {"call_id": f"1.shared_devices/{step}.0", "skill": name, "error": "x"}, step, "1.shared_devices")
    return script


@pytest.mark.parametrize("width", [1200, 1440])
def test_no_name_and_no_figure_is_cut(show: Show, width: int) -> None:
    page = show(costly().entries, viewport=window(width))
    shown = page.locator("#tree").inner_text()
    assert [text for text in ("≥$12346.71", "$0.00012", "≥$0.0000012", "find_shared_devices", "incident_investigation")
            if text not in shown] == []
    assert page.evaluate(CUT) == []
    assert len(set(page.evaluate(COLUMNS))) == 1  # the columns are aligned with their headings
    assert page.evaluate("() => document.querySelector('.row .track').clientWidth") >= 60


def test_a_very_long_figure_leaves_room_for_the_others(show: Show) -> None:
    script = Script().turn(0, "x", prompt_tokens=2**62, completion_tokens=2**62, cost=123_456_789_012.3)
    script.add("skill_execute", {"call_id": "0.0", "skill": "look_up_" * 60})
    page = show(script.entries, viewport=window(1200))
    assert page.evaluate("() => document.querySelector('.row .track').clientWidth") >= 60
    assert page.evaluate("() => { const one = document.getElementById('panel-timeline'); return one.scrollWidth - one.clientWidth; }") == 0


def test_the_legend_names_the_colours_of_the_time_line(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought, viewport=window(1200))
    legend = page.get_by_role("list", name="Colours")
    expect(legend).to_be_in_viewport(ratio=1)
    assert legend.locator("li").all_inner_texts() == [
        "model", "skill or protocol", "task or sub-agent", "waits for a decision", "answer", "failed or corrected"]
    shown = {
        "model": ".bar.model", "skill or protocol": ".bar.skill:not(.bad)", "task or sub-agent": ".bar.task",
        "answer": ".block.answer h4", "failed or corrected": ".bar.skill.bad",
    }
    modes: tuple[Any, ...] = ("none", "active")
    for (name, place), forced in product(shown.items(), modes):
        page.emulate_media(forced_colors=forced)  # such as high contrast on Windows
        dot = legend.locator("li", has_text=name).locator(".dot").evaluate(COLOUR)
        one = page.locator(place).first
        of = "(one) => getComputedStyle(one, '::before').backgroundColor" if name == "answer" else COLOUR
        assert (name, one.evaluate(of)) == (name, dot)
        assert dot != page.locator("body").evaluate(COLOUR)


# ------------------------------------------------------------------------------------------------ the conversation


def cards(page: Page) -> list[str]:
    return [str(one.get_attribute("aria-label")) for one in page.locator("#conversation > .chunk > *").all()]


def test_the_answer_is_at_the_top_and_buttons_are_named_as_they_are_labelled(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    assert cards(page)[:4] == ["Run buyer", "Answer", "System message", "User message"]
    top = page.locator("#conversation").get_by_role("article", name="Answer")
    expect(top).to_contain_text("Order from north.")
    expect(top).to_contain_text("final")
    expect(top).to_be_in_viewport(ratio=1)
    # WCAG 2.5.3: speech control finds a button by its visible words
    named = "[...document.querySelectorAll('button[aria-label]')].map((one) => [one.getAttribute('aria-label'), one.innerText])"
    assert [pair for pair in page.evaluate(named) if pair[1].isascii() and pair[1].strip("?") not in pair[0]] == []


def test_a_run_without_an_answer_says_why_at_the_top(show: Show) -> None:
    failed: dict[str, Any] = {"text": None, "stop_reason": "max_steps", "steps": 1, "usage": {}, "error": "used all its 1 steps"}
    page = show(small().add("result", failed, None).entries)
    top = page.get_by_role("article", name="No answer")
    expect(top).to_contain_text("max_steps")
    expect(top).to_contain_text("used all its 1 steps")
    page.keyboard.press("e")
    expect(top).to_be_visible()
    page = show(small().entries)
    assert cards(page)[:2] == ["No answer: the end of the run is not on record", "System message"]


def test_each_run_of_a_file_has_its_own_answer_at_the_top_but_sub_runs_have_none(show: Show) -> None:
    def run(answer: str) -> list[dict[str, Any]]:
        script = small().add("run_start", {"agent": "expert"}, 0, "0.0")
        script.add("result", {"text": "green", "stop_reason": "final"}, None, "0.0")
        return script.add("result", {"text": answer, "stop_reason": "final"}, None).entries

    page = show([*run("one"), *run("two")])
    assert page.locator(".outcome-first .text").all_inner_texts() == ["one", "two"]
    page.locator("#scope").select_option(label="\u2003\u2003search (0.0)", index=None)
    expect(page.locator(".outcome-first")).to_have_count(0)


def test_the_system_message_is_folded_until_it_is_opened_or_found(show: Show) -> None:
    page = show(small().entries)
    system = page.get_by_role("article", name="System message")
    expect(system).not_to_contain_text("You search.")
    expect(system).to_contain_text("11 characters")
    system.get_by_role("button").click()
    expect(system.locator(".text")).to_have_text("You search.")
    system.get_by_role("button").click()
    expect(system.locator(".text")).to_be_hidden()
    page.get_by_role("searchbox").fill("you search")
    expect(system.locator("mark")).to_have_text("You search")
    page.get_by_role("searchbox").fill("hits")
    expect(step_card(page, 0).locator("mark")).to_have_text("hits")
    expect(system.locator(".text")).to_have_count(0)


def test_the_messages_that_a_model_reads_next_open_when_the_search_finds_something_in_them(show: Show) -> None:
    script = small().turn(1, "<final>x</final>", ("final", None, "x"))
    at = next(number for number, entry in enumerate(script.entries) if entry["step"] == 1)
    read = Script().add("messages_sent", [{"role": "user", "content": "three hits, told"}], 1, since=2).entries
    page = show([*script.entries[:at], *read, *script.entries[at:]])
    reads = step_card(page, 0).locator(".reads")
    expect(reads.locator(".read")).to_have_count(0)
    page.get_by_role("searchbox").fill("three")
    expect(reads.locator("mark")).to_have_text("three")


# ---------------------------------------------------------------------------------------------------- the splitter


def width_of(page: Page, selector: str = "#panel-timeline") -> int:
    return round(box_of(page.locator(selector))["width"])


def test_the_splitter_follows_pointer_and_keys_leaves_room_on_both_sides_and_is_reset_by_a_double_click(
    show: Show, bought: list[dict[str, Any]]
) -> None:
    wide = show(bought, viewport=window(1440))
    splitter, before = wide.get_by_role("separator", name="Width of the time line"), width_of(wide)
    box = box_of(splitter)
    wide.mouse.move(box["x"] + 3, 400)
    wide.mouse.down()
    wide.mouse.move(900, 500, steps=3)
    wide.mouse.up()
    assert abs(width_of(wide) - 900) < 5
    wide.mouse.move(400, 500)  # the pointer was released
    assert abs(width_of(wide) - 900) < 5
    assert wide.evaluate("getSelection().toString()") == ""
    splitter.dblclick()
    assert width_of(wide) == before
    splitter.focus()
    wide.keyboard.press("ArrowRight")
    assert before + 20 < width_of(wide) < before + 40
    expect(splitter).to_have_attribute("aria-valuenow", "51")
    wide.keyboard.press("End")
    assert width_of(wide, "#main") == 333
    wide.keyboard.press("Home")
    assert width_of(wide) == 300
    wide.keyboard.press("ArrowLeft")
    wide.set_viewport_size(window(1100))
    assert width_of(wide) == 300
    wide.set_viewport_size(window(800))
    expect(splitter).to_be_hidden()
    assert width_of(wide, "#main") == 800


# -------------------------------------------------------------------------------------------------------------- reading


def test_keys_move_through_the_cards_and_a_question_mark_lists_the_keys(show: Show) -> None:
    page = show(long(200))
    page.keyboard.press("2")
    for key, expected in (("j", "e1"), ("j", "e2"), ("k", "e1"), ("G", "e201"), ("g", "e1")):
        page.keyboard.press(key)
        expect(page.locator(f"#{expected}")).to_be_focused()
        expect(page.locator(f"#{expected}")).to_be_in_viewport()
    page.keyboard.press("?")
    expect(page.get_by_role("dialog", name="Keys")).to_be_visible()
    page.keyboard.press("j")  # the dialog now handles this key
    page.keyboard.press("Escape")
    expect(page.locator("#e1")).to_be_focused()


def test_the_first_tab_stop_skips_to_the_cards_focus_is_visible_and_arrow_keys_switch_tabs(show: Show) -> None:
    page = show(small().entries)
    page.keyboard.press("Tab")
    expect(page.locator(".skip")).to_be_focused()
    expect(page.locator(".skip")).to_be_in_viewport()
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("j")
    outline = page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
    assert (page.evaluate("document.activeElement.tagName"), outline) == ("ARTICLE", "solid")
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


PANES = {"1": "conversation", "2": "events", "3": "timeline"}
OVERFLOW = "() => Math.max(...[document.documentElement, ...document.querySelectorAll('#main > div, nav, .card, .toolbar, .top')].map((one) => one.scrollWidth - one.clientWidth))"


@pytest.mark.parametrize("width, height, panes", [
    (320, 256, "123"), (640, 450, "123"), (390, 844, "123"), (800, 844, "1"), (1080, 844, "2"),
])
def test_nothing_overflows_on_a_small_screen_and_the_panes_fill_it_when_the_page_is_zoomed_in(
    show: Show, bought: list[dict[str, Any]], width: int, height: int, panes: str
) -> None:
    wide = Script().add("final", "w" * 4_000).add("x" * 300, {"y" * 300: "z" * 3_000}).entries
    page = show([*bought, *wide], title="t" * 300, viewport=window(width, height))
    for key in panes:
        page.keyboard.press(key)
        expect(page.locator("#tree .row, .card").locator("visible=true").first).to_be_visible()
        assert page.evaluate(OVERFLOW) <= 0
        page.keyboard.press("G")
        assert page.evaluate(OVERFLOW) <= 0
        pane = page.locator(f"#panel-{PANES[key]}")
        assert height > 500 or pane.evaluate("(pane) => pane.clientHeight") == height


def test_on_a_phone_the_time_line_is_a_separate_view_that_leads_to_the_cards(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought, viewport={"width": 390, "height": 844})
    expect(page.locator("#tree")).to_be_hidden()
    page.get_by_role("tab", name="Time line").click()
    expect(page.locator("#conversation")).to_be_hidden()
    page.locator(".row", has=page.get_by_text("Step 2", exact=True)).click()
    expect(page.locator(".target h3")).to_have_text("Step 2")
    page.set_viewport_size({"width": 1280, "height": 900})
    expect(page.locator("#tree")).to_be_visible()


def test_printing_includes_every_card(show: Show) -> None:
    page = show(long(1_000), at="#e1")
    page.evaluate("dispatchEvent(new Event('beforeprint'))")
    page.emulate_media(media="print")
    assert page.locator("#events .card").count() == 1_001
    assert page.locator(".toolbar").is_hidden()
    assert page.locator(".track .bar").first.is_visible()
    page.evaluate("dispatchEvent(new Event('afterprint'))")


def test_long_json_is_formatted_on_demand_with_its_numbers_as_recorded(show: Show) -> None:
    text = '{"orders": [{"id": 12345678901234567890, "note": "a, b: {c} \\"", "price": 2.50, "tags": [], "more": {}}, "and a long text"]}'
    others = ["{" + "no JSON, " * 20, '{"short": 1}', "[" * 100]
    page = show(Script().add("final", text).add("final", others[0]).add("final", others[1]).add("final", others[2]).entries)
    page.keyboard.press("2")
    block = page.locator("#events .card .text").first
    expect(page.locator("#events .card .text")).to_have_text([text, *others])
    page.get_by_role("button", name="Lay out").click()  # there is only one
    assert block.inner_text() == """\
{
  "orders": [
    {
      "id": 12345678901234567890,
      "note": "a, b: {c} \\"",
      "price": 2.50,
      "tags": [],
      "more": {}
    },
    "and a long text"
  ]
}"""
    page.get_by_role("button", name="As recorded").click()
    assert block.inner_text() == text
