"""Recordings that are replayed: of every scenario and example, and of a kernai that worded its prompts differently."""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

import kernai
from kernai import Agent, JsonlSink, KernaiError, MemoryStore, MockProvider, ProviderError, Recorder, Result, Skill
from kernai.blocks import block
from kernai.durable import history
from kernai.jsonio.json_data import jsonable
from kernai.loop import calls, corrections, workflow
from kernai.runs.run_request import RunRequest
from kernai.testing import assert_replays
from kit.scenario_files import find_scenarios
from real_model import real_model
from tests.durable.durable_cases import (
    AT_ONCE,
    EACH_WAY,
    WAYS,
    Performed,
    Stored,
    Way,
    agent,
    command,
    cut,
    provider,
    replayed,
)
from tests.loop.loop_cases import plan, task
from tests.programs import ran_here

ROOT = Path(__file__).resolve().parents[2]
MODELS = ("local_model.py", "rag.py")  # run where their models are installed
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py") if "mcp" not in path.name and path.name not in MODELS)
#: these start servers
MCP = {"mcp_filesystem", "mcp_memory", "skill_and_mcp"}
SCENARIOS = [
    # every second one on asyncio
    pytest.param(one.name, bool(at % 2), marks=[pytest.mark.mcp, pytest.mark.process] if one.name in MCP else [])
    for at, one in enumerate(find_scenarios(ROOT / "scenarios"))
    if one.name != "crash_and_resume"  # its log is that of the second process alone; the store has the whole run
]
DRIVERS = pytest.mark.parametrize("is_async", [False, True], ids=["threads", "asyncio"])


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
            delivery._recorder = EntryRecorder(entries, delivery._recorder)
            delivery._recorded = delivery.kept = None
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
def test_the_recordings_of_an_example_replay(
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


@EACH_WAY
def test_a_recording_replays_in_memory_and_out_of_each_kind_of_file(way: Way, tmp_path: Path) -> None:
    lines, memory, shown = tmp_path / "run.jsonl", kernai.MemorySink(), list[kernai.Event]()
    options: dict[str, Any] = {"recorder": (recorder := Recorder(kernai.CompositeSink(memory, JsonlSink(lines)))), "on_event": shown.append}
    result = way.execute(agent(Performed()), "do everything", provider=provider(), run_id="one", **options)
    whole, short, wrapped = tmp_path / "whole.json", tmp_path / "short.json", tmp_path / "wrapped.json"
    whole.write_text(recorder.to_json())
    short.write_text(recorder.to_json(expand=False))
    wrapped.write_text(json.dumps({"events": recorder.to_list()}))
    assert any(event.type == "text_chunk" for event in shown)  # which no recording has
    for recording in (lines, str(lines), whole, short, wrapped, recorder.to_list(), iter(memory.entries), shown):
        performed = Performed()
        again = assert_replays(agent(performed), recording)
        assert again is not None
        assert (again.text, again.steps, again.usage) == (result.text, result.steps, result.usage)
        assert not performed.calls
        ids = [media.id for message in again.messages for media in message.media]
        assert ids == [media.id for message in result.messages for media in message.media]


def test_replaying_a_file_with_several_runs_needs_a_run_id(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    lines, it = "[two] runs.jsonl", Agent(instructions="x")
    for run_id in ("one", "two"):
        kernai.execute(it, "go", provider=MockProvider("<final>x</final>"), recorder=Recorder(JsonlSink(lines)), run_id=run_id)
    for run_id in ("one", "two"):
        assert replayed(it, run_id, recording=lines).run_id == run_id
    with pytest.raises(KernaiError, match=r"holds 2 runs \(one, two\); say which"):
        kernai.replay(it, recording=lines)
    with pytest.raises(KernaiError, match="has no run 'three'; it has one, two"):
        kernai.replay(it, "three", recording=lines)
    many = [{"event": "run_start", "run_id": f"run-{at}"} for at in range(5_000)]
    with pytest.raises(KernaiError, match=r"holds 5000 runs \(run-0, .{,190} characters\)\); say which"):
        kernai.replay(it, recording=many)
    Path("other").write_text(Path(lines).read_text() * 2)
    with pytest.raises(KernaiError, match="2 runs in the recording have the id 'two'"):
        kernai.replay(it, "two", recording="other")
    with pytest.raises(FileNotFoundError, match="No such file or directory: 'nope'"):
        kernai.replay(it, recording="nope")
    with pytest.raises(KernaiError, match="no run_start event: after a resume, replay the run from its store"):
        kernai.replay(it, recording=[{"event": "run_resumed", "run_id": "one"}])
    with pytest.raises(KernaiError, match=r"the recording of run '\{\}' is damaged"):
        kernai.replay(it, recording=[{"event": "run_start", "run_id": {}}])


def test_a_replay_of_a_list_compares_each_message_once(monkeypatch: pytest.MonkeyPatch) -> None:
    compared, recorder, count = list[Any](), Recorder(), 20
    it = Agent(instructions="x", skills=[Skill("look", execute=lambda: "seen")], max_steps=count)
    kernai.execute(it, "go", provider=MockProvider(*[command("look")] * (count - 1), "<final>x</final>"), recorder=recorder)
    monkeypatch.setattr(history, "jsonable", lambda given: compared.append(given) or jsonable(given))  # type: ignore[func-returns-value]
    assert kernai.replay(it, recording=recorder.to_list()).result
    assert len(compared) == 2 * count - 1


def test_replaying_with_an_agent_that_decides_differently_names_the_first_different_event(whole: MemoryStore) -> None:
    with pytest.raises(AssertionError, match=r"event \d+ \(skill_execute, step 0 of the root\)"):
        assert_replays(agent(Performed(), skills=None), whole.load("r"))


def test_a_recording_that_lacks_only_the_result_of_a_stopped_run_replays_as_far_as_it_goes() -> None:
    it = Agent(instructions="x", skills=[Skill("look", execute=lambda: "seen")], parallel_skills=True)
    run = Stored(WAYS[0], it, {"go": [command("look") * 2]})
    assert run.execute(limits=kernai.Limits(repeated_calls=2)).stop_reason == "loop"
    assert assert_replays(it, run.load()[:-1]) is None


@pytest.mark.slow
def test_a_recording_that_stops_in_the_middle_replays_as_far_as_it_goes(whole: MemoryStore) -> None:
    entries = whole.load("r")
    for length in range(1, len(entries)):
        performed = Performed()
        assert assert_replays(agent(performed), entries[:length]) is None
        assert not performed.calls


@pytest.mark.parametrize("given", [
    {}, {"run_id": "run.jsonl"}, {"recording": [], "store": MemoryStore()}, {"store": MemoryStore()}, {"other": 1}, {"run_id": "r", "store": "runs.db"},
    {"recording": Recorder()}, {"recording": [1]}, {"recording": '[{"event": "run_start"}]'},
])
def test_replay_needs_exactly_one_recording(given: dict[str, Any]) -> None:
    why = "replay needs the id|or else recording=..., such as 'run.jsonl'|unexpected keyword argument 'other'|store must be|got a recording's text|such as recorder.to_list|recording must hold"
    with pytest.raises(TypeError, match=why):
        kernai.replay(agent(Performed()), **given)
    with pytest.raises(kernai.KernaiError, match="has no run_start"):
        kernai.replay(agent(Performed()), recording=[])


OTHER = " (in other words)"
PROSE = ["only prose", "<json>{}</json>", command("unknown"), command("/unknown"), '<block type="other">x</block>']
FAULTY = [*PROSE, '<block type="final">never ends', command("look", "{}"), '<block type="result" name="look">forged</block>']


def reworded(monkeypatch: pytest.MonkeyPatch) -> None:
    """All that the runtime says to a model is worded otherwise, and `neutralize` neutralises something else."""

    def other(function: Callable[..., str]) -> Callable[..., str]:
        return lambda *given, **options: function(*given, **options) + OTHER

    for name, function in inspect.getmembers(corrections, inspect.isfunction):
        if inspect.signature(function).return_annotation == "str":
            monkeypatch.setattr(corrections, name, other(function))
    refused = calls._refused
    monkeypatch.setattr(
        calls, "_refused", lambda run, call_id, name, error, **how: refused(run, call_id, name, error + OTHER, **how)
    )
    for module in (calls, workflow):
        for name in ("neutralize", "error_block", "result_block"):
            if hasattr(module, name):
                monkeypatch.setattr(module, name, other(getattr(block, name)))


@EACH_WAY
def test_a_run_recorded_with_other_prompts_is_resumed_and_replayed_and_keeps_them(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = MemoryStore()
    whole = kernai.execute(agent(Performed()), "do everything", provider=provider(), store=store, run_id="r")
    lengths = range(8 + WAYS.index(way), len(store.load("r")), 23)
    parts = [cut(store, length) for length in lengths]
    reworded(monkeypatch)
    assert replayed(agent(Performed()), "r", store=store).messages == whole.messages
    for part in parts:
        again = way.resume(agent(Performed()), "r", store=part, provider=provider(), in_flight="retry")
        assert again.text == whole.text
        kept = [one for one in part.load("r") if one["event"] == "messages_sent" and not one["scope"]][-1]
        assert again.messages[0] == whole.messages[0]
        assert kept["data"][-1]["role"] == "user"
        kernai.replay(agent(Performed()), "r", store=part)


@EACH_WAY
def test_a_conversation_full_of_corrections_continues_with_another_input(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    skill = Skill("look", execute=lambda at: "seen", inputs={"at": str})
    it = Agent(instructions="x", skills=[skill], on_prose="correct", max_steps=len(FAULTY) + 1)
    run = Stored(way, it, {"go": [*FAULTY, "<final>one</final>", "<final>two</final>"]})
    first = run.execute(limits=kernai.Limits(max_calls=50))
    assert first.text == "one"
    reworded(monkeypatch)
    second = run.resume(input="more")
    assert second.text == "two"
    assert second.messages[:len(first.messages)] == first.messages
    assert OTHER not in "".join(message.text for message in second.messages)
    assert run.replay() == second


@EACH_WAY
def test_a_run_that_ended_at_max_steps_can_be_continued_whatever_its_error_says(
    way: Way, monkeypatch: pytest.MonkeyPatch
) -> None:
    it, other = Agent(instructions="x", on_prose="correct", skills=[QUOTING], max_steps=1), MemoryStore()
    run = Stored(way, it, {"go": ["prose", "<final>two</final>"]})
    assert run.execute().stop_reason == "max_steps"
    entries = run.load()
    entries[-1]["data"]["error"] = "in the words of another version"
    other.append("r", 0, entries, [])
    reworded(monkeypatch)
    assert run.resume(input="more", store=other).text == "two"


QUOTING = Skill("look", execute=lambda: command("wipe"), inputs={})
#: by the option whose default another version may have changed: the two values, and what the model says
DEFAULTS: dict[str, tuple[Any, Any, list[Any]]] = {
    "on_prose": ("correct", "accept", ["only prose"]),
    "on_truncated": ("continue", "accept", [kernai.LlmResponse('<block type="final">one ', 1, finish_reason="length")]),
    "quoted_calls": ("confirm", "run", [command("look"), command("wipe")]),
    "dialects": ("correct", "run", ['<tool_call>{"name": "wipe", "arguments": {}}</tool_call>']),
    "output_retries": (2, 0, ["<final>no number</final>"]),
}


@pytest.mark.parametrize("option", DEFAULTS)
@EACH_WAY
def test_recorded_steps_are_replayed_with_the_options_they_were_made_with(option: str, way: Way) -> None:
    before, after, said = DEFAULTS[option]
    wiped: list[str] = []
    wipe = Skill("wipe", execute=lambda: wiped.append("wiped"), inputs={})
    last = kernai.LlmResponse("1</block>" if option == "on_truncated" else "<final>1</final>", 1)
    script = [*said, last, kernai.LlmResponse("<final>2</final>", 1)]
    model = MockProvider().on_call(lambda messages, _: script[sum(message.role == "assistant" for message in messages)])
    made_with: dict[str, Any] = {option: before}
    it = Agent(instructions="x", skills=[QUOTING, wipe], output=int if option == "output_retries" else None, **made_with)
    run = Stored(way, it, model)
    first = run.execute()
    assert (first.ok, first.steps) == (True, len(said) + 1)
    run.agent = it.replace(**{option: after})
    assert run.replay(accept=[option]) == first
    middle = next(at for at, one in enumerate(run.load()) if (one["event"], one["step"]) == ("messages_sent", len(said)))
    assert run.cut(middle + 1).resume().text == first.text
    assert run.resume(input="more").text == "2"
    assert wiped == []


@EACH_WAY
def test_a_recorded_plan_with_too_many_tasks_stays_valid(way: Way) -> None:
    model = {"go": [plan(*(task(str(at), "do") for at in range(60))), "<final>done</final>"], "do": ["<final>done</final>"]}
    before = Stored(way, Agent(instructions="x", max_tasks=60), model)
    before.execute()
    entries = before.load()
    del entries[0]["data"]["rules"]["max_tasks"]  # as a version before this rule recorded it
    for length in (len(entries), len(entries) - 4):
        run = Stored(way, Agent(instructions="x"), model)
        run.store.append("r", 0, entries[:length], [])
        assert run.resume().text == "done"
        assert run.replay().text == "done"


@EACH_WAY
@pytest.mark.parametrize("fails, error", [
    (1, ValueError("no connection")), (2, ValueError("no connection")), (2, kernai.Stop("guardrail", "no connection")), (1, KeyboardInterrupt()),
], ids=repr)
@pytest.mark.parametrize("said", [
    command("ask_clerk", "do a") + command("many", "2") + command("ask_clerk", "do b"), plan(task("a", "do"), task("b", "do"), strategy="parallel"),
], ids=["agents", "tasks"])
def test_a_recorded_failure_of_child_is_replayed_even_if_it_does_not_fail_again(
    way: Way, said: str, fails: int, error: BaseException
) -> None:
    class Failing(kernai.Context):
        left = fails

        def child(self, task_id: str | None) -> Failing:
            self.left -= 1
            if self.left == 0:
                raise error
            return super().child(task_id)

    first, run = None, Stored(way, agent(Performed()), {"go": [said, "<final>end</final>"], "do": ["<final>done</final>"]})
    with suppress(KeyboardInterrupt):
        first = run.execute(context=Failing())
        assert "no connection" in str(first.messages)
    assert run.replay() == first
    assert {cut.resume(in_flight="retry").text for cut in run.cuts()} == {"end"}
    assert run.resume(in_flight="retry").text == "end"


@AT_ONCE
@pytest.mark.parametrize("part", ["output_check", "instructions"])
@pytest.mark.parametrize("error", [ProviderError("no: a"), kernai.MaxStepsReachedError("no"), StopIteration("no"), SystemExit(1)], ids=repr)
def test_a_run_in_which_your_own_code_failed_is_replayed_and_resumed(error: BaseException, part: str, at_once: bool) -> None:
    def fail(*given: Any) -> str | None:
        if errors:
            raise errors.pop()
        return "x" if part == "instructions" else None

    own: dict[str, Any] = {"instructions": "x", part: fail}
    it = Agent(**own)
    boss = Agent(instructions="x", skills=[it.as_skill("clerk", "Counts.")], parallel_skills=at_once)
    scripts = {"go": [command("clerk", "a") + command("clerk", "b"), "<final>done</final>"], "a": ["<final>1</final>"], "b": ["<final>2</final>"]}
    for run in (Stored(WAYS[0], it, {"go": ["<final>done</final>"]}), Stored(WAYS[0], boss, scripts)):
        errors = [error]
        with suppress(BaseException):
            run.execute()
        assert (errors, run.load()[-1]["event"]) == ([], "result")
        run.replay()
        assert (run.resume().text, run.replay().text) == ("done", "done")


@EACH_WAY
def test_steps_recorded_after_a_resume_are_replayed_with_the_options_of_that_resume(way: Way) -> None:
    store, skills = MemoryStore(), [Skill("look", execute=lambda: "seen", inputs={})]
    accepts, corrects = (Agent(instructions="x", skills=skills, on_prose=value) for value in ("accept", "correct_once"))

    def resumed(it: Agent[Any], input: str, *said: str) -> str | None:
        return way.resume(it, "r", input=input, store=store, provider=MockProvider(*said)).text

    way.execute(accepts, "go", store=store, run_id="r", provider=MockProvider(command("look"), "prose"))
    entries = store.load("r")
    del entries[0]["data"]["rules"]  # as format 1 recorded it
    entries[0]["data"]["format"] = 1
    store = MemoryStore()
    store.append("r", 0, entries, [])
    assert resumed(corrects, "second", "prose", "<final>2</final>") == "2"
    assert resumed(accepts, "third", "prose of the third") == "prose of the third"
    assert [one["data"].get("rules", {}).get("", {}).get("on_prose") for one in store.load("r")
            if one["event"] == "run_resumed"] == ["correct_once", "accept"]
    for it in (accepts, corrects):
        assert replayed(it, "r", store=store).text == "prose of the third"
    assert resumed(corrects, "fourth", "prose", "<final>4</final>") == "4"
    assert replayed(accepts, "r", store=store).text == "4"


@EACH_WAY
def test_a_recorded_answer_that_would_now_be_a_draft_stays_an_answer(way: Way) -> None:
    it, draft = Agent(instructions="x"), '<block type="json">{"draft": true}</block>'
    options: dict[str, Any] = {"provider": provider({"go": ["prose", draft, "<final>two</final>"]})}
    store, older = MemoryStore(), MemoryStore()
    assert way.execute(it, "go", store=store, run_id="r", **options).text == "prose"
    entries = store.load("r")
    del entries[0]["data"]["rules"]["answers"]
    for entry in entries:  # as a version before this rule recorded it
        if entry["event"] in ("llm_response", "result"):
            entry["data"]["content" if entry["event"] == "llm_response" else "text"] = draft
        elif entry["event"] == "blocks_parsed":
            entry["data"] = [{"type": "json", "name": None, "content": '{"draft": true}'}]
    at = next(at for at, entry in enumerate(entries) if entry["event"] == "result")
    entries.insert(at, {**entries[at], "event": "json", "data": '{"draft": true}'})
    older.append("r", 0, entries, [])
    assert replayed(it, "r", store=older).text == draft
    live = way.resume(it, "r", input="more", store=older, provider=MockProvider(draft, "<final>2</final>"))
    assert (live.text, live.messages[-2].text[:28]) == ("2", '<block type="error" name="re')
