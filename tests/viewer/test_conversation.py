"""The conversation in a real browser: each block with its outcome, pictures, corrections."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from playwright.sync_api import Locator, Page, expect

import kernai
from tests.viewer.conftest import Show, step_card
from tests.viewer.recordings import HOSTILE, PNG, Script, small


def test_each_block_is_shown_with_its_outcome_and_a_sub_agents_conversation_opens_with_a_click(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    first = step_card(page, 0).first
    built_in, refused = first.locator(".block").all()
    expect(built_in).to_contain_text("/skills")
    expect(built_in.locator(".outcome .pill")).to_have_text("result")
    expect(refused.locator(".outcome.failed")).to_contain_text("Skill 'no_such' not found")
    second = step_card(page, 1).first
    assert re.search(r"Both at once\..*Plan.*find the cheaper supplier", second.inner_text(), re.DOTALL)
    assert second.locator(".tasks li .pill").all_inner_texts() == ["done", "done", "done"]
    last = step_card(page, 2).first
    assert re.search(r"That is all\..*Answer.*Order from north\.", last.inner_text(), re.DOTALL)

    page.get_by_role("button", name="Its conversation: south").click()
    expect(page.locator("#scope option:checked")).to_contain_text("south (1.south)")
    expect(page.locator("#conversation .card.turn.user")).to_contain_text("Ask south.")
    expect(page.locator("#conversation .outcome.failed")).to_contain_text("south is closed")
    assert "north" not in page.locator("#conversation").inner_text()


def test_corrected_prose_is_shown_with_the_correction(show: Show) -> None:
    script = small().turn(1, "I think so.").add("no_blocks_stall", {"prose_preview": "I think so."}, 1)
    script.add("messages_sent", [
        {"role": "assistant", "content": "I think so."}, {"role": "user", "content": "Write a block."}], 2, since=2)
    page = show(script.entries)
    card = step_card(page, 1)
    expect(card.locator(".block.problem")).to_contain_text("Prose where a block was needed")
    expect(card.locator(".reads")).to_contain_text("Write a block.")
    assert page.locator("#conversation .turn.assistant").count() == 0  # the correction is inside the card of its step


def test_an_answer_that_did_not_count_says_so(show: Show) -> None:
    mock = kernai.MockProvider('<command name="/skills"></command><final>5?</final>', "<final>12</final><final>13</final>")
    recorder = kernai.Recorder()
    kernai.execute(kernai.Agent(instructions="", provider=mock), "How many?", recorder=recorder)
    page = show(recorder.to_list())
    answers = page.locator("#conversation .step .block").filter(has_text="Answer").all_inner_texts()
    assert [" ".join(one.split()) for one in answers] == ["Answer does not count 5?", "Answer 12", "Answer does not count 13"]


def test_unusual_facts_about_calls_responses_and_answers_are_shown(show: Show) -> None:
    script = Script().turn(0, "x", ("command", "dig", "{,}"), model="spare").add(
        "skill_execute", {"call_id": "0.0", "skill": "dig", "params": {}, "repaired": ["comma"], "dropped": ["depth"]})
    page = show(script.add("result", {"text": "half", "stop_reason": "final", "truncated": True, "repaired": ["quote"]}).entries)
    expect(step_card(page, 0).locator("header").first).to_contain_text("by spare")
    expect(step_card(page, 0).locator(".block")).to_contain_text("skillrepaired: commadropped: depth")
    expect(page.locator(".outcome-first")).to_contain_text("cut offrepaired: quote")


def test_a_plan_of_the_caller_is_no_missing_response(show: Show) -> None:
    recorder = kernai.Recorder()
    kernai.execute_plan(
        kernai.Agent(instructions="", provider=kernai.MockProvider("<final>40</final>")), [kernai.Task("north", "Ask.")],
        recorder=recorder)
    page = show(recorder.to_list())
    expect(page.locator("#conversation .tasks")).to_contain_text("40")
    expect(page.locator("#conversation")).not_to_contain_text("No response")


def test_unknown_events_and_calls_without_an_outcome_are_shown(show: Show) -> None:
    script = small()
    del script.entries[-1]
    page = show(script.add("checkpoint_saved", {"where": "the attic"}).entries)
    expect(step_card(page, 0)).to_contain_text("No outcome is on record.")
    expect(step_card(page, 0).locator(".block.other")).to_contain_text("the attic")
    page = show([*script.entries, {"event": "unreadable_line", "data": {"line": 7, "reason": "it is not JSON", "text": "{"}}])
    expect(page.locator("#head")).to_contain_text("no end on record")  # the line is part of the run
    expect(page.locator("#head")).to_contain_text("1 problem")


def test_a_step_with_very_many_calls_shows_the_first_ones_and_says_where_the_others_are(show: Show) -> None:
    script = Script().turn(0, "x", *[("command", "dig", str(at)) for at in range(250)])
    for at in range(250):
        script.add("skill_execute", {"call_id": f"0.{at}", "skill": "dig", "params": {}})
    page = show(script.entries)
    expect(step_card(page, 0).locator(".block")).to_have_count(200)
    expect(step_card(page, 0)).to_contain_text("No more than 200 parts are shown here")


def test_a_recording_without_a_model_says_so(show: Show) -> None:
    page = show([{"event": "note", "data": "hello"}])
    expect(page.locator("#conversation")).to_contain_text("Nothing was said here")
    page.get_by_role("link", name="To its first event").click()
    expect(page.locator("#e1")).to_contain_text("hello")
    assert show([]).locator("#nothing").inner_text() == "There is no event yet."


def test_pictures_beside_the_recording_are_thumbnails_and_missing_ones_say_why(show: Show, tmp_path: Path) -> None:
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / "media_00000000000a.png").write_bytes(PNG)
    (folder / "media_00000000000b.svg").write_bytes(b"<svg xmlns='http://www.w3.org/2000/svg' onload='window.harmed=1'/>")
    references = [
        {"id": f"media_00000000000{end}", "kind": "image", "mime_type": "image/png", "source": "bytes", "size": 70}
        for end in "abc"
    ]
    script = small().add("skill_result", {"call_id": "0.1", "skill": "draw", "result": ["drawn", *references]})
    page = show(script.entries, media_folder=folder)
    shown, vector, absent = step_card(page, 0).locator("figure").all()
    assert shown.locator("img").evaluate("(image) => image.decode().then(() => image.naturalWidth)") == 1
    expect(vector).to_contain_text("its data is not PNG, JPEG, GIF or WebP")
    expect(absent).to_contain_text("its data is not beside the recording")
    shown.get_by_role("button").click()
    expect(page.get_by_role("dialog", name="Picture").locator("img")).to_be_visible()
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("dialog", name="Picture")).to_be_hidden()


# ------------------------------------------------------------------------------------------------------------- Markdown


#: texts, and the markup they are rendered as
RENDERED = {
    "# One #\n\ntext\n### Two": "<h4>One</h4><p>text</p><h5>Two</h5>",
    "**b** *i* ***both*** __b__ _i_ ~~gone~~ `c*o*de`":
        "<p><strong>b</strong> <em>i</em> <strong><em>both</em></strong> <strong>b</strong> <em>i</em> <del>gone</del> <code>c*o*de</code></p>",
    "**b *i*** 2 * 3 * 4 snake_case_name \\*no\\* **open": "<p><strong>b <em>i</em></strong> 2 * 3 * 4 snake_case_name *no* **open</p>",
    "one\ntwo<br>three `` a`b ``": "<p>one\ntwo\nthree <code>a`b</code></p>",
    "- a\n  - b\n    more\n- c\n\n\n- d": "<ul><li><p>a</p><ul><li><p>b\nmore</p></li></ul></li><li><p>c</p></li><li><p>d</p></li></ul>",
    "3. a\n   - b\n4) c\n* d": '<ol start="3"><li><p>a</p><ul><li><p>b</p></li></ul></li><li><p>c</p></li></ol><ul><li><p>d</p></li></ul>',
    "- a\n  ```py\n  if x:\n    <b>\n  ```\n~~~\n# not closed":
        "<ul><li><p>a</p><pre><code>if x:\n  &lt;b&gt;</code></pre></li></ul><pre><code># not closed</code></pre>",
    "> a\n> > b\n\n---": "<blockquote><p>a</p><blockquote><p>b</p></blockquote></blockquote><hr>",
    "Prices:\n| | *a* | b |\n|---|--:|:-:|\n| x | 1\\|2 |\n\n|no|table|":
        '<p>Prices:</p><table><thead><tr><td></td><th class="right"><em>a</em></th><th class="middle">b</th></tr></thead>'
        '<tbody><tr><td>x</td><td class="right">1|2</td><td class="middle"></td></tr></tbody></table><p>|no|table|</p>',
}
#: texts, the URLs they link to, and the text that is shown
LINKS = {
    '[a *b*](https://x.example/y "title")': (["https://x.example/y"], "a b (https://x.example/y)"),
    "see https://x.example/a_b_c). `https://no.example`": (["https://x.example/a_b_c"], "see https://x.example/a_b_c). https://no.example"),
    "[x](mailto:a@x.example)": (["mailto:a@x.example"], "x (mailto:a@x.example)"),
    "[[1]](HTTPS://x.example) [https://x.example](https://x.example)":
        (["https://x.example/"] * 2, "[1] (https://x.example/) https://x.example"),
    "[https://good.example](https://evil.example)": (["https://evil.example/"], "https://good.example (https://evil.example/)"),
    "![a](https://x.example/a.png)": (["https://x.example/a.png"], "Image: a (https://x.example/a.png)"),
    "[a](https://\u0440\u0430\u0443\u0440\u0430l.example/\u202e)": (["https://xn--l-7sba6dbr.example/%E2%80%AE"], "a (https://xn--l-7sba6dbr.example/%E2%80%AE)"),
    **{f"[a]({address})": ([], f"[a]({address})") for address in (
        "javascript:window.harmed=1", "JaVaScRiPt:window.harmed=1", "java\tscript:window.harmed=1", "data:text/html,x", "vbscript:x",
        "file:///etc/passwd", "//evil.example", "#e1", "https://", "blob:https://x.example", " javascript:window.harmed=1",
        "https://[", "&#106;avascript:window.harmed=1")},
}
WHAT_CAN_ACT = """() => [...document.querySelectorAll(".markdown *")].flatMap((one) => [...one.attributes]
  .filter(({ name, value }) => !{ start: /^\\d+$/, class: /^(right|middle|address)$/, target: /^_blank$/,
    rel: /^noopener noreferrer$/, href: /^(https?:\\/\\/|mailto:)/ }[name]?.test(value))
  .map(({ name, value }) => `${one.tagName} ${name}=${value}`))"""
ELEMENTS = "[...new Set([...document.querySelectorAll('.markdown *')].map((one) => one.localName))]"


def finals(page: Page) -> list[Locator]:
    """Return the events' cards, with Markdown rendered in each."""
    page.keyboard.press("2")
    expect(page.locator("#events .card").first).to_be_visible()
    for button in page.get_by_role("button", name="Render Markdown").all()[::-1]:
        button.evaluate("(one) => one.click()")
    return page.locator("#events .card").all()


def recorded(texts: list[str]) -> Script:
    script = Script()
    for text in texts:
        script.add("final", text)
    return script


def test_common_markdown_is_rendered(show: Show) -> None:
    page = show(recorded(list(RENDERED)).entries)
    shown = [card.locator(".markdown").evaluate("(one) => one.innerHTML") for card in finals(page)]
    assert dict(zip(RENDERED, shown, strict=True)) == RENDERED


def test_a_link_shows_its_url_and_may_only_lead_to_the_web_or_to_mail(show: Show) -> None:
    page = show(recorded([f"{text} **x**" for text in LINKS]).entries)
    shown = []
    for card in finals(page):
        links = card.locator(".markdown a").evaluate_all("(all) => all.map((one) => one.getAttribute('href'))")
        shown.append((links, (card.locator(".markdown").text_content() or "").removesuffix(" x")))
    assert dict(zip(LINKS, shown, strict=True)) == LINKS
    assert page.evaluate(WHAT_CAN_ACT) == []


def test_a_text_is_shown_and_copied_as_recorded_and_matches_are_marked_even_where_it_is_rendered(show: Show) -> None:
    text = "# Found\n\n- **north** is `open`"
    page = show(Script().add("run_start", {"input": "x"}).add("result", {"text": text, "stop_reason": "final"}).entries)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    answer = page.locator(".outcome-first")
    expect(answer.locator(".text")).to_have_text(text)
    page.locator("#search").fill("open")
    expect(answer.locator("mark")).to_have_text("open")
    answer.get_by_role("button", name="Render Markdown").click()
    expect(answer.get_by_role("heading", name="Found")).to_be_visible()
    expect(answer.locator(".markdown code mark")).to_have_text("open")
    answer.get_by_role("button", name="Copy").click()
    expect(answer.get_by_role("button", name="Copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == text
    answer.get_by_role("button", name="As recorded").click()
    expect(answer.locator(".text")).to_have_text(text)
    expect(answer.locator(".markdown")).to_have_count(0)


def test_text_without_markdown_and_very_long_text_cannot_be_rendered(show: Show) -> None:
    long = "# a **b** [c](https://x.example)\n" * 32_000
    page = show(recorded(["Plain prose, no more.", "a - b * c", "x" * 200_001 + "\n# Too long", long]).entries, at="#e1")
    expect(page.locator("#e3 .text")).to_be_visible()
    expect(page.get_by_role("button", name="Show all 1,056,000 characters")).to_be_visible()
    expect(page.get_by_role("button", name="Render Markdown")).to_have_count(0)


WRAPPED = ("{0}", "# {0}", "- {0}", "> {0}", "**{0}**", "`{0}`", "```{0}\n{0}\n```", "[{0}](https://x.example/{0})", "[x]({0})",
           "![{0}]({0})", "<{0}>", "| {0} |\n|---|\n| {0} |", '[x](https://x.example "{0}")')


def test_hostile_texts_stay_text_when_rendered(show: Show) -> None:
    page = show(recorded([f"{wrap.format(text)}\n\n**x**" for text in HOSTILE for wrap in WRAPPED]).entries)
    finals(page)  # renders the cards near the screen first, then the others
    for _ in range(3):
        page.keyboard.press("G")
        finals(page)
        assert page.evaluate(WHAT_CAN_ACT) == []
    expected = {"p", "strong", "h4", "ul", "li", "blockquote", "code", "pre", "a", "span", "table", "thead", "tbody", "tr", "th", "td"}
    assert set(page.evaluate(ELEMENTS)) == expected


LARGE = {
    "quotes in quotes": ">", "lists in lists": "- ", "marks that close nothing": "*a **b _c ~~d [e `f ``g ", "brackets": "[", "links": "[a](",
    "code": "`a ``b ```c ", "tables": "|a|b|\n|-|-|\n", "headings": "# a\n", "tabs": "# \t\t\t\t", "items": "- **a**\n", "words": "**a** ",
}


def test_any_markdown_is_rendered_quickly(show: Show) -> None:
    """Quadratic time would be minutes."""
    size = 30_000
    page = show(recorded(["**x**\n\n" + (unit * size)[:size] for unit in LARGE.values()]).entries)
    deepest = "(at) => { let deep = 0; for (; at; at = at.lastElementChild) deep++; return deep; }"
    for number in range(1, len(LARGE) + 1):
        page.evaluate(f"location.hash = '#e{number}'")
        card = page.locator(f"#e{number}")
        card.get_by_role("button", name="Render Markdown").click()
        assert card.locator(".markdown").evaluate(deepest) < 30
        page.keyboard.press("j")  # the page still answers
        expect(page.locator(f"#e{min(number + 1, len(LARGE))}")).to_be_focused()
