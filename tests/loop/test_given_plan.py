"""A workflow written by the caller is run, recorded, resumed and replayed like a model's."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Literal

import pytest

from kernai import (
    Agent,
    LimitReachedError,
    Limits,
    MemoryStore,
    Message,
    MockProvider,
    Model,
    PendingCall,
    Plan,
    Recorder,
    Result,
    Skill,
    StopReason,
    Task,
    aexecute_plan,
    arun_plan,
    astream_plan,
    execute_plan,
    replay,
    resume,
    run_plan,
    stream_plan,
)
from tests.ways import aconsumed, consumed

PLAN = Plan((Task("a", "one"), Task("b", "two"), Task("c", "both", depends_on=("a", "b"))), goal="Count.", strategy="parallel")


def answering(messages: Sequence[Message], _: Model) -> str:
    text = messages[1].text
    if text.endswith("both"):
        return f"<final>sum of {text.count('<block')}</final>"
    if "fail" in text:
        raise ConnectionError("no answer")
    return f"<final>{text}!</final>"


def agent(**options: Any) -> Agent[Any]:
    return Agent(**{"instructions": "x", "provider": MockProvider().on_call(answering), **options})


WAYS = pytest.mark.parametrize("way", [
    execute_plan,
    lambda *given, **options: asyncio.run(aexecute_plan(*given, **options)),
    lambda *given, **options: consumed(stream_plan(*given, **options)),
    lambda *given, **options: asyncio.run(aconsumed(astream_plan(*given, **options))),
], ids=["execute", "aexecute", "stream", "astream"])  # fmt: skip
Way = Callable[..., Result[Any]]
RESULTS = {"a": "one!", "b": "two!", "c": "sum of 2"}


def test_the_results_are_a_mapping_in_the_order_of_the_plan() -> None:
    for results in (run_plan(agent(), PLAN), asyncio.run(arun_plan(agent(), PLAN))):
        assert list(results.items()) == list(RESULTS.items())
    for same in (list(PLAN.tasks), [task.to_dict() for task in PLAN.tasks], PLAN.to_dict(), '{"tasks": [{"id": "a", "input": "one"}]}'):
        assert run_plan(agent(), same)["a"] == "one!"
    with stream_plan(agent(), PLAN) as events:
        assert json.loads("".join(events.text())) == RESULTS


@WAYS
def test_a_callers_plan_runs_and_is_recorded_as_if_a_model_had_written_it(way: Way) -> None:
    recorder, completed = Recorder(), []
    result = way(agent(), PLAN, recorder=recorder, run_id="r", on_task_complete=lambda **task: completed.append(task["task_id"]))
    root = [event.type for event in recorder.entries if not event.scope]
    assert root == ["run_start", "workflow_start", "task_start", "task_start", *sorted(root[4:6]), "task_start",
                    "task_complete", "workflow_complete", "result"]
    assert {event.scope for event in recorder.entries} == {"", "0.a", "0.b", "0.c"}
    assert sorted(completed) == ["a", "b", "c"]
    assert [message.role for message in result.messages] == ["user", "assistant", "user"]
    assert result.messages[0].text == "Count."
    assert '"strategy": "parallel"' in result.messages[1].text
    assert result.messages[2].text == f'<block type="result" name="tasks">{result.text}</block>'
    assert (result.ok, result.steps, result.usage.model_calls) == (True, 1, 3)


@WAYS
def test_a_stored_run_continues_where_it_stopped_and_replays(way: Way) -> None:
    store, first = MemoryStore(), agent()
    other = Agent(name="other", instructions="y", provider=MockProvider("<final>mine</final>"))
    stopped = way(first, PLAN, agents={"b": other}, store=store, run_id="r", limits=Limits(max_calls=2))
    assert stopped.stop_reason == "max_calls"
    with pytest.raises(LimitReachedError):
        stopped.unwrap()
    cancel = threading.Event()
    cancelling = MockProvider().on_call(lambda *given: cancel.set() or answering(*given))  # type: ignore[func-returns-value]
    assert way(agent(provider=cancelling), PLAN, cancel=cancel).stop_reason == "cancelled"
    whole = resume(first, "r", store=store, agents={"b": other})
    assert whole.text == '{"a": "one!", "b": "mine", "c": "sum of 2"}'
    assert whole.usage.model_calls == 3, "what was done is not done again"
    again = resume(first, "r", store=store)
    assert (again.text, [one.text for one in again.messages]) == (whole.text, [one.text for one in whole.messages])
    replayed = replay(first, "r", store=store, agents={"b": other}).result
    assert replayed is not None
    assert replayed.text == whole.text


REFUSED: dict[str, tuple[Any, str]] = {
    "no tasks": ([], 'the plan cannot be run: its list of "tasks" is empty'),
    "a cycle": ([Task("a", "x", depends_on=("b",)), Task("b", "y", depends_on=("a",))], "its tasks depend on each other in a cycle"),
    "a number for an id": ([Task(1, "x")], 'none of its tasks has both an "id" and an "input"'),  # type: ignore[arg-type]  # the point
    "an id twice": ([Task("a", "x"), Task("a", "y")], "two of its tasks have the same id"),
    "a task without input": ([Task("a", "x"), Task("b", " ")], "each task needs a non-blank id and input"),
    "an unknown dependency": ([Task("a", "x", depends_on=("z",))], "task 'a' cannot depend on 'z'"),
    "itself": ([Task("a", "x", depends_on=("a",))], "task 'a' cannot depend on 'a'"),
    "an unknown strategy": ({"tasks": [{"id": "a", "input": "x"}], "strategy": "swift"}, "strategy must be one of"),
    "a misspelt key of a task": ([{"id": "a", "input": "x", "depend_on": []}], "task 'a' has no key 'depend_on'; did you mean 'depends_on'"),
    "a misspelt key": ({"tasks": [Task("a", "x")], "strategie": "x"}, "the plan has no key 'strategie'; did you mean"),
    "a flag that is none": ([{"id": "a", "input": "x", "parallel": 1}], "task 'a': parallel must be True or False"),
    "a number": (5, "plan must be a Plan"),
    "no JSON": ("{", "the plan is not valid JSON"),
    "a key twice": ('{"tasks": [{"id": "a", "id": "b", "input": "x"}]}', "given twice"),
    "dependencies that are no list": ([{"id": "a", "input": "x", "depends_on": 0}], "must be a list of ids, got 0"),
}


@pytest.mark.parametrize("plan, message", REFUSED.values(), ids=REFUSED.keys())
def test_an_invalid_plan_of_the_caller_is_refused(plan: Any, message: str) -> None:
    with pytest.raises((TypeError, ValueError), match=message):
        run_plan(agent(), plan)


PRICED = Model("m", cost=(1, 1))


@pytest.mark.parametrize("agents, message", [
    ({"z": agent()}, "the plan has no task 'z'; it has a, b, c"), ({"a": "x"}, r"agents\['a'\] must be an Agent"),
    ([agent()], "agents must be a mapping of task ids to Agents, got list"), ({"a": agent()}, "needs the price of model 'text-only'"),
    ({"a": agent(calls="native", model=PRICED)}, "needs a provider with native calls"),
    ({"a": agent(calls="native", model=PRICED, provider=None)}, "needs a provider with native calls"),
])
def test_agents_of_tasks_that_cannot_run_are_refused(agents: Any, message: str) -> None:
    store, root = MemoryStore(), agent(model=PRICED)
    execute_plan(root, PLAN, store=store, run_id="r", limits=Limits(max_calls=0))
    for go in (lambda **given: run_plan(root, PLAN, **given), lambda **given: resume(root, "r", store=store, **given)):
        with pytest.raises((TypeError, ValueError), match=message):
            go(agents=agents, limits=Limits(max_cost=1))
    native = agent(calls="native", provider=MockProvider(native=True).on_call(answering))
    assert run_plan(agent(), PLAN, agents={"a": native}) == RESULTS


@WAYS
def test_a_plan_without_a_provider_is_an_error_instead_of_failed_tasks(way: Way) -> None:
    bare = Agent(instructions="x")
    result = way(bare, PLAN)
    assert result.stop_reason is StopReason.ERROR
    assert "no provider is set" in str(result.error)
    assert way(bare, PLAN, agents={one.id: agent() for one in PLAN.tasks}).ok


@WAYS
def test_the_type_of_the_agents_answers_is_not_that_of_a_plans_results(way: Way) -> None:
    store = MemoryStore()
    typed = agent(output=int)
    result = way(typed, PLAN, store=store, run_id="r")
    assert result.output == RESULTS
    assert run_plan(typed, PLAN) == RESULTS
    assert resume(typed, "r", store=store).output == result.output


@dataclass
class Price:
    euros: Decimal
    seller: str = "?"


PRICES = Plan((Task("a", "A"), Task("b", "B"), Task("c", "C"), Task("sum", "all", depends_on=("a", "b", "c"))))


def pricing(seen: list[str]) -> dict[str, Agent[Any]]:
    """An agent for each task: an object, a list, a text, and one that reads them."""
    said = {"a": '{"euros": "1.50"}', "b": "[1, 2]", "c": "cheap", "sum": "<final>done</final>"}
    kinds: dict[str, Any] = {"a": Price, "b": list[int], "c": Literal["cheap", "dear"], "sum": str}

    def answering(task: str) -> Callable[..., str]:
        def answer(messages: Sequence[Message], _: Model) -> str:
            seen.append(messages[1].text)
            return said[task]

        return answer

    return {
        task: Agent(instructions="x", output=kinds[task], provider=MockProvider().on_call(answering(task)))
        for task in said
    }


@WAYS
def test_the_results_of_typed_agents_are_values_and_a_model_reads_their_data(way: Way) -> None:
    store, seen = MemoryStore(), list[str]()
    options: dict[str, Any] = {"agents": pricing(seen), "store": store}
    values = {"a": Price(Decimal("1.50")), "b": [1, 2], "c": "cheap", "sum": "done"}
    root = agent(provider=MockProvider("<final>It costs 1.50.</final>"))
    result = way(root, PRICES, run_id="r", **options)
    assert result.output == values
    data = '"a": {"euros": "1.50", "seller": "?"}, "b": [1, 2], "c": "cheap", "sum": "done"'
    assert result.text == f"{{{data}}}"
    assert result.messages[-1].text == f'<block type="result" name="tasks">{{{data}}}</block>'
    assert seen[-1] == (
        '<block type="result" name="a">{"euros": "1.50", "seller": "?"}</block>\n'
        '<block type="result" name="b">[1, 2]</block>\n<block type="result" name="c">cheap</block>\n\nall'
    )
    assert run_plan(root, PRICES, agents=pricing(seen)) == values
    assert resume(root, "r", **options).output == values
    assert resume(root, "r", input="What does it cost?", **options).text == "It costs 1.50."
    assert replay(root, "r", **options).result is not None


def test_results_that_were_recorded_as_texts_stay_so() -> None:
    store, it = MemoryStore(), agent(output=Any)
    options: dict[str, Any] = {"agents": pricing([])}
    execute_plan(it, PRICES, store=store, run_id="r", **options)
    entries = store.load("r")
    entries[0]["data"]["rules"]["answers"] = 3
    as_text = {"a": '{"euros": "1.50"}', "b": "[1, 2]", "c": "cheap", "sum": "done"}
    [ended] = [entry for entry in entries if entry["event"] == "workflow_complete"]
    ended["data"]["results"] = as_text
    entries[-1]["data"]["text"] = json.dumps(as_text)
    older = MemoryStore()
    older.append("r", 0, entries[:-1], [])
    assert resume(it, "r", store=older, **options).output["a"] == Price(Decimal("1.50"))
    assert json.loads(older.load("r")[-1]["data"]["text"]) == as_text


def test_a_model_reads_which_tasks_failed() -> None:
    store = MemoryStore()
    tasks = [Task(name, "fail" if name in "ac" else "x") for name in "abc"]
    provider = MockProvider().on_call(
        lambda messages, model: "<final>b is fine</final>" if len(messages) > 4 else answering(messages, model)
    )
    result = execute_plan(agent(provider=provider), tasks, store=store, run_id="r")
    assert result.messages[-1].text.endswith('</block>\n<block type="error" name="workflow">2 of 3 tasks failed: a; c</block>')
    assert (result.output["b"], result.output["a"][:7]) == ("x!", "error: ")
    assert resume(agent(provider=provider), "r", store=store, input="Report.").text == "b is fine"
    for count, end in ((20, "18; 19</block>"), (21, "18; 19; and 1 more</block>")):
        last = execute_plan(agent(), [Task(str(at), "fail") for at in range(count)]).messages[-1].text
        assert f"{count} of {count} tasks failed: 0; 1;" in last
        assert last.endswith(end)
    as_the_gem = execute_plan(agent(on_prose="accept"), tasks)
    assert "failed:" not in as_the_gem.messages[-1].text


def test_a_resume_that_was_not_given_the_tasks_agents_again_says_so_and_changes_nothing() -> None:
    own, store = agent(instructions="mine"), MemoryStore()
    run = execute_plan(agent(), PLAN, agents={"b": own}, store=store, run_id="r", limits=Limits(max_calls=0))
    before = store.load("r")
    for agents in (None, {}, {"a": own}):
        with pytest.raises(ValueError, match=r"was given agents for b: pass agents=\{'b': \.\.\.\} again"):
            resume(agent(), "r", store=store, agents=agents)
        with pytest.raises(ValueError, match="agents for b"):
            replay(agent(), "r", store=store, agents=agents)
    assert (run.stop_reason, store.load("r")) == ("max_calls", before)
    whole = resume(agent(), "r", store=store, agents={"b": own})
    assert resume(agent(), "r", store=store) == whole, "finished: nothing is called"


def test_approve_applies_to_tasks_of_a_callers_plan_without_a_store() -> None:
    asked: list[str] = []

    def approve(call: PendingCall) -> bool:
        asked.append(call.call_id)
        return True

    pay = Skill("pay", execute=lambda: "paid", inputs={})
    own = Agent(
        instructions="x", skills=[pay], approve=approve,
        provider=MockProvider('<block type="command" name="pay"></block>', "<final>ok</final>"),
    )
    assert run_plan(Agent(instructions="x"), [{"id": "a", "input": "go"}], agents={"a": own}) == {"a": "ok"}
    assert asked == ["0.a/0.0"]
