"""`Stop` and `Pause`: raised on purpose, never the failure of a call, and of no concern to other work."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Sequence
from typing import Any

import pytest

from kernai import (
    Agent,
    KernaiError,
    LimitReachedError,
    Message,
    MockProvider,
    Model,
    Pause,
    Protocol,
    Recorder,
    Skill,
    Stop,
    StopReason,
    skill,
)
from kernai.errors import STOP_REASONS, Control
from tests.loop.loop_cases import command, plan, task
from tests.ways import WAYS, Way, as_async

ECHO = '<block type="echo">x</block>'


def agent_of(source: str, error: BaseException, **options: Any) -> Agent:
    """An agent whose skill, async skill, protocol, provider or instructions raise `error`."""

    def raising(*_: object) -> str:
        raise error

    def act() -> str:
        return raising()

    given: dict[str, Any] = {"instructions": "x", "provider": MockProvider(command("act"), "<final>done</final>")}
    sources: dict[str, dict[str, Any]] = {
        "skill": {"skills": [Skill("act", execute=act)]},
        "async skill": {"skills": [Skill("act", execute=as_async(act))]},
        "protocol": {"provider": MockProvider(ECHO, "<final>done</final>"), "protocols": [Protocol("echo", raising)]},
        "provider": {"provider": MockProvider().on_call(raising)},
        "instructions": {"instructions": act},
    }
    return Agent(**given | sources[source] | options)


@WAYS
@pytest.mark.parametrize("source, kind", [
    ("skill", "skill_error"), ("async skill", "skill_error"), ("protocol", "protocol_error"), ("provider", "model_failed"),
    ("instructions", None),
])  # fmt: skip
def test_a_stop_ends_the_run_with_its_reason_after_the_outcome_of_the_call(way: Way, source: str, kind: str | None) -> None:
    recorder = Recorder()
    result = way(agent_of(source, Stop("guardrail", "no refunds")), recorder=recorder)
    assert (result.stop_reason, result.text) == ("guardrail", None)
    assert isinstance(result.error, LimitReachedError)
    assert (str(result.error), result.error.reason, result.error.result) == ("no refunds", "guardrail", result)
    outcome, ended = recorder.entries[-2:]
    assert ended.data["error"] == "no refunds"
    if kind is not None:
        assert (outcome.type, outcome.data["error"], outcome.data["exception"]) == (kind, "no refunds", "Stop")
        assert not {"interrupted", "not_run"} & outcome.data.keys()


@WAYS
def test_concurrent_calls_are_waited_for_and_recorded(way: Way) -> None:
    @skill(register=False)
    def stop(why: str) -> str:
        raise Stop("guardrail", why)

    @skill(register=False)
    def look() -> str:
        return "seen"

    response = command("look") + command("stop", "first") + command("stop", "second") + command("look")
    agent = Agent(instructions="x", skills=[stop, look], provider=MockProvider(response), parallel_skills=True)
    recorder = Recorder()
    result = way(agent, recorder=recorder)
    assert (result.stop_reason, str(result.error)) == ("guardrail", "first")
    assert sorted(one.data["call_id"] for one in recorder.for_event("skill_result")) == ["0.0", "0.3"]
    errors = {one.data["call_id"]: one.data["error"] for one in recorder.for_event("skill_error")}
    assert errors == {"0.1": "first", "0.2": "second"}


@WAYS
def test_only_the_sub_run_in_which_it_is_raised_ends(way: Way) -> None:
    @skill(register=False)
    def act(what: str) -> str:
        if what == "bad":
            raise Stop("guardrail", "not that")
        return f"did {what}"

    def answer(messages: Sequence[Message], model: Model) -> str:
        last = messages[-1].text
        if last in ("bad", "good"):
            return command("act", last)
        return plan(task("a", "bad"), task("b", "good"), strategy="parallel") if last == "go" else f"<final>{last}</final>"

    recorder = Recorder()
    result = way(Agent(instructions="x", skills=[act], provider=MockProvider().on_call(answer)), recorder=recorder)
    assert result.stop_reason == "final"
    ends = {one.scope: one.data["stop_reason"] for one in recorder.for_event("result")}
    assert ends == {"0.a": "guardrail", "0.b": "final", "": "final"}
    assert [one.data["error"] for one in recorder.for_event("task_error")] == ["not that"]


@WAYS
@pytest.mark.parametrize("parallel", [False, True], ids=["in order", "parallel"])
@pytest.mark.parametrize("source", ["skill", "async skill", "protocol", "provider"])
def test_a_pause_that_nobody_can_keep_is_an_error_that_says_what_it_needs(
    way: Way, source: str, parallel: bool
) -> None:
    recorder = Recorder()
    agent = agent_of(source, Pause("over 100 €"), parallel_skills=parallel)
    if parallel and source != "provider":
        double = (ECHO if source == "protocol" else command("act")) * 2
        agent = agent.replace(provider=MockProvider(double))
    with pytest.raises(KernaiError, match=r"paused \(over 100 €\), and a pause needs a store: pass store="):
        way(agent, recorder=recorder)
    assert recorder.entries[-1].type == "result"
    executed = [one for one in recorder.entries if one.type.endswith("_execute")]
    assert len(executed) == len([one for one in recorder.entries if one.type.endswith("_error")])


@pytest.mark.parametrize("error", [Stop("guardrail", "why"), Stop("loop"), Pause("why", {"amount": 3}), Pause()])
def test_they_can_be_copied(error: Control) -> None:
    for other in (copy.copy(error), pickle.loads(pickle.dumps(error))):
        assert (type(other), str(other), vars(other)) == (type(error), str(error), vars(error))


def test_no_error_handling_takes_them_for_a_failure() -> None:
    assert not issubclass(Control, Exception)


def test_a_stop_names_a_reason_that_exists() -> None:
    assert {*STOP_REASONS} == {*StopReason} - {"final"}
    for reason in ("", "guard", None):
        with pytest.raises(ValueError, match=r"reason must be 'final' or one of max_steps, .*guardrail"):
            Stop(reason, "why")  # type: ignore[arg-type]
    assert str(Stop(StopReason.LOOP)) == "the run was stopped: loop"
