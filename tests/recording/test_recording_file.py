"""A recording is read from whichever file it was written to, and what is none is said to be none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import kernai
from kernai import Agent, CompositeSink, JsonlSink, KernaiError, MemorySink, MockProvider, Recorder
from kernai.recording_file import read_recording
from tests.loop.loop_cases import command, echo


@pytest.fixture
def run(tmp_path: Path) -> Recorder:
    """Three steps, written line by line to run.jsonl as they happened."""
    memory = MemorySink()
    with JsonlSink(tmp_path / "run.jsonl") as lines:
        provider = MockProvider(command("echo", "\ud800é"), command("echo", "b"), "<final>done</final>")
        agent = Agent(instructions="You echo.", skills=[echo])
        kernai.execute(agent, "Go.", provider=provider, recorder=Recorder(CompositeSink(memory, lines)))
    return Recorder(memory)


@pytest.mark.parametrize("form", ["whole", "compact", "lines", "under events", "compact under events"])
def test_every_form_of_a_recording_gives_the_same_events(tmp_path: Path, run: Recorder, form: str) -> None:
    texts = {
        "whole": run.to_json(),
        "compact": run.to_json(expand=False),
        "under events": f'{{"format": 1,\n "events": {run.to_json()}}}',
        "compact under events": json.dumps({"events": json.loads(run.to_json(expand=False))}, indent=1),
    }
    path = tmp_path / "run.jsonl"
    if form in texts:
        path.write_text(texts[form])
    assert read_recording(path) == run.to_list()


def test_lines_are_read_without_the_last_one_that_a_crash_cut_off(tmp_path: Path, run: Recorder) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(path.read_bytes()[:-20])
    assert read_recording(path) == run.to_list()[:-1]


def test_the_first_line_of_a_run_that_has_just_begun_is_a_recording(tmp_path: Path, run: Recorder) -> None:
    path = tmp_path / "run.jsonl"
    path.write_bytes(path.read_bytes().split(b"\n")[0])
    assert read_recording(path) == run.to_list()[:1]


def test_lines_rewritten_in_utf_8_are_read_too(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"event": "run_start"}\n{"event": "final", "data": "café"}\n', encoding="utf-8")
    assert [entry.get("data") for entry in read_recording(path)] == [None, "café"]


def test_an_entry_that_lacks_what_its_type_has_is_read_as_it_is(tmp_path: Path) -> None:
    entries = [{"event": "messages_sent"}, {"event": "messages_sent", "data": 7, "scope": ["x"]}, {"event": "new"}]
    path = tmp_path / "run.json"
    path.write_text(json.dumps(entries))
    assert read_recording(path) == entries


@pytest.mark.parametrize(
    "content, fault",
    [
        (b"", "the file is empty"),
        (b" \n", "the file is empty"),
        (b"\x89PNG\r\n", "byte 0 is not UTF-8 text"),
        (b"# Notes", "neither JSON nor JSON lines"),
        (b"42", "must be a list of events"),
        (b'{"format": 2, "turns": []}', "must be a list of events"),
        (b'[{"event": "run_start"}, {"type": "final"}]', "entry 2 is not an event"),
        (b'[{"event": "run_start"}, 7]', "entry 2 is not an event"),
        (b'{"event": "run_start"}\n{"a": 1}\n', "entry 2 is not an event"),
        (b'{"event": "run_start"}\nnonsense\n{"event": "final"}\n', ":2 is not JSON"),
        (b'{"event": "run_start"}\n7\n{"event": "final"}\n', ":2 is not an event"),
        (b'{"event": "messages_sent", "since": 2}', 'entry 1: "since" of messages_sent does not fit'),
        (b'[{"event": "messages_sent", "since": 1, "data": []}]', 'entry 1: "since" of messages_sent does not fit'),
        (b'{"event": "messages_sent", "since": "x", "data": []}\n\n\n', '"since" of messages_sent does not fit'),
        (b"[" * 100_000, "nested too deeply"),
        (b'{"event": "run_start"}\n' + b"[" * 100_000 + b"\n\n", ":2 is not JSON"),
    ],
)
def test_a_file_that_is_no_recording_is_named_with_its_fault(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(KernaiError) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)
    assert fault in str(caught.value)
