"""`Stop` and `Pause` end more than a call; whatever else a call raises, a `TaskGroup`'s errors among it, is its failure alone."""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

import kernai
from kernai import Agent, LlmResponse, Message, MockProvider, Protocol, ProviderError, Recorder, Skill, Stop, skill
from tests.loop.loop_cases import command, plan, task
from tests.scripted import Scripted
from tests.values.test_json_data import Named
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
    assert isinstance(result.error, kernai.LimitReachedError)
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

    def answer(messages: Sequence[Message], model: kernai.Model) -> str:
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


def test_a_stop_and_a_limit_name_a_reason_that_exists() -> None:
    for reason in ("", "guard", None):
        with pytest.raises(ValueError, match=r"reason must be 'final' or one of max_steps, .*guardrail"):
            Stop(reason, "why")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match=r"reason must be one of max_steps, .*guardrail"):
            kernai.LimitReachedError("why", reason)  # type: ignore[arg-type]
    for text in ("", None, 5):
        with pytest.raises(ValueError, match=r"Stop\('final', text\) needs the answer as text"):
            Stop("final", text)  # type: ignore[arg-type]
    why: Any = enum.Enum("why", {"LOOP": "loop"}, type=str)
    stops = (Stop("guardrail", 5), Stop("final", Named.N), Stop(why.LOOP))  # type: ignore[arg-type]
    assert [stop.message for stop in stops] == ["5", "n", "the run was stopped: loop"]


# ---------------------------------------------------------------------------- failures that look like the end of a run


async def fail() -> None:
    raise ValueError("inner")


async def group() -> str:
    async with asyncio.TaskGroup() as tasks:
        tasks.create_task(fail())
    return "never"


async def mended() -> str:
    try:
        await group()
    except* ValueError:
        pass
    return "mended"


async def handle(block: Any, ctx: Any) -> str:
    return await group()


async def cancel_oneself() -> str:
    task = asyncio.current_task()
    assert task is not None
    task.cancel()
    await asyncio.sleep(0)
    return "never"


def ring() -> ProviderError:
    """An error that is a cause of its own cause."""
    error = ProviderError("down")
    error.__cause__ = ValueError("because")
    error.__cause__.__cause__ = error
    return error


async def fail_in_a_ring() -> None:
    raise ring()


@WAYS
def test_an_error_whose_causes_form_a_cycle_is_an_ordinary_failure(way: Way) -> None:
    def script(messages: Sequence[Message], _: object) -> str:
        if len(messages) > 2:
            raise ring()
        return command("fails")

    fails = Skill("fails", execute=fail_in_a_ring)
    result = way(Agent(instructions="", provider=Scripted(script), skills=[fails]))
    assert (result.messages[2].text, str(result.error)) == ('<block type="error" name="fails">down</block>', "down")


@WAYS
@pytest.mark.parametrize("at_once", [False, True])
def test_a_task_group_that_fails_in_a_call_is_that_calls_failure(way: Way, at_once: bool) -> None:
    calls = command("group") + '<block type="note">n</block>' + command("mended") + command("fails")
    agent = Agent(
        instructions="", provider=MockProvider(calls, command("mended"), command("fails"), command("oneself"), "<final>done</final>"),
        skills=[Skill(name, execute=one) for name, one in {"group": group, "mended": mended, "fails": fail, "oneself": cancel_oneself}.items()],
        protocols=[Protocol("note", handle)], parallel_skills=at_once,
    )
    result = way(agent)
    assert result.text == "done"
    assert [one.text.partition(">")[2].partition("</block>")[0] for one in result.messages[2:6]] == [
        "ValueError: inner", "ValueError: inner", "mended", "inner",
    ]


class Hedged(kernai.Provider):
    def call(self, *given: Any) -> LlmResponse:
        return asyncio.run(self.acall(*given))

    async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        with pytest.raises(ExceptionGroup) as caught:
            await group()
        raise ProviderError("both are down") from caught.value


@WAYS
def test_a_task_group_that_fails_in_a_model_call_is_the_providers_failure(way: Way) -> None:
    result = way(Agent(instructions="", provider=Hedged()))
    assert (result.stop_reason, str(result.error)) == ("error", "both are down")


# ---------------------------------------------------------------------------------- what comes after the end of a call


class Chatty:
    """A script that speaks through the channel of its first call while its second is made."""

    def __init__(self) -> None:
        self.channels: list[Any] = []
        self.refused: list[BaseException] = []

    def __call__(self, messages: Sequence[Message], on_chunk: Any) -> str:
        for late in self.channels:
            for say in (partial(late, "LATE"), partial(late.block, 0, "command", "look", "LATE")):
                with pytest.raises(kernai.RunCancelledError, match="this model call has ended") as caught:
                    say()
                self.refused.append(caught.value)
        self.channels.append(on_chunk)
        text = command("look") if len(self.channels) == 1 else "<final>done</final>"
        on_chunk(text)
        return text


@WAYS
def test_text_streamed_after_a_call_has_returned_is_refused(way: Way) -> None:
    model, shown = Chatty(), []
    it = Agent(instructions="", provider=Scripted(model), skills=[Skill("look", execute=lambda: "seen")])
    result = way(it, on_event=lambda event: shown.append(event.data) if event.type == "text_chunk" else None)
    assert (result.text, len(model.refused), shown) == ("done", 2, [])
    assert model.channels[0].cancelled()
