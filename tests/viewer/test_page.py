"""The page as a text: what is in it, that nothing can end its data early, and that it grows with the run alone."""

from __future__ import annotations

import json
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai.events import KINDS
from kernai.viewer import page as page_module
from kernai.viewer import render_page
from kernai.viewer.page import kinds
from kernai.viewer.records import MOST_PARTS, Records, outline
from tests.viewer.recordings import HOSTILE, hostile, small


class Taken(HTMLParser):
    """A page taken apart: its elements, and the text of scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, str] = {}
        self._inside = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.append((tag, given))
        self._inside = given.get("id") or tag

    def handle_endtag(self, tag: str) -> None:
        self._inside = ""

    def handle_data(self, data: str) -> None:
        self.texts[self._inside] = self.texts.get(self._inside, "") + data

    @property
    def policy(self) -> str:
        (policy,) = (given["content"] for tag, given in self.elements if given.get("http-equiv") == "Content-Security-Policy")
        return policy or ""

    @property
    def data(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.texts["data"])
        return data


def test_the_data_of_a_page_is_the_recording() -> None:
    entries = small().entries
    assert [record["entry"] for record in Taken(render_page(entries, title="x")).data["records"]] == entries


@pytest.mark.slow
@given(st.text() | st.sampled_from(HOSTILE), st.recursive(st.text() | st.floats() | st.none(), st.lists, max_leaves=5))
def test_any_text_comes_out_as_it_went_in_and_ends_nothing(text: str, value: object) -> None:
    page = render_page([{"event": text, "data": {text: value}}], title=text)
    page.encode("utf-8")  # surrogates have no place in a file
    taken = Taken(page)
    (record,) = taken.data["records"]
    assert record["entry"]["event"] == text
    assert [tag for tag, _ in taken.elements].count("script") == 2
    raw = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert raw is not None
    assert re.search("[<>&\u2028\u2029]", raw[1]) is None
    assert raw[1].isascii()


def test_the_policy_names_the_one_style_and_the_one_script_and_allows_nothing_else() -> None:
    taken = Taken(render_page(hostile(), title="x"))
    rules = dict(rule.split(" ", 1) for rule in taken.policy.split("; "))

    def digest(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'", "img-src": "data:", "style-src": digest(taken.texts["style"]),
        "script-src": digest(taken.texts["script"]), "base-uri": "'none'", "form-action": "'none'",
        "require-trusted-types-for": "'script'", "trusted-types": "'none'",
    }


def test_the_page_names_no_address_and_no_way_to_make_markup_of_text() -> None:
    page, style, script = page_module._assets()
    assert re.findall(r"https?:|//cdn|@import|url\(|src=", page + style) == []
    found = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(|new Function|setTimeout\([\"']|srcdoc"
    assert re.findall(found, script) == []
    assert "</script" not in script
    assert "</style" not in style


def test_the_title_is_text_on_one_line() -> None:
    page = render_page([], title="</title><script>\n\ud800\u202e")
    assert "<title>&lt;/title&gt;&lt;script&gt; \ufffd\ufffd</title>" in page


def test_a_name_that_is_nested_without_end_is_data_like_any_other() -> None:
    deep: Any = []
    for _ in range(5_000):
        deep = [deep]
    entry = {"event": "messages_sent", "run_id": deep, "scope": deep, "data": [deep]}
    assert len(Taken(render_page([entry, entry], title="x")).data["records"]) == 2


def test_what_the_page_knows_about_each_kind_is_the_table_of_events() -> None:
    script = Taken(render_page([], title="x")).texts["script"]
    table = json.JSONDecoder().raw_decode(script.partition("const KINDS = new Map(")[2])[0]
    assert dict(table) == kinds()
    assert dict(table).keys() - {"unreadable_line"} == KINDS.keys()
    for kind in KINDS.values():
        assert kinds()[kind.type]["group"] == kind.group
        assert kinds()[kind.type].get("problem", False) == (kind.is_warning or kind.group == "problem")
    assert {name for name, kind in kinds().items() if kind.get("usage")} == {"llm_response", "model_failed"}
    assert {name for name, kind in kinds().items() if kind.get("of_call")} == {
        "approval_requested", "approval_given", "in_flight", "trusted_values",
        "untrusted_value"}


def test_an_entry_that_is_no_mapping_is_named() -> None:
    event = kernai.Event("final", "x")
    with pytest.raises(TypeError, match=r"entries\[1\] must be a dict as Recorder.to_list gives, got Event"):
        render_page([{"event": "x"}, event], title="x")  # type: ignore[list-item]


def run_of(steps: int) -> list[dict[str, Any]]:
    """A real run in which every message is sent again with each step."""

    @kernai.skill(register=False)
    def read(page: int) -> str:
        """Read."""
        return f"the text of page {page} " * 20

    def answer(messages: Any, _: object) -> str:
        done = len(messages) > 2 * steps
        return "<final>read</final>" if done else f'<command name="read">{len(messages)}</command>'

    agent = kernai.Agent(
        instructions="Read.", provider=kernai.MockProvider().on_call(answer), skills=[read], max_steps=steps + 2)
    recorder = kernai.Recorder()
    kernai.execute(agent, "Read all.", recorder=recorder)
    return recorder.to_list()


@pytest.mark.slow
def test_a_page_grows_with_the_run_and_not_with_its_square() -> None:
    empty = len(render_page([], title="x"))
    short, tenfold = (len(render_page(run_of(steps), title="x")) - empty for steps in (20, 200))
    assert tenfold < short * 11


def test_new_messages_are_shown_with_the_number_of_earlier_ones() -> None:
    entries = run_of(2)
    taken = Taken(render_page(entries, title="x")).data["records"]
    sent = [record["entry"] for record in taken if record["entry"]["event"] == "messages_sent"]
    assert [(one.get("since"), [message["role"] for message in one["data"]]) for one in sent] == [
        (None, ["system", "user"]), (2, ["assistant", "user"]), (4, ["assistant", "user"])]


@pytest.mark.parametrize(
    "second, kept",
    [
        ([{"role": "system", "content": "B"}, "u", "v"], {"since": 2, "data": [{"role": "system", "content": "B"}, "v"]}),
        (["s", "other", "v"], {"data": ["s", "other", "v"]}),  # not what was sent before: whole
        (["s"], {"data": ["s"]}),
        (["s", "u"], {"since": 2, "data": []}),
        (5, {"data": 5}),
    ],
)
def test_a_tape_is_cut_only_where_it_continues(second: Any, kept: dict[str, Any]) -> None:
    records = Records()
    records.record({"event": "messages_sent", "data": ["s", "u"]})
    assert records.record({"event": "messages_sent", "data": second})["entry"] == {"event": "messages_sent", **kept}


@pytest.mark.parametrize("number, shown", [(2**53, 2**53), (2**53 + 1, str(2**53 + 1)), (-(10**30), "-1" + "0" * 30), (0.1, 0.1), (True, True)])
def test_integers_that_a_browser_would_round_keep_their_digits_as_text(number: object, shown: object) -> None:
    page = render_page([{"event": "skill_execute", "data": {"params": {"id": [number]}}}], title="x")
    assert Taken(page).data["records"][0]["entry"]["data"]["params"]["id"] == [shown]


@pytest.mark.parametrize("scope", ["", "0.a", "0.a/1.0"])
def test_a_run_that_takes_up_an_id_again_sends_its_tapes_whole(scope: str) -> None:
    records = Records()
    sent = {"event": "messages_sent", "run_id": "a", "scope": scope, "data": ["s", "u"]}
    records.record(sent)
    for other in ({"run_id": "b", "scope": ""}, {"run_id": "a", "scope": "0.b"}):
        records.record({"event": "run_start", **other})
        assert records.record(sent)["entry"]["since"] == 2
    records.record({"event": "run_start", "run_id": "a", "scope": ""})
    assert records.record(sent)["entry"] == sent


@pytest.mark.parametrize(
    "response, parts",
    [
        ("", []),
        ("only prose", ["only prose"]),
        ("a <b <final>x</final> c\n<plan>y</plan>", ["a <b ", 0, " c\n", 1]),
        ("<final>x</final><command name='y'>never closed", [0]),
        ("<final>x</final>" * (MOST_PARTS + 1), None),
    ],
)
def test_the_outline_of_a_response_is_its_prose_and_the_numbers_of_its_blocks(response: str, parts: object) -> None:
    assert outline(response) == parts


def test_the_media_of_a_recording_are_in_its_page(tmp_path: Path) -> None:
    (tmp_path / "media_00000000000a.gif").write_bytes(b"GIF89a...")
    (tmp_path / "media_00000000000b.gif").write_bytes(b"GIF89a, which no event names")
    reference = {"id": "media_00000000000a", "kind": "image"}
    page = render_page([{"event": "skill_result", "data": {"result": [reference]}}], title="x", media_folder=tmp_path)
    assert Taken(page).data["media"] == {"media_00000000000a": {"uri": "data:image/gif;base64,R0lGODlhLi4u"}}
