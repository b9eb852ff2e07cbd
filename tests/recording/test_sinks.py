"""Sinks write every event so that it can be read back complete, whatever else fails."""

from __future__ import annotations

import gc
import json
import os
import re
import signal
import stat
import subprocess
import sys
import tempfile
import tracemalloc
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import Agent, CompositeSink, Event, JsonlSink, KernaiError, MemorySink, MockProvider, Recorder, Skill
from kernai.recording.recorder import expand
from tests.loop.loop_cases import command, echo, plan, task

TURNS = st.sampled_from([
    command("echo", "x"), command("echo", "\ud800é") + command("/skills"), "<json>1</json>", "Let me see.",
    plan(task("a"), task("b", depends_on=["a"])), plan(task("a"), task("b"), strategy="parallel"),
    command("ask", "what?"), '<block type="final">', "<result>42</result>",
])  # fmt: skip


def run_of(turns: list[str], every: int, sink: Any, **options: Any) -> None:
    """Record a run whose instructions change every few steps, and in which prose is not an answer."""
    left = [0]

    def instructions() -> str:
        left[0] += 1
        return f"Edition {left[0] // every}."

    leaf = Agent(instructions=instructions, skills=[echo], max_steps=2, on_prose="correct")
    agent = Agent(instructions=instructions, skills=[echo, leaf.as_skill("ask", "")], max_steps=4, on_prose="correct")
    provider = MockProvider(*turns, chunk_size=50)
    kernai.execute(agent, "Go.", provider=provider, recorder=Recorder(sink), **options)


@pytest.mark.slow
@given(
    turns=st.lists(TURNS, min_size=1, max_size=8), every=st.integers(1, 4), times=st.integers(1, 2), is_reopened=st.booleans(),
    options=st.sampled_from([{}, {"run_id": "same"}]),
)
def test_events_are_read_from_a_file_as_they_were_recorded(
    turns: list[str], every: int, times: int, is_reopened: bool, options: dict[str, str]
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path, memory = Path(folder, "run.jsonl"), MemorySink()
        file = JsonlSink(path)
        for _ in range(times):
            if is_reopened:
                file.close()
                file = JsonlSink(path)
            run_of(turns, every, CompositeSink(memory, file), **options)
        file.close()
        events = Recorder(memory).to_list()
        assert JsonlSink.read(path) == events
        assert list(expand(json.loads(Recorder(memory).to_json(expand=False)), "r")) == events
        assert len(path.read_text("ascii").splitlines()) == len(events)


def test_runs_with_the_same_id_at_the_same_time_keep_their_own_messages(tmp_path: Path) -> None:
    memory, path, streams = MemorySink(), tmp_path / "runs.jsonl", []
    with JsonlSink(path) as file:
        for who in "ab":
            agent = Agent(instructions=who, skills=[echo], provider=MockProvider(command("echo", who), command("echo", who), who))
            streams.append(kernai.stream(agent, who, run_id="r", recorder=Recorder(CompositeSink(memory, file))))
        for _ in zip(*streams, strict=True):
            pass
        options: Any = {"run_id": "r", "recorder": Recorder(CompositeSink(memory, file))}
        inner = Agent(instructions="x", provider=MockProvider("c"))
        within = Skill("within", execute=lambda: kernai.run(inner, "within", **options))
        helper = inner.replace(skills=[within], provider=MockProvider(command("within"), "d")).as_skill("helper", "helps")
        kernai.run(inner.replace(skills=[helper], provider=MockProvider(command("helper"), "e")), "e", **options)
    # the two threads may write their events to the two sinks in different orders
    assert sorted(JsonlSink.read(path), key=json.dumps) == sorted(Recorder(memory).to_list(), key=json.dumps)


@pytest.mark.parametrize("start, whole", [({}, None), ({"run_id": "other"}, ["a", "b"]), ({"scope": "0.0"}, ["a", "b"])])
def test_a_second_run_with_the_same_id_starts_without_messages(start: dict[str, str], whole: list[str] | None) -> None:
    sent = {"event": "messages_sent", "run_id": "r", "scope": ""}
    entries: list[dict[str, Any]] = [{**sent, "data": ["a"]}, {"event": "run_start", "run_id": "r", "scope": "", **start}, {**sent, "since": 1, "data": ["b"]}]
    if whole is None:
        with pytest.raises(kernai.KernaiError, match='entry 3: "since" of messages_sent does not fit'):
            list(expand(entries, "r"))
    else:
        assert list(expand(entries, "r"))[2]["data"] == whole


WHOLE = [
    Event("skill_execute", {"call_id": "0.0", "params": {"é\n\\": [1.5e-7, -3, True, False, None, "}", "\ud800"]}}, run_id="a"),
    Event("messages_sent", [{"role": "system", "content": "s"}, {"role": "user", "content": "x"}], run_id="a"),
]


@pytest.mark.parametrize("at", [0, 1])
def test_a_file_cut_off_anywhere_can_be_appended_to_and_read_without_that_line(
    at: int, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, after = tmp_path / "run.jsonl", Event("final", "after", run_id="a")
    with JsonlSink(path) as file:
        for event in WHOLE[: at + 1]:
            file.record(event)
    whole, ends = path.read_bytes(), path.read_bytes().rfind(b"\n", 0, -1) + 1
    for cut in sorted({*range(ends + 1, len(whole), 5), len(whole) - 2, len(whole) - 1}):
        path.write_bytes(whole[:cut])
        caplog.clear()
        with JsonlSink(path) as file:
            file.record(WHOLE[1])
            file.record(after)
        left = WHOLE[: at + (cut == len(whole) - 1)]
        assert JsonlSink.read(path) == [event.to_dict() for event in [*left, WHOLE[1], after]]
        warnings = [line for line in caplog.messages if line.startswith("event=recording.cut_off")]
        assert len(warnings) == (cut < len(whole) - 1)
        assert all(f"line={at + 1}" in line and "run.jsonl" in line for line in warnings)


@pytest.mark.parametrize("line, fault", [
    *[(line, "JSON") for line in ("{nonsense", '{"event": nonsense}', '{"event": "x"} y', '{"event": tru, "a": 1}', "{'a': 1}")],
    *[(line, "an event") for line in ("5", "[]", '"text"', "null")],
])
def test_a_complete_line_that_is_not_an_event_is_an_error_with_its_number(tmp_path: Path, line: str, fault: str) -> None:
    (tmp_path / "run.jsonl").write_text(f'{{"event": "final"}}\n{line}\n{{"event": "final"}}\n')
    with pytest.raises(KernaiError, match=rf"run\.jsonl:2 is not {fault}"):
        JsonlSink.read(tmp_path / "run.jsonl")


@pytest.mark.skipif(not hasattr(signal, "SIGXFSZ"), reason="a file's size cannot be limited here")
@pytest.mark.parametrize("room", [0, 1, 50, 700, 1500, 3000])
def test_only_the_events_written_while_the_disk_is_full_are_lost(room: int, tmp_path: Path) -> None:
    """A process limit simulates a full disk: the write that does not fit is partial, and later ones fail."""
    import resource

    path, memory = tmp_path / "run.jsonl", MemorySink()
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    lost: list[str] = []

    class Watched:
        def record(self, event: Event) -> None:
            at = path.stat().st_size
            try:
                file.record(event)
            except OSError:
                lost.append(event.type)
                # now there is room again
                resource.setrlimit(resource.RLIMIT_FSIZE, before)
                return
            assert path.stat().st_size > at
            memory.record(event)

    with JsonlSink(path) as file:
        file.record(Event("final", "first"))
        resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + room, before[1]))
        try:
            run_of([command("echo", "x")] * 3 + ["<final>done</final>"], 1, Watched())
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert len(lost) == 1
    assert JsonlSink.read(path)[1:] == Recorder(memory).to_list()


def test_a_killed_run_and_a_later_run_with_the_same_id_are_read_separately(tmp_path: Path) -> None:
    path, memory = tmp_path / "run.jsonl", MemorySink()

    class Killed:
        """Simulates a process that dies in its third model call, before a sub-run has recorded its end."""

        def __init__(self, sink: CompositeSink) -> None:
            self.sink = sink

        def record(self, event: Event) -> None:
            if len(Recorder(memory).for_event("messages_sent")) < 3:
                self.sink.record(event)

    turns = [command("ask", "what?"), command("echo", "y"), "<final>done</final>"]
    for killed in (True, False):
        with JsonlSink(path) as file:
            sink = CompositeSink(memory, file)
            run_of(turns, 9, Killed(sink) if killed else sink, run_id="same")
    assert JsonlSink.read(path) == Recorder(memory).to_list()


def test_a_sink_frees_the_memory_of_ended_runs(tmp_path: Path) -> None:
    with JsonlSink(tmp_path / "run.jsonl") as file:
        run_of([command("echo", "x"), "<final>done</final>"], 1, file)
        tracemalloc.start()
        try:
            for _ in range(20):
                agent = Agent(instructions="x" * 100_000, provider=MockProvider("done"))
                kernai.run(agent, "Go.", recorder=Recorder(file))
                del agent
            gc.collect()
            left, _ = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert left < 300_000


def test_a_pipe_keeps_its_mode_and_delivers_the_events(tmp_path: Path) -> None:
    path = tmp_path / "pipe"
    os.mkfifo(path, 0o644)
    os.chmod(path, 0o644)
    reading = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        with JsonlSink(path) as file:
            file.record(Event("final", "42"))
        assert stat.S_IMODE(path.stat().st_mode) == 0o644
        assert json.loads(os.read(reading, 10_000))["data"] == "42"
    finally:
        os.close(reading)


FORKING = """
import os, signal, sys, threading
import kernai
from kernai import Event, JsonlSink, Limits, Media, MediaStore, MockProvider, Skill
from kernai.values.limits import Budget
sink, store, mock, over = JsonlSink(sys.argv[1]), MediaStore(), MockProvider("x"), threading.Event()
budget = Budget(Limits(max_calls=10**9))
def use(name, at):
    sink.record(Event("final", "x" * 2000, at, run_id=name))
    kernai.skills.register(Skill(name, execute=lambda: ""))
    kernai.protocols.register(name, lambda *_: "")
    store.put(Media.from_bytes(f"{name} {at}".encode(), mime_type="image/png"))
    mock.respond_with("x")
    for _ in range(100):
        budget.spend_usage(kernai.Usage(1), kernai.Model("m"))
def go_on(name):
    at = 0
    while not over.is_set():
        use(name, at := at + 1)
sys.setswitchinterval(1e-5)  # so that a thread is often stopped where it holds a lock
use("first", 0)  # imports what is imported late: of a module that is being imported Python itself forgets to free the lock
threads = [threading.Thread(target=go_on, args=(f"thread{number}",)) for number in range(4)]
for thread in threads:
    thread.start()
hung = 0
for at in range(30):
    child = os.fork()
    if not child:
        signal.alarm(20)
        use("child", at)
        os._exit(0)
    hung += os.waitpid(child, 0)[1] != 0
over.set()
for thread in threads:
    thread.join()
print(hung, [one["step"] for one in JsonlSink.read(sys.argv[1]) if one["run_id"] == "child"] == list(range(30)))
"""


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_no_lock_is_held_in_a_child_forked_while_threads_write(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORKING, str(tmp_path / "run.jsonl")], capture_output=True, text=True, check=True
    )
    assert done.stdout == "0 True\n"


SETS = """
import sys
from dataclasses import dataclass
import kernai
from kernai import Agent, Context, JsonlSink, MockProvider, Model, Recorder, Skill, SkillResult
from kernai.middleware import retry

WORDS = {"vision", "audio_in", "alpha", "beta", "gamma", "delta"}
MIXED = frozenset([1, "1", None, 2.5, ("x", frozenset("yz"))])

@dataclass(frozen=True)
class Held:
    words: frozenset

def plain(): return WORDS
def data(): return {"k": WORDS, "mixed": MIXED, frozenset(WORDS): Held(frozenset(WORDS)), "all": {Held(frozenset({w})) for w in WORDS}}
def reported(ctx: kernai.SkillContext):
    ctx.emit({"words": WORDS})
    return SkillResult("x", metadata={"words": WORDS, "by": {frozenset(WORDS): 1}, "mixed": MIXED})
def failing(): raise ValueError("no")
def named(alpha: str = "", beta: str = "", gamma: str = ""): return "named"

made = [Skill(f.__name__, execute=f, produces={"image", "audio"}) for f in (plain, data, reported, failing, named)]
for one in made: kernai.skills.register(one)
for name in WORDS: pass
for name in sorted(WORDS): kernai.protocols.register(name, lambda *_: "x")
calls = "".join(f'<command name="{one.name}"></command>' for one in made)
turns = [calls, '<command name="named">{"alpa": 1, "bta": 2, "gama": 3, "x": 4}</command><command name="/skills"/>'
         '<block type="command" name="/protocols"/>', "<final>done</final>"]
agent = Agent(instructions="x", skills={one.name for one in made}, protocols=set(sorted(WORDS)), list_skills=True,
              provider=MockProvider(*turns), model=Model("m", {"text", "vision", "audio_in"}), middleware=[retry()])
with JsonlSink(sys.argv[1]) as sink:
    for parallel in (False, True):
        kernai.execute(agent.replace(parallel_skills=parallel, provider=MockProvider(*turns)), "Go.", run_id="r",
                       recorder=Recorder(sink), metadata={"words": WORDS})
"""


@pytest.mark.slow
@pytest.mark.process
def test_processes_with_different_hash_seeds_record_the_same(tmp_path: Path) -> None:
    recorded = []
    for seed in ("0", "1"):
        path = tmp_path / f"{seed}.jsonl"
        subprocess.run([sys.executable, "-c", SETS, str(path)], check=True, env={**os.environ, "PYTHONHASHSEED": seed})
        text = path.read_text("ascii")
        text = re.sub(r'"(timestamp|duration_ms|latency_ms)":("[^"]*"|[0-9]+)', "", text)
        sequential, parallel = text.split('{"event":"run_start"')[1:]
        recorded.append((sequential, sorted(parallel.splitlines())))
    assert recorded[0] == recorded[1]
    assert '"beta"' in recorded[0][0]


@pytest.mark.parametrize("is_there, has_fchmod", [(False, True), (True, True), (False, False)])
def test_only_the_owner_can_read_a_file_whatever_the_umask_and_its_earlier_mode(
    tmp_path: Path, is_there: bool, has_fchmod: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, before = tmp_path / "run.jsonl", os.umask(0)
    try:
        if is_there:
            path.touch(mode=0o644)
        if not has_fchmod:  # as on some systems
            monkeypatch.delattr(os, "fchmod")
        JsonlSink(path).close()
    finally:
        os.umask(before)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert JsonlSink.read(path) == []


def test_a_line_is_in_the_file_when_record_returns_and_a_closed_sink_takes_none(tmp_path: Path) -> None:
    sink = JsonlSink(str(tmp_path / "run.jsonl"))
    sink.record(Event("final", "é\n", timestamp=0.0))
    assert (tmp_path / "run.jsonl").read_bytes() == (
        b'{"event":"final","step":null,"depth":0,"task_id":null,"scope":"","run_id":"",'
        b'"timestamp":"1970-01-01T00:00:00.000Z","data":"\\u00e9\\n"}\n'
    )
    for _ in range(2):
        sink.close()
    with pytest.raises(KernaiError, match=r"run\.jsonl.*closed"):
        sink.record(Event("final"))


def test_messages_that_do_not_continue_the_previous_ones_are_written_in_full(tmp_path: Path) -> None:
    """Hosts that record their own events may send any list."""
    lists = [[{"role": "system", "content": "s"}, {"role": "user", "content": str(at)}] for at in range(3)]
    lists += [lists[0][:1], [], lists[2]]
    with JsonlSink(tmp_path / "run.jsonl") as sink:
        for data in (lists[0], lists[0], *lists[3:]):
            sink.record(Event("messages_sent", data))
        sink.record(Event("messages_sent", "no list"))
    read = [one["data"] for one in JsonlSink.read(tmp_path / "run.jsonl")]
    assert read == [lists[0], lists[0], *lists[3:], "no list"]


# ------------------------------------------------------------------------------------------- sinks that fail


def test_a_failing_sink_does_not_keep_an_event_from_the_others(tmp_path: Path) -> None:
    with JsonlSink(tmp_path / "first") as first, JsonlSink(tmp_path / "second") as second:
        memory = MemorySink()
    with pytest.raises(KernaiError, match="first"):
        CompositeSink(first, second, memory).record(Event("final"))
    assert len(memory.entries) == 1
