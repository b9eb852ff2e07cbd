"""Sinks: what is written is what was told, whole again when it is read, whoever fails beside it."""

from __future__ import annotations

import json
import logging
import os
import stat
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import kernai
from kernai import Agent, CompositeSink, Event, JsonlSink, KernaiError, MemorySink, MockProvider, Recorder
from kernai.recording.recorder import expand
from tests.loop.loop_cases import command, echo, plan, task

TURNS = st.sampled_from([
    command("echo", "x"), command("echo", "\ud800é") + command("/skills"), "<json>1</json>", "Let me see.",
    plan(task("a"), task("b", depends_on=["a"])), plan(task("a"), task("b"), strategy="parallel"),
    command("ask", "what?"), '<block type="final">', "<result>42</result>",
])  # fmt: skip


def run_of(turns: list[str], every: int, sink: Any, **options: Any) -> None:
    """A run whose instructions change with every so many steps, and whose prose is no answer."""
    left = [0]

    def instructions() -> str:
        left[0] += 1
        return f"Edition {left[0] // every}."

    leaf = Agent(instructions=instructions, skills=[echo], max_steps=2, on_prose="correct")
    agent = Agent(instructions=instructions, skills=[echo, leaf.as_skill("ask", "")], max_steps=4, on_prose="correct")
    provider = MockProvider(*turns, chunk_size=50)
    kernai.execute(agent, "Go.", provider=provider, recorder=Recorder(sink), **options)


@pytest.mark.slow
@settings(max_examples=40)
@given(st.lists(TURNS, min_size=1, max_size=8), st.integers(1, 4), st.booleans())
def test_what_is_written_is_read_as_it_was_told(turns: list[str], every: int, twice: bool) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "run.jsonl")
        memory = MemorySink()
        with JsonlSink(path) as file:
            for _ in range(1 + twice):
                run_of(turns, every, CompositeSink(memory, file))
        told = Recorder(memory).to_list()
        assert JsonlSink.read(path) == told
        assert expand(json.loads(Recorder(memory).to_json(expand=False))) == told
        lines = path.read_text("ascii").splitlines()
        assert len(lines) == len(told)


def test_two_runs_of_one_id_in_one_file_keep_their_own_messages(tmp_path: Path) -> None:
    memory = MemorySink()
    with JsonlSink(tmp_path / "run.jsonl") as file:
        for text in ("first", "second"):
            agent = Agent(instructions="", provider=MockProvider("done"))
            kernai.run(agent, text, run_id="same", recorder=Recorder(CompositeSink(memory, file)))
    told = Recorder(memory).to_list()
    assert JsonlSink.read(tmp_path / "run.jsonl") == told
    assert expand(json.loads(Recorder(memory).to_json(expand=False))) == told


def test_a_file_that_is_opened_again_is_added_to(tmp_path: Path) -> None:
    memory = MemorySink()
    for _ in range(2):
        with JsonlSink(tmp_path / "run.jsonl") as file:
            run_of([command("echo", "x"), "<final>done</final>"], 1, CompositeSink(memory, file), run_id="same")
    assert JsonlSink.read(tmp_path / "run.jsonl") == Recorder(memory).to_list()


def test_a_file_grows_with_the_run_and_not_with_its_square(tmp_path: Path) -> None:
    def size(steps: int) -> int:
        path = tmp_path / f"{steps}.jsonl"
        with JsonlSink(path) as file:
            agent = Agent(instructions="Work. " * 50, skills=[echo], max_steps=steps + 1)
            provider = MockProvider(*[command("echo", "x")] * steps, "<final>done</final>", chunk_size=99)
            kernai.run(agent, "Go.", provider=provider, recorder=Recorder(file))
        return path.stat().st_size

    assert size(80) < 2.1 * size(40)


def test_a_file_is_for_its_owner_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        JsonlSink(tmp_path / "run.jsonl").close()
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "run.jsonl").stat().st_mode) == 0o600


def test_a_file_that_was_open_to_others_is_not_any_more(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.touch(mode=0o644)
    JsonlSink(path).close()
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_sink_works_where_the_system_has_no_modes_of_open_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "fchmod")
    with JsonlSink(tmp_path / "run.jsonl") as sink:
        sink.record(Event("final", "42"))
    assert len(JsonlSink.read(tmp_path / "run.jsonl")) == 1


def test_a_line_is_in_the_file_when_record_returns(tmp_path: Path) -> None:
    sink = JsonlSink(str(tmp_path / "run.jsonl"))
    sink.record(Event("final", "é\n", timestamp=0.0))
    assert (tmp_path / "run.jsonl").read_bytes() == (
        b'{"event":"final","step":null,"depth":0,"task_id":null,"scope":"","run_id":"",'
        b'"timestamp":"1970-01-01T00:00:00.000Z","data":"\\u00e9\\n"}\n'
    )
    sink.close()


def test_a_closed_sink_says_so_and_closing_twice_is_fine(tmp_path: Path) -> None:
    sink = JsonlSink(tmp_path / "run.jsonl")
    sink.close()
    sink.close()
    with pytest.raises(KernaiError, match=r"run\.jsonl.*closed"):
        sink.record(Event("final"))


def test_many_threads_write_whole_lines(tmp_path: Path) -> None:
    start = threading.Barrier(8)
    with JsonlSink(tmp_path / "run.jsonl") as sink:

        def write(number: int) -> None:
            start.wait()
            for at in range(50):
                sink.record(Event("final", "x" * 500, at, run_id=str(number)))

        threads = [threading.Thread(target=write, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    entries = JsonlSink.read(tmp_path / "run.jsonl")
    for number in range(8):
        assert [one["step"] for one in entries if one["run_id"] == str(number)] == list(range(50))


def test_a_last_line_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    with JsonlSink(path) as sink:
        sink.record(Event("final", "one"))
        sink.record(Event("final", "two"))
    whole = path.read_bytes()
    for cut in range(1, 40):
        path.write_bytes(whole[: -1 - cut])
        assert [one["data"] for one in JsonlSink.read(path)] == ["one"]


def test_a_line_that_is_no_json_is_named(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text('{"event": "final"}\nnonsense\n{"event": "final"}\n')
    with pytest.raises(KernaiError, match=r"run\.jsonl:2"):
        JsonlSink.read(path)


def test_an_empty_file_holds_no_events(tmp_path: Path) -> None:
    (tmp_path / "run.jsonl").touch()
    assert JsonlSink.read(tmp_path / "run.jsonl") == []


def test_messages_that_are_no_longer_a_growing_tape_are_written_whole(tmp_path: Path) -> None:
    """Whoever records events of their own may send any list."""
    lists = [[{"role": "system", "content": "s"}, {"role": "user", "content": str(at)}] for at in range(3)]
    lists += [lists[0][:1], [], lists[2]]
    with JsonlSink(tmp_path / "run.jsonl") as sink:
        for data in (lists[0], lists[0], *lists[3:]):
            sink.record(Event("messages_sent", data))
        sink.record(Event("messages_sent", "no list"))
    read = [one["data"] for one in JsonlSink.read(tmp_path / "run.jsonl")]
    assert read == [lists[0], lists[0], *lists[3:], "no list"]


# ------------------------------------------------------------------------------------------- sinks that fail


class Failing:
    def __init__(self, error: Exception) -> None:
        self.error = error
        self.given = 0

    def record(self, event: Event) -> None:
        self.given += 1
        raise self.error


def test_a_sink_that_fails_does_not_keep_the_event_from_the_others() -> None:
    first, memory, second = Failing(ValueError("first")), MemorySink(), Failing(ValueError("second"))
    with pytest.raises(ValueError, match="first"):
        CompositeSink(first, memory, second).record(Event("final"))
    assert (first.given, len(memory.entries), second.given) == (1, 1, 1)


@pytest.mark.parametrize("start", [kernai.execute, lambda *given, **options: list(kernai.stream(*given, **options))])
def test_a_run_goes_on_when_a_sink_fails_and_the_log_says_so(start: Any, caplog: pytest.LogCaptureFixture) -> None:
    failing, memory = Failing(OSError("disk full")), MemorySink()
    live: list[Event] = []
    agent = Agent(instructions="", provider=MockProvider("done"))
    with caplog.at_level(logging.ERROR, "kernai"):
        start(agent, "Go.", recorder=Recorder(CompositeSink(failing, memory)), on_event=live.append)
    assert failing.given == len(memory.entries) == len(caplog.records) == 5
    assert memory.entries == [event for event in live if event.type != "text_chunk"]
    for line in caplog.messages:
        assert line.startswith("event=recorder.failed run_id=")
        assert "disk full" in line


@pytest.mark.parametrize("line", ["5", "[]", '"text"', "null"])
def test_a_line_that_is_json_and_no_event_is_named(tmp_path: Path, line: str) -> None:
    path = tmp_path / "run.jsonl"
    path.write_text(f"{line}\n", encoding="ascii")
    with pytest.raises(KernaiError, match=r"run\.jsonl:1 is no event"):
        JsonlSink.read(path)
