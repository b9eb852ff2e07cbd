"""What is recorded can be played back: in memory, in files, every scenario, every example, made by either driver."""

from __future__ import annotations

import asyncio
import json
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import CompositeSink, JsonlSink, KernaiError, MemorySink, MemoryStore, Recorder, Result
from kernai.runs.run_request import RunRequest
from kernai.testing import assert_replays
from kit.scenario_files import find_scenarios
from real_model import real_model
from tests.durable.durable_cases import WAYS, Performed, Way, agent, provider, way_id
from tests.programs import ran_here

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("local_model.py", "rag.py")  # run where their models are installed
EXAMPLES = sorted(
    path.name for path in (ROOT / "examples").glob("*.py") if "mcp" not in path.name and path.name not in MODELS
)
BOTH = {"threads": False, "asyncio": True}
#: these start servers
MCP = {"mcp_filesystem": ["threads"], "mcp_memory": ["asyncio"], "skill_and_mcp": ["threads", "asyncio"]}
SCENARIOS = [
    pytest.param(
        one.name, BOTH[driver], id=f"{one.name}-{driver}",
        marks=[pytest.mark.mcp, pytest.mark.process] if one.name in MCP else [],
    )
    for one in find_scenarios(ROOT / "scenarios")
    if one.name != "crash_and_resume"  # its log is that of the second process alone; the store has the whole run
    for driver in MCP.get(one.name, BOTH)
]
DRIVERS = pytest.mark.parametrize("is_async", BOTH.values(), ids=BOTH)


class EntryRecorder(kernai.Recorder):
    """Passes events on, and keeps a copy of each as it was when emitted."""

    def __init__(self, entries: list[Mapping[str, Any]], next_one: kernai.Recorder | None) -> None:
        super().__init__()
        self._entries, self._next = entries, next_one

    def record(self, event: kernai.Event) -> None:
        self._entries.append(event.to_dict())
        if self._next is not None:
            self._next.record(event)


class Captured:
    """Every root run of a program: its request and its events."""

    def __init__(self) -> None:
        self.runs: list[tuple[RunRequest, list[Mapping[str, Any]]]] = []

    def begin(self, begin: Callable[..., Any]) -> Callable[..., Any]:
        def begun(request: RunRequest, delivery: Any) -> Any:
            entries: list[Mapping[str, Any]] = []
            request.writer._recorder = EntryRecorder(entries, request.writer._recorder)
            request.writer._entries = delivery.kept = None
            self.runs.append((request, entries))
            return begin(request, delivery)

        return begun

    def check(self) -> int:
        """Replays each run, and gives the number of their events."""
        for request, entries in self.runs:
            result = assert_replays(request.agent, entries, model=request._model)
            ended = entries[-1]["data"]
            assert result is not None
            assert (result.text, result.stop_reason) == (ended["text"], ended["stop_reason"])
            assert result.usage.to_dict() == ended["usage"]
        return sum(len(entries) for _, entries in self.runs)


@pytest.fixture
def captured(monkeypatch: pytest.MonkeyPatch) -> Captured:
    made = Captured()
    monkeypatch.setattr(RunRequest, "begin", made.begin(RunRequest.begin))
    return made


def on_asyncio(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on what a program runs on threads is run on asyncio."""
    execute = RunRequest.execute

    async def on_the_loop(request: RunRequest) -> Result:
        return await request.aexecute()

    def execute_there(request: RunRequest) -> Result:
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            return asyncio.run(on_the_loop(request))
        return execute(request)

    monkeypatch.setattr(RunRequest, "execute", execute_there)


@pytest.mark.slow
@pytest.mark.parametrize("name, is_async", SCENARIOS)
def test_the_recording_of_a_scenario_replays(
    name: str, is_async: bool, captured: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if is_async:
        on_asyncio(monkeypatch)
    done = ran_here(
        ROOT / "scenarios" / f"{name}.py", "--offline", "--logs", str(tmp_path), "--plain", environment=dict(os.environ)
    )
    if done.returncode == 2:
        pytest.skip(done.stderr)
    assert done.returncode == 0, done.stdout + done.stderr
    assert captured.check() > 5


@pytest.mark.slow
@DRIVERS
@pytest.mark.parametrize("name", EXAMPLES)
def test_what_an_example_runs_replays(
    name: str, is_async: bool, captured: Captured, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)  # where some leave their files
    if is_async:
        on_asyncio(monkeypatch)
    done = ran_here(ROOT / "examples" / name, environment=dict(os.environ))
    assert done.returncode == 0, done.stderr
    captured.check()


@real_model
@pytest.mark.slow
def test_the_example_with_a_real_model_keeps_to_the_protocol_and_replays(captured: Captured) -> None:
    done = ran_here(ROOT / "examples" / "local_model.py", environment=dict(os.environ))
    found = re.search(r"keep to the protocol: (\d+) of (\d+)$", done.stdout)
    assert found is not None, done.stderr
    assert found[1] == found[2]
    captured.check()


@pytest.mark.parametrize("way", WAYS, ids=way_id)
def test_a_recording_replays_in_memory_and_out_of_each_kind_of_file(way: Way, tmp_path: Path) -> None:
    lines, memory = tmp_path / "run.jsonl", MemorySink()
    recorder = Recorder(CompositeSink(memory, JsonlSink(lines)))
    result = way.execute(agent(Performed()), "do everything", provider=provider(), recorder=recorder, run_id="one")
    whole, short, wrapped = tmp_path / "whole.json", tmp_path / "short.json", tmp_path / "wrapped.json"
    whole.write_text(recorder.to_json())
    short.write_text(recorder.to_json(expand=False))
    wrapped.write_text(json.dumps({"events": recorder.to_list()}))
    for recording in (lines, str(lines), whole, short, wrapped, recorder.to_list(), iter(recorder.to_list())):
        performed = Performed()
        again = assert_replays(agent(performed), recording)
        assert again is not None
        assert (again.text, again.steps, again.usage) == (result.text, result.steps, result.usage)
        assert not performed.calls
        ids = [media.id for message in again.messages for media in message.media]
        assert ids == [media.id for message in result.messages for media in message.media]
    assert kernai.replay(agent(Performed()), recording=memory.entries).result is not None


@pytest.mark.parametrize("recording", [5, [1], [None]])
def test_what_is_no_recording_is_the_callers_mistake(recording: Any) -> None:
    with pytest.raises(TypeError, match="recording must"):
        kernai.replay(agent(Performed()), recording=recording)
    with pytest.raises(kernai.KernaiError, match="has no run_start"):
        kernai.replay(agent(Performed()), recording=[])


def test_of_several_runs_in_one_file_one_is_named(tmp_path: Path) -> None:
    lines = tmp_path / "runs.jsonl"
    recorder = Recorder(JsonlSink(lines))
    for run_id in ("one", "two"):
        kernai.execute(agent(Performed()), "do everything", provider=provider(), recorder=recorder, run_id=run_id)
    for run_id in ("one", "two"):
        result = assert_replays(agent(Performed()), lines, run_id)
        assert result is not None
        assert result.run_id == run_id
    with pytest.raises(KernaiError, match=r"holds 2 runs \(one, two\); say which"):
        assert_replays(agent(Performed()), lines)
    with pytest.raises(KernaiError, match="has no run 'three'; it has one, two"):
        assert_replays(agent(Performed()), lines, "three")


def test_an_agent_that_decides_otherwise_fails_the_test_with_the_first_event_that_differs(tmp_path: Path) -> None:
    store = MemoryStore()
    kernai.execute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
    with pytest.raises(AssertionError, match=r"event \d+ \(skill_execute, step 0 of the root\)"):
        assert_replays(agent(Performed(), skills=None), store.load("r"))


@pytest.mark.slow
def test_a_recording_that_stops_in_the_middle_replays_as_far_as_it_goes() -> None:
    store = MemoryStore()
    kernai.execute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
    entries = store.load("r")
    for length in range(1, len(entries)):
        performed = Performed()
        assert assert_replays(agent(performed), entries[:length]) is None
        assert not performed.calls


@pytest.mark.parametrize("given", [{}, {"recording": [], "store": MemoryStore()}, {"store": MemoryStore()}, {"other": 1},
                                   {"run_id": "r", "store": "runs.db"}])
def test_replay_wants_one_thing_to_replay(given: dict[str, Any]) -> None:
    with pytest.raises(TypeError, match=r"replay needs|unexpected keyword argument 'other'|store must be"):
        kernai.replay(agent(Performed()), **given)
