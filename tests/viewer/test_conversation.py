"""The conversation in a real browser: each block with its outcome, pictures, corrections."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from playwright.sync_api import Page, expect

from tests.viewer.cards import rows, step_card
from tests.viewer.recordings import PNG, Script, small

Show = Callable[..., Page]


def test_each_block_is_shown_with_its_outcome_between_the_prose(show: Show, bought: list[dict[str, Any]]) -> None:
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


def test_the_conversation_of_a_sub_agent_is_a_click_away(show: Show, bought: list[dict[str, Any]]) -> None:
    page = show(bought)
    page.get_by_role("button", name="Its conversation: south").click()
    expect(page.locator("#scope option:checked")).to_contain_text("south (1.south)")
    expect(page.locator("#conversation .card.turn.user")).to_contain_text("Ask south.")
    expect(page.locator("#conversation .outcome.failed")).to_contain_text("south is closed")
    assert "north" not in page.locator("#conversation").inner_text()


def test_an_agent_that_was_called_as_a_skill_hangs_under_its_call(show: Show) -> None:
    script = small()
    script.add("run_start", {"agent": "expert", "input": "tea?"}, 0, "0.0")
    script.turn(0, "<final>green</final>", ("final", None, "green"))
    script.entries[-1]["scope"] = script.entries[-2]["scope"] = "0.0"
    page = show(script.entries)
    assert rows(page) == ["librarian", "Step 0 · search", "Step 0"]
    expect(page.get_by_role("button", name="Its conversation: search")).to_be_visible()


def test_prose_that_had_to_be_corrected_shows_the_correction(show: Show) -> None:
    script = small().turn(1, "I think so.").add("no_blocks_stall", {"prose_preview": "I think so."}, 1)
    script.add("messages_sent", [
        {"role": "assistant", "content": "I think so."}, {"role": "user", "content": "Write a block."}], 2, since=2)
    page = show(script.entries)
    card = step_card(page, 1)
    expect(card.locator(".block.problem")).to_contain_text("Prose where a block was needed")
    expect(card.locator(".reads")).to_contain_text("Write a block.")
    assert page.locator("#conversation .turn.assistant").count() == 0  # it is in its step


def test_unknown_events_and_calls_without_an_outcome_are_shown(show: Show) -> None:
    script = small()
    del script.entries[-1]
    page = show(script.add("checkpoint_saved", {"where": "the attic"}).entries)
    expect(step_card(page, 0)).to_contain_text("No outcome is on record.")
    expect(step_card(page, 0).locator(".block.other")).to_contain_text("the attic")


def test_a_step_of_very_many_calls_shows_the_first_and_says_where_the_others_are(show: Show) -> None:
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


def test_pictures_beside_the_recording_are_thumbnails_and_the_others_say_why_not(show: Show, tmp_path: Path) -> None:
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
