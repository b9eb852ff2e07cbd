"""A page that follows a run in progress, in a real browser against the real server."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from kernai.viewer import FollowServer
from tests.viewer.conftest import NewPage, box_of, step_card
from tests.viewer.recordings import HOSTILE, PNG, Script, hostile, long, small


def lines(entries: list[dict[str, Any]]) -> str:
    return "".join(json.dumps(entry) + "\n" for entry in entries)


#: true once scrolling has ended
FRAMES = "async () => { for (let at = 0; at < 6; at++) await new Promise((next) => requestAnimationFrame(next)); }"


class Followed:
    """A recording written by the test, and the server that follows it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.start()

    def start(self, port: int = 0) -> None:
        self.server = FollowServer(self.path, port=port, media_folder=f"{self.path}.media")
        self._thread = threading.Thread(target=self.server.serve)
        self._thread.start()

    def stop(self) -> None:
        self.server.close()
        self._thread.join()

    def write(self, entries: list[dict[str, Any]]) -> None:
        with self.path.open("a", encoding="ascii") as file:
            file.write(lines(entries))


@pytest.fixture
def followed(tmp_path: Path) -> Iterator[Followed]:
    following = Followed(tmp_path / "run.jsonl")
    yield following
    following.stop()


def test_a_page_waits_for_the_file_and_shows_events_as_they_arrive(followed: Followed, new_page: NewPage) -> None:
    page = new_page(followed.server.url)
    expect(page.locator("#connection")).to_have_text("Waiting for the file")
    expect(page.locator("#nothing")).to_have_text("There is no event yet.")
    script = small()
    followed.write(script.entries[:4])
    expect(page.locator("#connection")).to_have_text("Following")
    expect(page.locator("#head")).to_contain_text("running")
    expect(page.locator("#conversation .block")).to_contain_text("search")
    step = page.locator("#tree .row.step .label")
    expect(step).to_have_text("Step 0")
    followed.write(script.entries[4:5])
    expect(step).to_have_text("Step 0 · search…")
    followed.write(script.entries[5:])
    expect(step).to_have_text("Step 0 · search✓")
    expect(page.locator("#conversation .outcome")).to_contain_text("3 hits")
    followed.write(script.add("result", {"text": "x", "stop_reason": "final"}).entries[-1:])
    expect(page.locator("#connection")).to_have_text("Following: the run is over")
    expect(page.locator("#head .pill")).to_have_text("final")
    followed.write(script.add("input_added", {"input": "More"}).entries[-1:])
    expect(page.locator("#connection")).to_have_text("Following")
    expect(page.locator("#head .pill")).to_have_text("running")
    followed.write(script.add("result", {"text": None, "stop_reason": "interrupt"}).entries[-1:])
    expect(page.locator("#head .pill")).to_have_text("waiting")
    expect(page.locator("#connection")).to_have_text("Following")


def test_filters_search_and_position_stay_while_events_arrive(followed: Followed, new_page: NewPage) -> None:
    entries = long(400)
    followed.write(entries[:300])
    page = new_page(followed.server.url + "#e100", allowed=followed.server.url)
    expect(page.locator("#e100")).to_be_focused()
    page.get_by_text("Types", exact=True).click()
    page.get_by_role("checkbox", name="blocks_parsed").uncheck()
    page.keyboard.press("Escape")
    page.locator("#search").fill("page 1")
    expect(page.locator("#found")).to_contain_text("found")
    page.evaluate("location.hash = '#e102'")
    expect(page.locator("#e102")).to_be_focused()
    page.evaluate(FRAMES)
    top = page.locator("#e102").bounding_box()
    followed.write(entries[300:])
    expect(page.locator("#head")).to_contain_text("401 events")
    page.evaluate(FRAMES)
    assert page.locator("#e102").bounding_box() == top
    expect(page.locator("#e102")).to_be_focused()
    assert page.locator("#search").input_value() == "page 1"
    assert "blocks_parsed" not in page.locator("#events .type").all_inner_texts()


def test_a_page_stays_at_the_end_if_asked_to(followed: Followed, new_page: NewPage) -> None:
    entries = long(300)
    followed.write(entries[:200])
    page = new_page(followed.server.url)
    page.keyboard.press("2")
    page.get_by_role("button", name="Stay at the end").click()
    expect(page.locator("#e200")).to_be_in_viewport()
    followed.write(entries[200:])
    expect(page.locator("#e301")).to_be_in_viewport()
    page.keyboard.press("f")
    expect(page.get_by_role("button", name="Stay at the end")).to_have_attribute("aria-pressed", "false")


def test_the_answer_appears_at_the_top_without_moving_the_readers_position(followed: Followed, new_page: NewPage) -> None:
    entries = long(400)
    followed.write(entries)
    page = new_page(followed.server.url)
    expect(page.get_by_role("article", name="No answer yet")).to_be_visible()
    place = step_card(page, 40)
    for _ in range(2):  # cards are measured when they become visible
        page.locator("#panel-conversation").evaluate("(pane) => { pane.scrollTop = pane.scrollHeight / 2; }")
        page.evaluate(FRAMES)
    before = box_of(place)
    end = Script().add("result", {"text": "The whole answer.\n" * 9, "stop_reason": "final"}, None)
    followed.write(end.entries)
    expect(page.locator("#connection")).to_have_text("Following: the run is over")
    page.evaluate(FRAMES)
    assert abs(box_of(place)["y"] - before["y"]) < 2
    page.locator("#panel-conversation").evaluate("(pane) => { pane.scrollTop = 0; }")
    expect(page.get_by_role("article", name="Answer", exact=True)).to_contain_text("The whole answer.")


def test_a_second_run_with_the_same_id_is_shown_as_another_run(followed: Followed, new_page: NewPage) -> None:
    def run(answer: str) -> list[dict[str, Any]]:
        return small().add("result", {"text": answer, "stop_reason": "final"}, None).entries

    followed.write(run("one"))
    page = new_page(followed.server.url)
    expect(page.locator(".outcome-first .text")).to_have_text(["one"])
    followed.write(run("two")[:-1])
    expect(page.locator("#tree .row.run .name")).to_have_text(["librarian", "librarian"])
    expect(page.locator("#connection")).to_have_text("Following")
    followed.write(run("two")[-1:])
    expect(page.locator(".outcome-first .text")).to_have_text(["one", "two"])
    expect(step_card(page, 0)).to_have_count(2)
    expect(page.locator("#conversation .turn.user")).to_have_count(2)


def test_nothing_is_left_of_a_run_that_is_replaced_by_another(followed: Followed, new_page: NewPage) -> None:
    def entries_of(name: str) -> list[dict[str, Any]]:
        return Script().add("run_start", {"agent": name, "input": f"I am {name}."}).add("final", name).entries

    followed.write(entries_of("first"))
    page = new_page(followed.server.url)
    for key, pane in (("1", "tree"), ("2", "events")):
        page.keyboard.press(key)
        expect(page.locator(f"#{pane}")).to_contain_text("first")
    followed.path.write_text(lines(entries_of("other")), encoding="ascii")
    for pane in ("tree", "events"):
        expect(page.locator(f"#{pane}")).to_contain_text("other")
        expect(page.locator(f"#{pane}")).not_to_contain_text("first")
    followed.path.write_text("")
    expect(page.locator("#nothing")).to_have_text("There is no event yet.")
    expect(page.locator("#tree .row")).to_have_count(0)


def test_a_picture_appears_when_its_file_is_written(followed: Followed, new_page: NewPage) -> None:
    reference = {"id": "media_00000000000a", "kind": "image", "mime_type": "image/png", "size": 70}
    followed.write(small().add("skill_result", {"call_id": "0.1", "skill": "draw", "result": ["drawn", reference]}).entries)
    page = new_page(followed.server.url)
    expect(page.locator("figure.absent")).to_be_visible()
    folder = Path(f"{followed.path}.media")
    folder.mkdir()
    (folder / "media_00000000000a.png").write_bytes(PNG)
    expect(page.locator("figure img")).to_be_visible()


def test_a_lost_connection_is_reported_and_restored(followed: Followed, new_page: NewPage) -> None:
    followed.write(small().entries)
    page = new_page(followed.server.url, expected="Failed to load resource")
    expect(page.locator("#connection")).to_have_text("Following")
    port = followed.server.port
    followed.stop()
    expect(page.locator("#connection")).to_have_text("Connection lost, trying again")
    expect(page.locator("#conversation .outcome")).to_contain_text("3 hits")  # the events stay on the page
    followed.start(port)  # another server has another token, so this page's URL has become invalid
    expect(page.locator("#connection")).to_have_text("This address is no longer served")


def test_hostile_events_that_arrive_live_stay_text(followed: Followed, new_page: NewPage) -> None:
    followed.write(hostile())
    page = new_page(followed.server.url)
    expect(page.locator("#head")).to_contain_text(f"{len(hostile())} events")
    with followed.path.open("a") as file:
        file.write("<script>window.harmed = 1</script>\n")
    followed.write(Script().add("final", HOSTILE[0]).entries)
    expect(page.locator("#head")).to_contain_text(f"{len(hostile()) + 2} events")
    page.evaluate(f"location.hash = '#e{len(hostile()) + 1}'")
    expect(page.locator(".target")).to_contain_text("cannot be read")
    expect(page.locator(".target .text")).to_have_text("<script>window.harmed = 1</script>")
