"""A page of the viewer as text: its data, the pictures beside a recording, and reading a file that is still written."""

from __future__ import annotations

import json
import os
import re
from base64 import b64encode
from hashlib import sha256
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai import Media
from kernai.events import KINDS
from kernai.recording.recorder import Shortening
from kernai.viewer import page as page_module
from kernai.viewer import render_page
from kernai.viewer.follow_server import SHOWN, Tail
from kernai.viewer.page import MOST_PARTS, Thumbnails, kinds, outline, picture_type, record
from tests.viewer.recordings import HOSTILE, hostile, small


class Taken(HTMLParser):
    """A parsed page: its elements, and the text of scripts and styles."""

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


def test_the_data_of_a_page_is_the_recording_with_the_outline_of_each_response() -> None:
    entries = small().entries
    records = Taken(render_page(entries, title="x")).data["records"]
    assert [record["entry"] for record in records] == entries
    assert [record.get("outline") for record in records] == [None, None, ["Let me see.\n", 0], None, None, None]


@pytest.mark.parametrize("data", [None, {}, {"content": 5}])
def test_a_response_that_has_no_text_has_no_outline(data: Any) -> None:
    entry = {"event": "llm_response", "data": data}
    assert record(entry, Shortening()) == {"entry": entry}


@pytest.mark.slow
@given(st.text() | st.sampled_from(HOSTILE), st.recursive(st.text() | st.floats() | st.none(), st.lists, max_leaves=5))
def test_any_text_is_kept_in_the_page_and_ends_no_element(text: str, value: object) -> None:
    page = render_page([{"event": text, "data": {text: value}}], title=text)
    page.encode("utf-8")  # raises if a lone surrogate is left
    taken = Taken(page)
    (record,) = taken.data["records"]
    assert record["entry"]["event"] == text
    assert [tag for tag, _ in taken.elements].count("script") == 2
    raw = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.DOTALL)
    assert raw is not None
    assert re.search("[<>&\u2028\u2029]", raw[1]) is None
    assert raw[1].isascii()


def test_the_security_policy_allows_only_the_pages_own_style_and_script() -> None:
    taken = Taken(render_page(hostile(), title="x"))
    rules = dict(rule.split(" ", 1) for rule in taken.policy.split("; "))

    def digest(text: str) -> str:
        return f"'sha256-{b64encode(sha256(text.encode()).digest()).decode()}'"

    assert rules == {
        "default-src": "'none'", "img-src": "data:", "style-src": digest(taken.texts["style"]),
        "script-src": digest(taken.texts["script"]), "base-uri": "'none'", "form-action": "'none'",
        "require-trusted-types-for": "'script'", "trusted-types": "'none'",
    }


def test_the_title_is_text_on_one_line() -> None:
    page = render_page([], title="</title><script>\n\ud800\u202e")
    assert "<title>&lt;/title&gt;&lt;script&gt; \ufffd\ufffd</title>" in page


def test_the_page_knows_the_same_kinds_as_the_table_of_events() -> None:
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


def test_an_entry_that_is_no_dict_is_named() -> None:
    entries: list[Any] = [{}, 5]
    with pytest.raises(TypeError, match=r"entries\[1\] must be a dict as Recorder.to_list gives, got int"):
        render_page(entries, title="x")


@pytest.mark.parametrize("second, kept", [
    ([{"role": "system", "content": "B"}, "u", "v"], {"since": 2, "data": [{"role": "system", "content": "B"}, "v"]}),
    (["s", "other", "v"], {"data": ["s", "other", "v"]}),  # not a continuation: kept whole
    (["s"], {"data": ["s"]}),
    (["s", "u"], {"since": 2, "data": []}),
    (5, {"data": 5}),
])
def test_messages_are_left_out_only_if_the_others_continue_them(second: Any, kept: dict[str, Any]) -> None:
    before = Shortening()
    record({"event": "messages_sent", "data": ["s", "u"]}, before)
    assert record({"event": "messages_sent", "data": second}, before)["entry"] == {"event": "messages_sent", **kept}
    line = {"event": "messages_sent", "since": 2, "data": second}
    assert record(line, before)["entry"] == line, "the file has left them out already"


@pytest.mark.parametrize("number, shown", [(2**53, 2**53), (2**53 + 1, str(2**53 + 1)), (-(10**30), "-1" + "0" * 30), (0.1, 0.1), (True, True)])
def test_integers_that_a_browser_would_round_are_kept_as_text(number: object, shown: object) -> None:
    page = render_page([{"event": "skill_execute", "data": {"params": {"id": [number]}}}], title="x")
    assert Taken(page).data["records"][0]["entry"]["data"]["params"]["id"] == [shown]


@pytest.mark.parametrize("scope", ["", "0.a", "0.a/1.0"])
def test_a_second_run_with_the_same_id_has_its_messages_in_full(scope: str) -> None:
    before = Shortening()
    sent = {"event": "messages_sent", "run_id": "a", "scope": scope, "data": ["s", "u"]}
    record(sent, before)
    for other in ({"run_id": "b", "scope": ""}, {"run_id": "a", "scope": "0.b"}):
        record({"event": "run_start", **other}, before)
        assert record(sent, before)["entry"]["since"] == 2
    record({"event": "run_start", "run_id": "a", "scope": ""}, before)
    assert record(sent, before)["entry"] == sent


@pytest.mark.parametrize("response, parts", [
    ("", []),
    ("only prose", ["only prose"]),
    ("a <b <final>x</final> c\n<plan>y</plan>", ["a <b ", 0, " c\n", 1]),
    ("<final>x</final><command name='y'>never closed", [0]),
    ("<final>x</final>" * (MOST_PARTS + 1), list(range(MOST_PARTS))),
])
def test_the_outline_of_a_response_is_its_prose_and_the_numbers_of_its_blocks(response: str, parts: object) -> None:
    assert outline(response) == parts


def test_the_media_of_a_recording_are_in_its_page(tmp_path: Path) -> None:
    (tmp_path / "media_00000000000a.gif").write_bytes(b"GIF89a...")
    (tmp_path / "media_00000000000b.gif").write_bytes(b"GIF89a, which no event names")
    reference = {"id": "media_00000000000a", "kind": "image"}
    page = render_page([{"event": "skill_result", "data": {"result": [reference]}}], title="x", media_folder=tmp_path)
    assert Taken(page).data["media"] == {"media_00000000000a": {"uri": "data:image/gif;base64,R0lGODlhLi4u"}}


# ------------------------------------------------------------------------------------------------------------- pictures


ID = "media_00000000000a"
GIF = b"GIF89a" + bytes(20)


def found(folder: Path | str | None, *names: str) -> dict[str, dict[str, str]]:
    return Thumbnails(folder).find(set(names or (ID,)))


@pytest.mark.parametrize("data, kind", [
    (b"\x89PNG\r\n\x1a\nxx", "image/png"), (b"\xff\xd8\xff\xe0", "image/jpeg"), (b"GIF87a", "image/gif"),
    (b"GIF89a", "image/gif"), (b"RIFF\0\0\0\0WEBPVP8 ", "image/webp"), (b"RIFF\0\0\0\0WAVE", None),
    (b"<svg xmlns='http://www.w3.org/2000/svg'/>", None), (b"<html>", None), (b"", None), (b"BM", None), (b"%PDF-1.7", None),
])
def test_a_picture_is_recognized_by_its_first_bytes(data: bytes, kind: str | None) -> None:
    assert picture_type(data) == kind


def test_the_extension_of_a_picture_file_is_ignored(tmp_path: Path) -> None:
    (tmp_path / f"{ID}.bin").write_bytes(GIF)
    assert found(tmp_path)[ID]["uri"].startswith("data:image/gif;base64,")
    (tmp_path / f"{ID}.bin").write_bytes(b"<svg/>")
    assert found(tmp_path)[ID] == {"left_out": "its data is not PNG, JPEG, GIF or WebP"}


@pytest.mark.parametrize("name", [f"{ID}", f"{ID}.a.b", f"x{ID}.png", "media_00000000000A.png", f"{ID}.png\n", f"{ID}.{'x' * 9}"])
def test_files_with_other_names_are_ignored(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(GIF)
    assert found(tmp_path) == {}


def test_there_are_no_pictures_without_a_folder_and_symlinks_and_pipes_are_not_opened(tmp_path: Path) -> None:
    secret = tmp_path / "secret.gif"
    secret.write_bytes(GIF)
    folder = tmp_path / "media"
    folder.mkdir()
    (folder / f"{ID}.gif").symlink_to(secret)
    assert "cannot be opened" in found(folder)[ID]["left_out"]
    (folder / f"{ID}.gif").unlink()
    os.mkfifo(folder / f"{ID}.gif")
    (folder / "media_00000000000b.gif").mkdir()
    not_one = {"left_out": "its file cannot be opened: it is not a regular file"}
    assert found(folder, ID, "media_00000000000b") == {ID: not_one, "media_00000000000b": not_one}
    linked = tmp_path / "linked"
    linked.symlink_to(folder)
    assert found(linked) == found(None) == found("no/such/folder") == found(__file__) == {}


def test_the_size_of_each_picture_and_of_all_is_limited(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page_module, "MAX_BYTES", 100)
    monkeypatch.setattr(page_module, "MAX_TOTAL", 150)
    names = [f"media_00000000000{end}" for end in "abcd"]
    for name, size in zip(names, (100, 101, 50, 26), strict=True):
        (tmp_path / f"{name}.gif").write_bytes(GIF.ljust(size))
    first, large, second, late = found(tmp_path, *names).values()
    assert set(first) == set(second) == {"uri"}
    assert large == {"left_out": "it has more than 100 bytes"}
    assert late == {"left_out": "the pictures of this page have reached 150 bytes"}
    kept = Media.from_bytes(GIF.ljust(101), mime_type="image/gif")
    (tmp_path / f"{kept.id}.gif").write_bytes(GIF)  # the store's is shown
    assert Thumbnails(tmp_path, [kept]).find({kept.id, "media_00000000000f"}) == {kept.id: large}


# ---------------------------------------------------------------------------------------------------- a file that grows


def events(entries: list[dict[str, Any]] | None) -> list[str]:
    return [entry["event"] for entry in entries or []]


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_a_file_that_does_not_exist_yet_is_waited_for_even_behind_a_link(path: Path) -> None:
    path.symlink_to("elsewhere.jsonl")
    tail = Tail(path)
    assert (tail.read(), tail.waiting) == ([], "Waiting for the file")
    append(path, '{"event": "a"}\n')
    assert (events(tail.read()), tail.waiting) == (["a"], None)
    assert tail.read() == []
    append(path, '{"event": "b"}\n\n{"event": "c"}\n')
    assert events(tail.read()) == ["b", "c"]


@given(st.lists(st.integers(1, 400), max_size=12))
def test_however_the_file_grows_each_line_is_read_once(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    path = tmp_path_factory.mktemp("tail") / "run.jsonl"
    text = "".join(f'{{"event": "e{number}\u00e9"}}\n' for number in range(40)).encode()
    tail = Tail(path)
    seen = []
    for cut in [*cuts, len(text)]:
        with path.open("ab") as file:
            file.write(text[:cut])
        text = text[cut:]
        seen += events(tail.read())
    assert seen == [f"e{number}\u00e9" for number in range(40)]


@pytest.mark.parametrize("events_written, is_another_file", [(3, True), (1, False), (10, False)])
def test_a_file_that_starts_over_is_read_from_its_beginning(path: Path, events_written: int, is_another_file: bool) -> None:
    append(path, '{"event": "old"}\n{"event": "half')
    tail = Tail(path)
    assert [events(tail.read()) for _ in range(2)] == [["old"], []]
    other = path.with_suffix(".new") if is_another_file else path
    other.write_text('{"event": "new"}\n' * events_written)
    other.replace(path)
    assert tail.read() is None
    assert events(Tail(path).read()) == ["new"] * events_written


def test_a_deleted_and_recreated_file_is_read_as_a_new_one(path: Path) -> None:
    append(path, '{"event": "old"}\n')
    tail = Tail(path)
    tail.read()
    path.unlink()
    assert (tail.read(), tail.waiting) == ([], "Waiting for the file")
    path.with_suffix(".x").touch()  # so that the new file cannot get the inode number of the old one
    append(path, '{"event": "new, and longer than the old"}\n')
    assert tail.read() is None


@pytest.mark.parametrize("line, reason, shown", [
    (b"not JSON", "it is not JSON: Expecting value: line 1 column 1 (char 0)", "not JSON"),
    (b"[1]", 'it is not an event: it must be an object with its type as "event"', "[1]"),
    (b'{"event": 5}', 'it is not an event: it must be an object with its type as "event"', '{"event": 5}'),
    (b"[" * 100_000, "it is not JSON: maximum recursion depth exceeded", "[" * SHOWN),
    (b"\xff\xfe", "it is not JSON: ", "\\xff\\xfe"),
])
def test_a_line_that_is_not_an_event_becomes_an_event_that_says_so(path: Path, line: bytes, reason: str, shown: str) -> None:
    path.write_bytes(b'{"event": "a"}\n%s\n{"event": "b"}\n' % line)
    first, bad, last = Tail(path).read() or []
    assert (first["event"], last["event"]) == ("a", "b")
    assert bad["data"].pop("reason").startswith(reason)
    assert bad == {"event": "unreadable_line", "data": {"line": 2, "text": shown}}


def test_a_path_that_is_not_a_regular_file_is_reported(path: Path) -> None:
    os.mkfifo(path)
    for tail in (Tail(path), Tail(path.parent)):
        assert (tail.read(), tail.waiting) == ([], "The file cannot be opened: it is not a regular file")
    tail = Tail(path / "below")
    assert tail.read() == []
    assert (tail.waiting or "").startswith("The file cannot be opened: ")
