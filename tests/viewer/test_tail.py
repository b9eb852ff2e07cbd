"""Reading a file of JSON lines while somebody else writes it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernai.viewer.feed import SHOWN, Tail


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "run.jsonl"


def events(entries: list[dict[str, Any]]) -> list[str]:
    return [entry["event"] for entry in entries]


def append(path: Path, text: str) -> None:
    with path.open("a", encoding="utf-8") as file:
        file.write(text)


def test_a_file_that_is_not_there_yet_is_waited_for(path: Path) -> None:
    tail = Tail(path)
    assert (tail.read(), tail.waiting) == ([], "Waiting for the file")
    append(path, '{"event": "a"}\n')
    assert (events(tail.read()), tail.waiting) == (["a"], None)
    assert tail.read() == []
    append(path, '{"event": "b"}\n\n{"event": "c"}\n')
    assert events(tail.read()) == ["b", "c"]
    assert tail.generation == 0


def test_a_partial_last_line_waits_for_its_rest(path: Path) -> None:
    tail = Tail(path)
    for piece, expected in (('{"event":', []), (' "a"}', []), ("\n", ["a"])):
        append(path, piece)
        assert events(tail.read()) == expected


@given(st.lists(st.integers(1, 40), max_size=12))
def test_however_the_file_grows_each_line_is_read_once(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    path = tmp_path_factory.mktemp("tail") / "run.jsonl"
    text = "".join(f'{{"event": "e{number}\u00e9"}}\n' for number in range(9)).encode()
    tail = Tail(path)
    seen = []
    for cut in [*cuts, len(text)]:
        with path.open("ab") as file:
            file.write(text[:cut])
        text = text[cut:]
        seen += events(tail.read())
    assert seen == [f"e{number}\u00e9" for number in range(9)]


def replaced(path: Path) -> None:
    other = path.with_suffix(".new")
    other.write_text('{"event": "new"}\n{"event": "newer"}\n{"event": "newest"}\n')
    other.replace(path)


def cut_short(path: Path) -> None:
    path.write_text('{"event": "new"}\n')


def written_over_and_longer(path: Path) -> None:
    path.write_text('{"event": "new"}\n' + '{"event": "newer"}\n' * 9)


@pytest.mark.parametrize("change", [replaced, cut_short, written_over_and_longer])
def test_a_file_that_starts_over_is_read_from_its_start(path: Path, change: Any) -> None:
    append(path, '{"event": "old"}\n{"event": "half')
    tail = Tail(path)
    assert events(tail.read()) == ["old"]
    change(path)
    assert events(tail.read())[0] == "new"
    assert tail.generation == 1
    assert tail.read() == []


def test_a_file_that_goes_away_and_comes_back_is_another_one(path: Path) -> None:
    append(path, '{"event": "old"}\n')
    tail = Tail(path)
    tail.read()
    path.unlink()
    assert (tail.read(), tail.waiting, tail.generation) == ([], "Waiting for the file", 0)
    path.with_suffix(".x").touch()  # so that the new file cannot have the old one's number
    append(path, '{"event": "new, and longer than the old"}\n')
    assert events(tail.read()) == ["new, and longer than the old"]
    assert tail.generation == 1


@pytest.mark.parametrize(
    "line, reason",
    [
        ("not JSON", "it is not JSON: Expecting value: line 1 column 1 (char 0)"),
        ("[1]", 'it is not an event: it must be an object with its type as "event"'),
        ('{"event": 5}', 'it is not an event: it must be an object with its type as "event"'),
        ("[" * 100_000, "it is nested too deeply"),
    ],
)
def test_a_line_that_is_no_event_becomes_one_that_says_so(path: Path, line: str, reason: str) -> None:
    append(path, f'{{"event": "a"}}\n{line}\n{{"event": "b"}}\n')
    first, bad, last = Tail(path).read()
    assert (first["event"], last["event"]) == ("a", "b")
    assert bad == {"event": "unreadable_line", "data": {"line": 2, "reason": reason, "text": line[:SHOWN]}}


def test_bytes_that_are_no_text_are_shown_as_bytes(path: Path) -> None:
    path.write_bytes(b"\xff\xfe\n")
    (bad,) = Tail(path).read()
    assert bad["data"]["text"] == "\\xff\\xfe"


def test_what_is_no_file_is_reported_and_not_waited_for(path: Path) -> None:
    os.mkfifo(path)
    tail = Tail(path)
    assert (tail.read(), tail.waiting) == ([], "What is there is not a regular file")
    tail = Tail(path.parent)
    assert (tail.read(), tail.waiting) == ([], "What is there is not a regular file")
    tail = Tail(path / "below")
    assert tail.read() == []
    assert (tail.waiting or "").startswith("The file cannot be opened: ")
