"""`Stop("final", text)` out of a call: the run ends with that answer."""

from __future__ import annotations

import logging
from itertools import pairwise
from typing import Any

import pytest

from kernai import Agent, MemoryStore, MockProvider, Recorder, Skill, SkillContext, Stop
from kernai.middleware import Hooks
from tests.durable.durable_cases import WAYS as DURABLE_WAYS
from tests.durable.durable_cases import Way as DurableWay
from tests.durable.durable_cases import command, provider, replayed, way_id
from tests.loop.loop_cases import plan, task
from tests.ways import WAYS, Way

EACH_WAY = pytest.mark.parametrize("way", DURABLE_WAYS, ids=way_id)


def finishing(hook: str, text: str = "enough", skill: str | None = None) -> Hooks:
    """Hooks of which one finishes the run, at a call of that skill if one is named."""

    def finish(self: Hooks, ctx: Any, *error: Any) -> None:
        if skill in (None, getattr(ctx.effect, "skill", None)):
            raise Stop("final", text)

    def two(self: Hooks, ctx: Any, error: Exception) -> None:
        finish(self, ctx)

    def one(self: Hooks, ctx: Any) -> None:
        finish(self, ctx)

    made: Hooks = type("Finishing", (Hooks,), {hook: two if hook == "on_error" else one})()
    return made


def look() -> str:
    return "seen"


def break_down() -> str:
    raise LookupError("nothing there")


def worker(*hooks: Hooks, **options: Any) -> Agent[Any]:
    skills = [Skill(one.__name__, execute=one, inputs={}) for one in (look, break_down)]
    return Agent(**{"instructions": "x", "skills": skills, "middleware": list(hooks), **options})


@WAYS
@pytest.mark.parametrize("hook", ["before_model", "after_model", "before_tool", "after_tool", "on_error"])
def test_a_hook_of_a_call_finishes_the_run_with_its_text(way: Way, hook: str) -> None:
    recorder = Recorder()
    calls = command("break_down" if hook == "on_error" else "look")
    result = way(worker(finishing(hook), provider=MockProvider(calls, "<final>later</final>")), recorder=recorder)
    assert (result.text, result.stop_reason, result.error, result.steps) == ("enough", "final", None, 1)
    assert [event.data for event in recorder.for_event("final")] == ["enough"]
    assert result.messages[-1].role == "assistant"
    roles = [message.role for message in result.messages]
    assert all(before != after for before, after in pairwise(roles)), "some templates want it so"


@WAYS
def test_a_skill_finishes_the_run_and_what_it_says_of_a_tag_stays_text(way: Way) -> None:
    def finish(ctx: SkillContext[Any]) -> str:
        raise Stop("final", "use <command> here")

    it = Agent(instructions="x", skills=[Skill("finish", execute=finish)], provider=MockProvider(command("finish")))
    result = way(it)
    assert result.text == "use <command> here"
    assert result.messages[-1].text == '<block type="final">use &lt;command> here</block>'


@WAYS
def test_the_text_is_checked_as_the_models_answers_are(way: Way) -> None:
    model, outputs = MockProvider(), list[Any]()
    for text in ("8", "many"):
        model = MockProvider(command("look"), "<final>7</final>")
        outputs.append(way(worker(finishing("after_tool", text), output=int, provider=model)).output)
    assert outputs == [8, 7]
    assert "Your answer cannot be used" in (model.messages_at(1) or ())[-1].text


@WAYS
@pytest.mark.parametrize("guarded", [False, True])
def test_calls_beside_it_end_first_and_a_guard_among_them_counts_more(way: Way, guarded: bool) -> None:
    ended: list[str] = []

    def slow(ctx: SkillContext[Any]) -> str:
        ended.append("slow")
        if guarded:
            raise Stop("guardrail", "not that")
        return "slow"

    it = worker(finishing("before_tool", skill="look"), parallel_skills=True)
    it = it.replace(skills=[*(it.skills or ()), Skill("slow", execute=slow)])
    result = way(it.replace(provider=MockProvider(command("look") + command("slow"))))
    assert ended == ["slow"]
    assert result.stop_reason == ("guardrail" if guarded else "final")
    assert result.text == (None if guarded else "enough")


@WAYS
def test_in_a_sub_run_it_is_the_answer_of_that_alone(way: Way) -> None:
    clerk = worker(finishing("before_tool", "the clerk's", "look")).as_skill("clerk", "Helps.")
    scripts = {
        "go": [command("clerk", "help"), plan(task("a")), "<final>done</final>"], "help": [command("look")],
        "a": [command("break_down")],
    }
    it = worker(finishing("on_error", "the task's", "break_down"))
    it = it.replace(skills=[*(it.skills or ()), clerk], provider=provider(scripts))
    result = way(it)
    assert result.text == "done"
    assert "the clerk's" in result.messages[2].text
    assert "the task's" in result.messages[4].text


@EACH_WAY
@pytest.mark.parametrize("at_once", [False, True])
@pytest.mark.parametrize("hook", ["before_tool", "after_model"])
def test_a_run_that_was_finished_so_is_resumed_replayed_and_continued(way: DurableWay, hook: str, at_once: bool) -> None:
    store = MemoryStore()
    it = worker(finishing(hook, skill="look" if hook == "before_tool" else None), parallel_skills=at_once)
    scripts = {"go": [command("break_down") + command("look") + command("break_down")]}
    options: dict[str, Any] = {"store": store, "provider": provider(scripts)}
    result = way.execute(it, "go", run_id="r", **options)
    assert result.text == "enough"
    again = way.resume(it, "r", **options)
    assert (again.text, again.messages, again.usage, again.steps) == (result.text, result.messages, result.usage, result.steps)
    assert replayed(it, "r", store=store) == result
    plain = worker(parallel_skills=at_once)
    for turn in range(2):
        more = way.resume(plain, "r", store=store, input="more", provider=MockProvider(f"<final>{turn}</final>"))
        assert more.text == str(turn)
        assert more.messages[:len(result.messages)] == result.messages
        assert replayed(plain, "r", store=store) == more


@WAYS
def test_a_callback_and_instructions_have_no_call_to_finish_with(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    def stop(*given: Any) -> str:
        raise Stop("final", "mine")

    with caplog.at_level(logging.ERROR, "kernai"):
        assert way(worker(provider=MockProvider("<final>done</final>")), on_event=stop).text == "done"
    assert "event=callback.failed" in caplog.text


@pytest.mark.parametrize("text", ["", None, 5])
def test_an_answer_that_is_no_text_is_refused_where_it_is_made(text: Any) -> None:
    with pytest.raises(ValueError, match=r"Stop\('final', text\) needs the answer as text"):
        Stop("final", text)
