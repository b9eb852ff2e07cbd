"""The recorder has every event of a run, in order, and nothing that must not be kept. Recordings are read from files of
every format.
"""

from __future__ import annotations

import json
import logging
from functools import reduce
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import (
    Agent,
    CompositeSink,
    Event,
    JsonlSink,
    KernaiError,
    LlmResponse,
    Media,
    MemorySink,
    Message,
    MockProvider,
    Model,
    Protocol,
    Recorder,
    Skill,
    SkillContext,
    SkillResult,
    Usage,
)
from kernai.recording.recorder import Shortening
from kernai.recording_file import read_recording
from tests.loop.loop_cases import command, echo, plan, task

ECHO = command("echo", "x" * 200)


def recorded(*turns: str, **agent: Any) -> Recorder:
    """Record a run of a few turns, each of which used 10 prompt tokens and 1 completion token."""
    recorder = Recorder()
    given = {"instructions": "Work.", "skills": [echo], "on_prose": "accept", **agent}
    provider = MockProvider(*turns).with_token_counter(lambda *_: {"prompt_tokens": 10, "completion_tokens": 1})
    kernai.execute(Agent(**given), "Go.", provider=provider, recorder=recorder)
    return recorder


# -------------------------------------------------------------------------------------------------- reading events


def test_events_can_be_read_by_type_by_step_and_all_together() -> None:
    recorder = recorded(ECHO, "done")
    types = [event.type for event in recorder.entries]
    assert types == [
        "run_start", "messages_sent", "llm_response", "blocks_parsed", "skill_execute", "skill_result",
        "messages_sent", "llm_response", "blocks_parsed", "result",
    ]  # fmt: skip
    assert recorder.steps == [0, 1]
    assert [event.type for event in recorder.for_step(1)] == types[6:]
    assert [event.data["skill"] for event in recorder.for_event("skill_result")] == ["echo"]
    assert recorder.for_event("nope") == recorder.for_step(7) == []
    with pytest.raises(ValueError, match="there is no event 'skil_error'; did you mean 'skill_error'"):
        recorder.for_event("skil_error")  # otherwise an assertion that there are no events would pass
    with pytest.raises(TypeError, match=r"record takes an Event, got dict: make one with Event\(type, data\)"):
        recorder.record(recorder.to_list()[0])  # type: ignore[arg-type]
    assert json.loads(recorder.to_json()) == recorder.to_list() == [event.to_dict() for event in recorder.entries]


def test_a_recorder_can_be_cleared_and_used_again() -> None:
    recorder = recorded(ECHO, "done")
    kept = recorder.entries
    recorder.clear()
    assert recorder.entries == recorder.steps == []
    assert len(kept) == 10
    recorder.record(Event("final", "42"))
    assert [event.type for event in recorder.entries] == ["final"]
    assert recorder.for_step(0) == recorder.steps == [], "it belongs to no step"


def test_a_recorder_whose_sinks_keep_nothing_says_so(tmp_path: Path) -> None:
    memory = MemorySink()
    recorder = Recorder(CompositeSink(CompositeSink(), CompositeSink(memory), MemorySink()))
    recorder.record(Event("final"))
    assert recorder.entries == memory.entries, "the first one that keeps them"
    with JsonlSink(tmp_path / "run.jsonl") as file:
        recorder = Recorder(CompositeSink(file))
    recorder.clear()
    with pytest.raises(KernaiError, match="MemorySink"):
        _ = recorder.entries

    class Late:
        async def record(self, event: Event) -> None: ...

    wrong: list[tuple[Any, Any, str]] = [
        (Recorder, "file.jsonl", "record.*str"), (Recorder, MemorySink, "an object .* got the class MemorySink"),
        (Recorder, Late(), r"Late\.record is an async"), (CompositeSink, [MemorySink()], "an object .* got list"),
    ]
    for kind, given, why in wrong:
        with pytest.raises(TypeError, match=why):
            kind(given)


# ---------------------------------------------------------------------------------------------------- tokens


def test_tokens_and_cost_are_summed_by_run_by_step_and_by_task() -> None:
    recorder = recorded(plan(task("a"), task("b")), "A!", ECHO, "B!", "done", model=Model("m", cost=(1e6, 1e7)))
    one = Usage(10, 1, 11, 20.0, 1)
    assert recorder.token_usage() == Usage(50, 5, 55, 100.0, 5)
    assert recorder.token_usage_per_task() == {"root": one + one, "a": one, "b": one + one}
    assert recorder.token_usage_per_step() == {0: one + one + one, 1: one + one}
    unknown = Recorder()
    kernai.run(Agent(instructions="", provider=MockProvider("done")), "Go.", recorder=unknown)
    assert unknown.token_usage() == Usage(model_calls=1), "no call reported any"
    assert (Recorder().token_usage(), Recorder().token_usage_per_task(), Recorder().token_usage_per_step()) == (Usage(), {}, {})


# ---------------------------------------------------------------------------------- the messages in a recording


def test_without_expansion_the_size_of_a_recording_is_linear_in_the_length_of_the_run(tmp_path: Path) -> None:
    def sizes(steps: int) -> tuple[int, int, int]:
        path, memory = tmp_path / f"{steps}.jsonl", MemorySink()
        with JsonlSink(path) as file:
            agent = Agent(instructions="Work. " * 50, skills=[echo], max_steps=steps + 1)
            provider = MockProvider(*[ECHO] * steps, "<final>done</final>", chunk_size=99)
            kernai.run(agent, "Go.", provider=provider, recorder=Recorder(CompositeSink(memory, file)))
        recorder = Recorder(memory)
        return path.stat().st_size, len(recorder.to_json(expand=False)), len(recorder.to_json())

    file, compact, whole = (more / less for more, less in zip(sizes(80), sizes(40), strict=True))
    assert max(file, compact) < 2.1
    assert whole > 3


# ------------------------------------------------------------------------------------------ what is not kept


def test_media_are_recorded_as_references_without_payload_and_without_a_urls_query() -> None:
    secret = Media.from_url("https://user:hunter2@example.org/a.png?token=hunter2#hunter2")
    payload = Media.from_bytes(b"hunter2", mime_type="image/png", metadata={"from": secret})

    def show(image: Media, ctx: SkillContext[Any]) -> Any:
        ctx.emit({"image": image})
        return SkillResult("seen", [image, payload], {"original": image, "list": [payload]})

    def fail(image: Media) -> None:
        raise ValueError(image)

    def data(image: Media) -> Any:
        return {"image": image, "all": [payload]}

    skills = [Skill(one.__name__, execute=one) for one in (show, fail, data)]
    letter = Protocol("letter", lambda *_: Message("user", ["see", secret]))
    turn = "".join(command(one.name, secret.id) for one in skills) + '<block type="letter">x</block>'
    recorder = Recorder(CompositeSink(MemorySink()))
    agent = Agent(instructions="", skills=skills, protocols=[letter], provider=MockProvider(turn, "done"))
    kernai.execute(agent, ["see", secret], history=[Message("user", payload)], recorder=recorder, metadata={"input": secret})
    assert [len(recorder.for_event(f"{kind}_result")) for kind in ("skill", "protocol")] == [2, 1]
    for text in (recorder.to_json(), recorder.to_json(expand=False), repr(recorder.entries)):
        assert "hunter2" not in text
        assert "aHVudGVyMg" not in text  # the payload is not there as base64 either
        assert secret.id in text


# ----------------------------------------------------------------------------------------------- odd values


class Grumpy:
    def __str__(self) -> str:
        raise RuntimeError("no")

    to_dict = __str__


ODD: list[object] = [
    float("nan"), [float("inf"), -float("inf")], "\ud800\x00", b"\xff", {1}, object(), Message, ValueError("x"), kernai.StopReason.FINAL,
    Grumpy(), {Grumpy(): 1}, 10**5000, {1: "a", None: "b", (1, 2): "c"}, Message("user", "x"), Usage(), 1j, iter(()),
    reduce(lambda inner, _: [inner], range(100_000), list[Any]()),
]
ODD.append({"itself": ODD, "again": ODD})
ANY_TEXT = '\x00\ud800 \u2028\n"\\ é 𝄞 </script>'


@pytest.mark.parametrize("debug", [False, True])
def test_any_object_passed_by_the_host_is_recorded_as_valid_json(
    debug: bool, tmp_path: Any, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "kernai")
    kernai.configure(debug=debug)

    class Odd(MockProvider):
        def call(self, *given: Any) -> LlmResponse:
            return LlmResponse(super().call(*given).content, metadata={"odd": ODD})

    act = Skill("act", execute=lambda: SkillResult("x", metadata={"odd": ODD}))
    recorder = Recorder(CompositeSink(MemorySink(), JsonlSink(tmp_path / "run.jsonl")))
    agent = Agent(instructions="", skills=[act], provider=Odd(command("act"), "done"))
    assert kernai.run(agent, ANY_TEXT, recorder=recorder, metadata={"odd": ODD}) == "done"
    assert [record.getMessage() for record in caplog.records if record.levelno >= logging.ERROR] == []
    text = recorder.to_json()
    assert text.isascii()
    entries = json.loads(text, parse_constant=lambda word: pytest.fail(f"{word} is not JSON"))
    assert [entry["event"] for entry in entries] == [event.type for event in recorder.entries]
    assert JsonlSink.read(tmp_path / "run.jsonl") == entries
    assert entries[0]["data"]["input"] == ANY_TEXT
    assert (entries[-1]["event"], len(entries[0]["data"]["metadata"]["odd"])) == ("result", len(ODD))


# ---------------------------------------------------------------------------------------------- which recorder


def test_the_runs_recorder_is_used_instead_of_the_configured_one_and_tells_runs_apart_by_id() -> None:
    configured, own = Recorder(), Recorder()
    kernai.configure(recorder=configured)
    agent = Agent(instructions="", provider=MockProvider("done"))
    kernai.run(agent, "Go.")
    ids = [kernai.execute(agent, "Go.", recorder=own).run_id for _ in range(2)]
    assert (len(configured.entries), len(own.entries)) == (5, 10)
    assert [event.run_id for event in own.for_event("run_start")] == ids == list(dict.fromkeys(ids))


# ------------------------------------------------------------------------------------------ reading a file


@pytest.fixture
def run(tmp_path: Path) -> Recorder:
    """Record a run of three steps, which is also written to run.jsonl line by line."""
    memory = MemorySink()
    with JsonlSink(tmp_path / "run.jsonl") as lines:
        provider = MockProvider(command("echo", "\ud800é"), command("echo", "b"), "<final>done</final>")
        agent = Agent(instructions="You echo.", skills=[echo])
        kernai.execute(agent, "Go.", provider=provider, recorder=Recorder(CompositeSink(memory, lines)))
    return Recorder(memory)


@pytest.mark.parametrize("form", ["whole", "compact", "lines", "under events"])
def test_every_format_of_a_recording_has_the_same_events(tmp_path: Path, run: Recorder, form: str) -> None:
    texts = {
        "whole": run.to_json(),
        "compact": run.to_json(expand=False),
        "under events": json.dumps({"format": 1, "events": json.loads(run.to_json(expand=False))}, indent=1),
    }
    path = tmp_path / "run.jsonl"
    if form in texts:
        path.write_text(texts[form])
    assert read_recording(path) == run.to_list()


def test_whole_messages_after_short_ones_are_shortened_alike(run: Recorder) -> None:
    """Each process that continues a run into the same file begins with the whole conversation."""
    whole, short = run.to_list(), json.loads(run.to_json(expand=False))
    assert sum("since" in entry for entry in short) > 1
    for at in range(len(short)):
        assert list(map(Shortening().entry, [*short[:at], *whole[at:]])) == short


def test_events_read_from_the_lines_of_a_recording_are_recorded_again_as_they_were(tmp_path: Path, run: Recorder) -> None:
    entries = [json.loads(line) for line in (tmp_path / "run.jsonl").read_text().splitlines()]
    entries.insert(-1, {**Event("context_saved", {"till": 3}, run_id="r", timestamp=1).to_dict(), "shared": ["till"]})
    with JsonlSink(tmp_path / "again.jsonl") as sink:
        for entry in entries:
            sink.record(Event.from_dict(entry))
    assert [json.loads(line) for line in (tmp_path / "again.jsonl").read_text().splitlines()] == entries


def test_a_file_that_a_crash_or_an_editor_has_left_is_read_too(tmp_path: Path, run: Recorder) -> None:
    path = tmp_path / "run.jsonl"
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert read_recording(path) == run.to_list()[:-1], "the last line was cut off"
    path.write_bytes(whole.split(b"\n")[0])
    assert read_recording(path) == run.to_list()[:1], "the run has just begun"
    path.write_bytes('\ufeff{"event": "run_start"}\r\n \n{"event": "final", "data": "café"}\r\n'.encode())
    assert [entry.get("data") for entry in read_recording(path)] == [None, "café"]
    lacking = [{"event": "messages_sent"}, {"event": "messages_sent", "data": 7, "scope": ["x"]}, {"event": "new"}]
    path.write_text(json.dumps(lacking))
    assert read_recording(path) == lacking, "entries that lack the fields of their type"


@pytest.mark.parametrize("content, fault", [
    (b"", "the file is empty"),
    (b" \n", "the file is empty"),
    (b"\x89PNG\r\n", "byte 0 is not UTF-8 text"),
    (b"# Notes", "neither JSON nor JSON lines"),
    (b"42", "must be a list of events"),
    (b'{"format": 2, "turns": []}', "must be a list of events"),
    (b'[{"event": "run_start"}, {"type": "final"}]', "entry 2 is not an event"),
    (b'[{"event": "run_start"}, 7]', "entry 2 is not an event"),
    (b'{"event": "run_start"}\n{"a": 1}\n', "entry 2 is not an event"),
    (b'{"event": "messages_sent", "since": 2}', 'entry 1: "since" of messages_sent does not fit'),
    (b'[{"event": "messages_sent", "since": 1, "data": []}]', 'entry 1: "since" of messages_sent does not fit'),
    (b'{"event": "messages_sent", "since": "x", "data": []}\n\n\n', '"since" of messages_sent does not fit'),
    (b"[" * 100_000, "nested too deeply"),
    (b'{"event": "run_start"}\n' + b"[" * 100_000 + b"\n\n", ":2 is not JSON"),
])
def test_a_file_that_is_not_a_recording_is_an_error_that_says_why(tmp_path: Path, content: bytes, fault: str) -> None:
    path = tmp_path / "notes.txt"
    path.write_bytes(content)
    with pytest.raises(KernaiError) as caught:
        read_recording(path)
    assert str(path) in str(caught.value)
    assert fault in str(caught.value)
