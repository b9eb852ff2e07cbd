"""`Agent(approve=...)` is asked for the call of an agent too, before anything of that agent happens."""

from __future__ import annotations

from typing import Any

import pytest

import kernai
from kernai import Agent, Decision, MemoryStore, Pause, PendingCall
from tests.durable.durable_cases import WAYS, Way, command, cut, provider, share_of, way_id

EACH_WAY = pytest.mark.parametrize("way", WAYS, ids=way_id)
AT_ONCE = pytest.mark.parametrize("at_once", [False, True], ids=["in order", "at once"])
SCRIPTS = {
    "go": [command("clerk", "one") + command("clerk", "two"), "<final>done</final>"],
    "one": ["<final>first</final>"], "two": ["<final>second</final>"], "else": ["<final>another</final>"],
}


class Case:
    def __init__(self, said: Any, at_once: bool) -> None:
        self.asked: list[Any] = []

        def approve(call: PendingCall) -> Any:
            self.asked.append((call.call_id, call.skill, call.params))
            return said

        clerk = Agent(instructions="c").as_skill("clerk", "Does it.")
        self.agent = Agent(instructions="x", skills=[clerk], approve=approve, parallel_skills=at_once)
        self.options: dict[str, Any] = {"store": MemoryStore(), "provider": provider(SCRIPTS)}

    def scopes(self) -> set[str]:
        return {one["scope"] for one in self.options["store"].load("r")} - {""}


@pytest.mark.parametrize("said, heard", [
    (True, ["first", "second"]), (False, ["refused"] * 2), ("not today", ["not today"] * 2),
    (Decision({"params": {"input": "else"}}), ["another"] * 2),
])  # fmt: skip
@AT_ONCE
@EACH_WAY
def test_the_host_is_asked_before_an_agent_is_called(way: Way, at_once: bool, said: Any, heard: list[str]) -> None:
    case = Case(said, at_once)
    result = way.execute(case.agent, "go", run_id="r", **case.options)
    assert case.asked == [("0.0", "clerk", {"input": "one"}), ("0.1", "clerk", {"input": "two"})]
    assert [text in message.text for text, message in zip(heard, result.messages[2:4], strict=True)] == [True, True]
    assert case.scopes() == (set() if said in (False, "not today") else {"0.0", "0.1"})
    assert kernai.replay(case.agent, "r", store=case.options["store"]).result == result


@pytest.mark.slow
@AT_ONCE
@EACH_WAY
def test_the_call_of_an_agent_waits_and_continues_as_decided_after_any_cut(way: Way, at_once: bool) -> None:
    case = Case(Pause("may it?"), at_once)
    result = way.execute(case.agent, "go", run_id="r", **case.options)
    assert case.scopes() == set(), "nothing of it has begun"
    decisions: dict[str, Any] = {"0.0": {"params": {"input": "else"}}, "0.1": False}
    while result.pending:
        assert way.resume(case.agent, "r", **case.options).pending == result.pending
        given = {call.call_id: decisions[call.call_id] for call in result.pending}
        result = way.resume(case.agent, "r", approvals=given, **case.options)
    texts = [message.text for message in result.messages]
    assert ("another" in texts[2], "refused" in texts[3]) == (True, True)
    assert case.scopes() == {"0.0"}
    entries = case.options["store"].load("r")
    for length in share_of(way, range(1, len(entries))):
        part = {**case.options, "store": cut(case.options["store"], length)}
        again = way.resume(case.agent, "r", **part)
        while again.pending:
            again = way.resume(case.agent, "r", approvals={one.call_id: decisions[one.call_id] for one in again.pending}, **part)
        assert (again.text, again.messages) == (result.text, result.messages)
        assert kernai.replay(case.agent, "r", store=part["store"]).result == again
