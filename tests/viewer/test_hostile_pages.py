"""A recording is written by models and tools. Nothing in it may run, leave the page, or break it.

In each test, `new_page` in conftest checks for what a page must not do: dialogs, windows, messages on the console,
errors, requests, and the flag that every hostile text tries to set.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from kernai.viewer import render_page
from tests.viewer.conftest import Show
from tests.viewer.recordings import HOSTILE, ODD, Script, hostile, small

SCROLL = """async (id) => {
  const pane = document.getElementById(id);
  let over = 0;
  for (let at = -1; at < pane.scrollTop;) {
    at = pane.scrollTop;
    pane.scrollTop += 900;
    await new Promise((next) => requestAnimationFrame(() => setTimeout(next)));
    over = Math.max(over, pane.scrollWidth - pane.clientWidth, document.documentElement.scrollWidth - innerWidth);
  }
  return over;
}"""
WHAT_CAN_ACT = """() => [...document.querySelectorAll("*")].flatMap((one) => [...one.attributes]
  .filter(({ name, value }) => /^on/.test(name)
    || (name === "style" && !/^((left|width|height|--(level|names|tokens|cost|time)): [\\d.e-]+(%|px|ch)?; ?)*$/.test(value))
    || (/^(href|src|action|formaction)$/.test(name) && !/^(#|data:)/.test(value)))
  .map(({ name, value }) => `${one.tagName} ${name}=${value}`))"""
VIEWS = {"1": "panel-conversation", "2": "panel-events", "3": "panel-timeline"}


def test_hostile_texts_stay_text_everywhere(show: Show) -> None:
    page = show(hostile(), title=HOSTILE[0], viewport={"width": 390, "height": 844})
    assert page.title() == HOSTILE[0]
    for key, pane in VIEWS.items():
        page.keyboard.press(key)
        assert page.evaluate(SCROLL, pane) <= 0  # scrolled to the end, and nothing overflows
        assert page.evaluate(WHAT_CAN_ACT) == []
        assert page.locator("script").count() == 2
        assert page.locator("iframe, object, embed, base, link:not([rel=icon]), meta[http-equiv=refresh], svg:not(#charts svg), form[action]").count() == 0


@pytest.mark.parametrize("text", ["</script><img src=x onerror='window.harmed=1'>", "javascript:window.harmed=1", "\u202etxt.exe", "a\0b"])
def test_the_search_and_the_filters_work_with_hostile_texts(show: Show, text: str) -> None:
    page = show([*small().add("final", text).add(text, text).entries])
    page.keyboard.press("2")
    page.locator("#search").fill(text.replace("\0", ""))
    page.get_by_text("Types", exact=True).click()
    expect(page.locator("#types label").last).to_be_visible()
    page.locator("#search").press("Enter")
    page.evaluate("location.hash = '#e7'")
    page.keyboard.press("o")
    expect(page.locator("#e7 .json")).to_be_visible()


def test_characters_that_hide_or_reorder_are_shown(show: Show) -> None:
    page = show(Script().add("final", "a\0b\x1b[31m \u202etxt.exe\u2066 \u200b \x9b \u2028 \ud800.").entries, at="#e1")
    expect(page.locator("#e1 .text")).to_have_text("a␀b␛[31m ⟨U+202E⟩txt.exe⟨U+2066⟩ ⟨U+200B⟩ ⟨U+009B⟩ ⟨U+2028⟩ ⟨U+D800⟩.")


def test_incomplete_and_malformed_recordings_are_shown_as_far_as_possible(show: Show) -> None:
    page = show(ODD)
    for key, pane in VIEWS.items():
        page.keyboard.press(key)
        page.evaluate(SCROLL, pane)
    page.keyboard.press("2")
    expect(page.locator("#events .card").first).to_have_attribute("aria-setsize", str(len(ODD)))


def test_long_names_do_not_overflow(show: Show) -> None:
    name = "W<b>" * 250_000
    script = Script().add("run_start", {"agent": name, "model": name, "input": "x"}).turn(0, "x", (name, name, "x"), finish_reason=name)
    script.add("skill_execute", {"call_id": name, "skill": name, "params": {}}).add("task_start", {"task_id": name, "input": "x"})
    script.add("task_error", {"task_id": name, "error": "x"}).add(name, 1, 0, name)
    page = show(script.add("result", {"stop_reason": name}).entries)
    for key, pane in VIEWS.items():
        page.keyboard.press(key)
        assert page.evaluate(SCROLL, pane) <= 0
        longest = "(id) => Math.max(...[...document.querySelectorAll(`#${id} .row, #${id} h3, #${id} h4, #${id} .fact`)].map((one) => one.textContent.length))"
        assert page.evaluate(longest, pane) < 500


def test_a_recording_of_very_many_runs_and_scopes_still_opens(show: Show) -> None:
    entries = [{"event": "kind", "run_id": f"{at}", "scope": f"0.{at}", "step": 0} for at in range(3_000)]
    page = show(entries, at="#e3000")
    expect(page.locator("#e3000")).to_be_in_viewport()
    expect(page.locator("#scope option").last).to_have_text("The time line has more")


@pytest.mark.parametrize("unit, mb", [("lorem <b>ipsum</b> \0 ", 2), ("one line\n", 1), ("\U0001f980", 1)])
def test_a_block_of_megabytes_is_cut_and_can_be_shown_completely(show: Show, unit: str, mb: int) -> None:
    text = unit * (mb * 1_000_000 // len(unit.encode()))
    page = show(Script().add("final", text).entries, at="#e1")
    assert len(page.locator("#e1").inner_text()) < 2_000
    page.locator("#e1 .more").click()
    units = len(text.encode("utf-16-le")) // 2
    newlines = text.count("\n")
    page.wait_for_function(  # pieces end at line ends if possible; that newline then belongs to neither piece
        "([units, newlines]) => { const has = document.querySelector('.whole').textContent.length;"
        " return has <= units && has >= units - newlines; }", arg=[units, newlines])
    page.keyboard.press("j")  # the page still answers
    expect(page.locator("#e1")).to_be_focused()
    page.keyboard.press("o")
    expect(page.locator("#e1 .json")).to_be_visible()


def test_deep_nesting_is_shown(show: Show) -> None:
    deep: Any = "the bottom"
    for _ in range(190):
        deep = {"in": [deep]} if len(str(deep)) % 2 else [deep]
    page = show(Script().add("deep", deep).entries, at="#e1")
    page.locator("#search").fill("the bottom")
    expect(page.locator("#found")).to_have_text("1 found")


def test_the_security_policy_blocks_an_injected_script(show: Show, tmp_path: Path) -> None:
    """This is the second line of defence, tested alone: markup put into the file does nothing."""
    file = tmp_path / "forced.html"
    forced = "<script>window.harmed = 1</script><img src=x onerror='window.harmed = 1'><style>body { display: none }</style>"
    file.write_text(render_page(small().entries, title="x").replace("<main", forced + "<main"), encoding="utf-8")
    page = show(small().entries)  # a watched page, of which only the browser is used
    context = page.context.browser.new_context()  # type: ignore[union-attr]
    other = context.new_page()
    requests: list[tuple[str, str | None]] = []
    for event in ("requestfinished", "requestfailed"):
        other.on(event, lambda request: requests.append((request.url, request.failure)))
    other.goto(file.as_uri())
    assert other.evaluate("[window.harmed ?? null, getComputedStyle(document.body).display]") == [None, "grid"]
    for sink in ("document.body.innerHTML = '<b>x</b>'", "document.write('x')"):
        assert other.evaluate(f"() => {{ try {{ {sink}; return 'done'; }} catch (error) {{ return error.name; }} }}") == "TypeError"
    blocked = "fetch('https://evil.invalid/').then(() => 'sent', (error) => error.name)"
    assert other.evaluate(blocked) == "TypeError"
    assert [(url, why) for url, why in requests if why != "csp"] == [(file.as_uri(), None)]
    context.close()
