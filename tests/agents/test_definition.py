"""What a run records of its agent, and what a replay says of an agent that was changed since."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated, Any, Literal

import pytest

import kernai
from kernai import (
    Agent,
    Credential,
    GenerationOptions,
    Input,
    MemoryStore,
    MockProvider,
    Model,
    Plan,
    Protocol,
    Recorder,
    ReplayDivergenceError,
    ReplayLoosenedError,
    Skill,
    Task,
    Trusted,
    outside,
)
from kernai.errors import Pause
from kernai.middleware import guardrail, retry
from tests.loop.loop_cases import command

SECRET = "sk-very-secret"


@dataclass
class Item:
    name: str
    price: float = 0.5


@dataclass
class Payment:
    to: Trusted[str]
    iban: Trusted[str]


@dataclass
class HalfTrusted:
    to: Trusted[str]
    iban: str


def pay(amount: Annotated[int, "in euros"], item: Item | None = None) -> str:
    """Pay somebody."""
    return "paid"


def refund(**options: Any) -> Skill:
    return Skill("refund", **{"execute": pay, "idempotent": False, "requires": (), **options})


LOOK = Skill("look", execute=lambda: "seen", inputs={})
HELPER = Agent(name="helper", instructions="You help.", skills=[refund(approval=True)], protocols=[])


def clerk(**options: Any) -> Agent[Any]:
    given: dict[str, Any] = {
        "instructions": "You sell.", "skills": [LOOK, refund(approval=True), HELPER.as_skill("helper", "Helps.")],
        "protocols": [Protocol("mail", lambda *_: "sent", documentation="Sends mail.")], "max_steps": 5, "approve": ask,
        "middleware": [retry()], "quoted_calls": "refuse",
    }
    return Agent(**{**given, **options})


def ask(call: object) -> bool:
    return True


def recording(agent: Agent[Any], *turns: str) -> list[dict[str, Any]]:
    recorder = Recorder()
    kernai.execute(agent, "Go.", provider=MockProvider(*turns or (command("look"), "<final>1</final>")), recorder=recorder)
    return recorder.to_list()


def replaced(name: str, skill: Skill | None) -> dict[str, Any]:
    """The clerk's skills with another one of that name, or without it."""
    skills = [one for one in clerk().skills or () if isinstance(one, Skill) and one.name != name]
    return {"skills": [*skills, *([] if skill is None else [skill])]}


def helper(**options: Any) -> dict[str, Any]:
    return replaced("helper", HELPER.replace(**options).as_skill("helper", "Helps."))


MAIL = Protocol("mail", lambda *_: "sent", documentation="Sends mail.")
#: by the kind of change: the changed options of the clerk, and the message for each rule that is loosened, by its key
LOOSENED: dict[str, tuple[dict[str, Any], dict[str, str]]] = {
    "an approval is gone": (replaced("refund", refund()), {"refund.approval": "skill refund: approval was True, is False"}),
    "nobody is asked": ({"approve": None}, {"approve": "approve was True, is False"}),
    "another skill": (
        {"skills": [*(clerk().skills or ()), Skill("wipe", execute=lambda: "x", inputs={})]},
        {"wipe.allowed": "skill wipe is allowed, was not"},
    ),
    "another protocol": ({"protocols": [MAIL, Protocol("chat", lambda *_: "x")]}, {"chat.allowed": "protocol chat is allowed, was not"}),
    "quoted calls": ({"quoted_calls": "confirm"}, {"quoted_calls": "quoted_calls was 'refuse', is 'confirm'"}),
    "more steps": ({"max_steps": 6}, {"max_steps": "max_steps was 5, is 6"}),
    "more tasks": ({"max_tasks": 51}, {"max_tasks": "max_tasks was 50, is 51"}),
    "a skill that may be called twice": (
        replaced("refund", refund(approval=True, idempotent=True)),
        {"refund.idempotent": "skill refund: idempotent was False, is True"},
    ),
    "an agent that is called": (
        helper(skills=[refund()], max_steps=99),
        {
            "helper/refund.approval": "helper: skill refund: approval was True, is False",
            "helper/max_steps": "helper: max_steps was 10, is 99",
        },
    ),
}
#: by the kind of change: the changed options, and the messages
CHANGED: dict[str, tuple[dict[str, Any], list[str]]] = {
    "instructions": ({"instructions": "You buy."}, ["instructions changed"]),
    "instructions with a part from outside": ({"instructions": [outside("You sell.")]}, ["instructions changed"]),
    "instructions that are a function": ({"instructions": lambda: "You sell."}, ["instructions changed"]),
    "a description": (
        replaced("look", Skill("look", execute=lambda: "x", inputs={}, description="Looks.")),
        ["skill look: its description or its inputs changed"],
    ),
    "an input": (
        replaced("look", Skill("look", execute=lambda at=1: "x", inputs={"at": Input(int, default=1)})),
        ["skill look: its description or its inputs changed"],
    ),
    "a skill that is gone": (replaced("refund", None), ["skill refund is gone"]),
    "a protocol that is gone": ({"protocols": []}, ["protocol mail is gone"]),
    "a protocol's documentation": (
        {"protocols": [Protocol("mail", lambda *_: "sent")]}, ["protocol mail: its documentation changed"],
    ),
    "an option": ({"on_prose": "accept"}, ["on_prose was 'correct_once', is 'accept'"]),
    "generation": ({"generation": {"temperature": 1.0}}, ["generation changed"]),
    "the type of the answer": ({"output": int | str}, ["the type of the answer changed"]),
    "middleware": ({"middleware": [guardrail(bool), retry()]}, ["middleware was retry, is guardrail, retry"]),
    "fewer steps": ({"max_steps": 4}, ["max_steps was 5, is 4"]),
    "a new approval": (
        replaced("look", Skill("look", execute=lambda: "x", inputs={}, requires="vision", approval=False)),
        ["skill look is gone"],
    ),
    "an agent that is called": (helper(instructions="You help, too."), ["helper: instructions changed"]),
    "a skill in the place of an agent": (
        replaced("helper", Skill("helper", execute=lambda **given: "x", inputs={"input": str}, description="Helps.")),
        ["skill helper: it was an agent"],
    ),
}


@pytest.mark.parametrize("case", LOOSENED)
def test_a_replay_fails_where_something_that_protects_was_loosened(case: str) -> None:
    changes, loosened = LOOSENED[case]
    entries = recording(clerk())
    with pytest.raises(ReplayLoosenedError) as caught:
        kernai.replay(clerk(**changes), recording=entries)
    assert caught.value.loosened == loosened
    for key, words in loosened.items():
        assert f"{words} (accept with {key!r})" in str(caught.value)
    assert kernai.replay(clerk(**changes), recording=entries, accept=loosened).changes == ()


@pytest.mark.parametrize("accept", [None, ["refund.approval"]])
async def test_a_resume_refuses_a_less_protected_agent_if_asked_to(accept: list[str] | None) -> None:
    store = MemoryStore()
    turns = [command("refund", '{"amount": 3}'), "<final>1</final>"]
    kernai.execute(clerk(approve=None), "Go.", provider=MockProvider(*turns), store=store, run_id="r")
    length = len(store.load("r"))
    loose: Any = {"agent": clerk(approve=None, **replaced("refund", refund())), "run_id": "r", "store": store}
    with pytest.raises(ReplayLoosenedError, match="approval was True, is False"):
        kernai.resume(**loose, accept=[], approvals={"0.0": True})
    with pytest.raises(ReplayLoosenedError, match="approval was True, is False"):
        await kernai.aresume(**loose, accept=["max_steps"], approvals={"0.0": True})
    with pytest.raises(TypeError, match=r"write accept=\['refund"):
        kernai.resume(**loose, accept="refund.approval")
    assert len(store.load("r")) == length
    result = kernai.resume(**loose, accept=accept, approvals={"0.0": True}, provider=MockProvider(*turns[1:]))
    assert result.text == "1"


@pytest.mark.parametrize("case", CHANGED)
def test_a_replay_lists_what_else_has_changed(case: str) -> None:
    options, changes = CHANGED[case]
    before = clerk()
    if case == "a new approval":
        before = before.replace(model=Model("m"))
    turns = ("<final>1</final>",)
    assert list(kernai.replay(clerk(**options), recording=recording(before, *turns)).changes) == changes


def test_an_agent_that_was_not_changed_has_no_changes_and_an_old_recording_says_so() -> None:
    entries = recording(clerk())
    assert kernai.replay(clerk(), recording=entries).changes == ()
    options = entries[0]["data"]["definition"]["agents"][0]["options"]
    options["of_a_newer_version"] = options.pop("max_tasks")
    assert kernai.replay(clerk(max_tasks=7), recording=entries).changes == (), "options that both have are compared"
    del entries[0]["data"]["definition"]
    assert kernai.replay(clerk(max_steps=99), recording=entries).changes == (
        "the recording was made by an older kernai and does not describe the agent",
    )
    entries[0]["data"]["definition"] = {"agents": [{}]}
    with pytest.raises(kernai.KernaiError, match="damaged"):
        kernai.replay(clerk(), recording=entries)


def test_a_key_that_is_accepted_in_vain_is_listed_and_options_are_checked() -> None:
    found = kernai.replay(clerk(), recording=recording(clerk()), accept=["refund.aproval"])
    assert found.changes == ("refund.aproval is in accept, but that protection was not lost",)
    with pytest.raises(TypeError, match=r"accept=\['refund.approval'\]"):
        kernai.replay(clerk(), recording=recording(clerk()), accept="refund.approval")
    wrong: list[tuple[dict[str, Any], str]] = [
        ({"skills": "all"}, "skills must be 'recorded' or 'run'"), ({"same": bool}, "pass skills='run'"),
        ({"skills": "run", "same": len}, r"same must be a function of \(recorded, now\)"),
        *(({"accept": keys}, "accept must be a list of keys, got") for keys in (5, [5])),
    ]
    for options, error in wrong:
        with pytest.raises((TypeError, ValueError), match=error):
            kernai.replay(clerk(), recording=recording(clerk()), **options)
    with pytest.raises(ReplayDivergenceError) as caught:
        kernai.replay(clerk(skills=[], max_steps=99), recording=recording(clerk()))
    assert not isinstance(caught.value, ReplayLoosenedError), "a decision that differs is named before anything that was loosened"


def test_trusted_inputs_and_what_they_are_judged_by_protect() -> None:
    def send(to: Trusted[str], note: Trusted[str]) -> str:
        return "sent"

    def half(to: Trusted[str], note: str) -> str:
        return "sent"

    def batch(payments: list[Payment]) -> str:
        return "sent"

    def half_batch(payments: list[HalfTrusted]) -> str:
        return "sent"

    def agent(function: Callable[..., str], **flags: Any) -> Agent[Any]:
        return Agent(instructions="x", skills=[LOOK, Skill("send", execute=function, description="Sends.", **flags)])

    entries = recording(agent(send, acts=True))
    for other, loosened in (
        (agent(half, acts=True), {"send.trusted": "skill send: trusted was to, note, is to"}),
        (agent(send), {"send.acts": "skill send: acts was True, is False"}),
        (agent(send, acts=True, directory=("id", "title")), {"send.directory": "skill send: directory was False, is id, title"}),
        (agent(send, acts=True, creates="id"), {"send.creates": "skill send: creates was False, is 'id'"}),
    ):
        with pytest.raises(ReplayLoosenedError) as caught:
            kernai.replay(other, recording=entries)
        assert caught.value.loosened == loosened
    with pytest.raises(ReplayLoosenedError) as caught:
        kernai.replay(agent(half_batch), recording=recording(agent(batch)))
    assert caught.value.loosened == {"send.trusted": "skill send: trusted was payments[].iban, payments[].to, is payments[].to"}
    entries = recording(agent(send, directory=True, creates=True))
    changes = kernai.replay(agent(send, directory=("id", "title")), recording=entries).changes
    assert set(changes) == {"skill send: directory was True, is id, title", "skill send: creates was True, is False"}


def test_agents_that_call_each_other_and_agents_of_tasks_are_in_it_once() -> None:
    one = Agent(name="one", instructions="1", skills=[], protocols=[])
    two = Agent(name="two", instructions="2", skills=[one.as_skill("one", "")], protocols=[])
    one.skills = (two.as_skill("two", ""), one.as_skill("me", ""))
    recorder = Recorder()
    kernai.execute_plan(
        one, Plan((Task("a", "x"), Task("b", "y"))), agents={"b": two}, provider=MockProvider("<final>1</final>"),
        recorder=recorder,
    )
    definition = recorder.entries[0].data["definition"]
    assert [agent["name"] for agent in definition["agents"]] == ["one", "two"]
    assert {name: skill["agent"] for name, skill in definition["agents"][0]["skills"].items()} == {"two": 1, "me": 0}
    assert (definition["agents"][1]["skills"]["one"]["agent"], definition["agents"][0]["tasks"]) == (0, {"b": 1})
    assert all("definition" not in event.data for event in recorder.entries[1:] if event.type == "run_start")
    assert kernai.replay(one, recording=recorder.to_list(), agents={"b": two}).changes == ()
    with pytest.raises(ReplayLoosenedError, match="b: max_steps was 10, is 11"):
        kernai.replay(one, recording=recorder.to_list(), agents={"b": two.replace(max_steps=11)})


def test_nothing_secret_is_in_it() -> None:
    def closes(text: str = SECRET) -> Callable[[str], str]:
        return lambda note="x": text  # type: ignore[misc]

    def signing(effect: Any, key: str) -> Any:
        return (yield effect)

    class Host(Agent[Any]):
        api_key: str

    host = Host(
        instructions=SECRET, skills=[Skill("s", execute=closes(), inputs={"note": Input(str, default=SECRET)},
                                           credentials={"key": Credential(default=SECRET)})],
        generation=GenerationOptions(extra={"key": SECRET}), middleware=[partial(signing, key=SECRET)],
    )
    host.api_key = SECRET
    start = recording(host, "<final>1</final>")[0]["data"]
    assert SECRET not in json.dumps(start["definition"])
    assert "api_key" not in json.dumps(start["definition"])


def test_a_resume_never_compares_it_and_records_the_new_one() -> None:
    store = MemoryStore()
    asks = Agent(instructions="x", skills=[refund(approval=True)], protocols=[])
    mock = MockProvider(command("refund", '{"amount": 1}'), "<final>1</final>", "<final>2</final>")
    assert kernai.execute(asks, "Go.", provider=mock, store=store, run_id="r").pending
    looser = asks.replace(max_steps=99)
    assert kernai.resume(looser, "r", store=store, provider=mock, approvals={"0.0": True}).text == "1"
    [resumed] = [one["data"] for one in store.load("r") if one["event"] == "run_resumed"]
    assert resumed["definition"]["agents"][0]["options"]["max_steps"] == 99
    assert kernai.replay(looser, "r", store=store).changes == ()
    assert kernai.replay(asks, "r", store=store).changes == ("max_steps was 99, is 10",)
    kernai.resume(looser, "r", store=store, provider=mock, input="More.", metadata={"user": 7})
    resumed = [one["data"] for one in store.load("r") if one["event"] == "run_resumed"][-1]
    assert ("definition" in resumed, resumed["metadata"]) == (False, {"user": 7})


# ---------------------------------------------------------------------------------------------- a replay with skills


def test_a_replay_with_skills_calls_them_as_they_were_called() -> None:
    called: list[Any] = []
    gives: dict[str, Any] = {"text": "seen", "number": {"a": [1]}, "fails": ValueError("no")}

    def look(what: str, often: int = 1) -> Any:
        called.append((what, often))
        if isinstance(gives[what], Exception):
            raise gives[what]
        return gives[what]

    async def later(what: str) -> Any:
        called.append(what)
        return "later"

    def agent() -> Agent[Any]:
        skills = [Skill("look", execute=look), Skill("later", execute=later)]
        leaf = Agent(name="leaf", instructions="x", skills=skills, protocols=[], provider=MockProvider(
            command("later", "leaf"), "<final>leaf</final>"))
        return Agent(instructions="x", skills=[*skills, leaf.as_skill("leaf", "A leaf.")], parallel_skills=True)

    turn = "".join([
        command("look", '{"what": "text"}'), command("look", '{"what": "number", "often": 2}'),
        command("look", '{"what": "fails"}'),
        command("look", '{"wat": 1}'), command("later", "x"), command("leaf", "go"),
    ])
    entries = recording(agent(), turn, "<final>1</final>")
    first, called[:] = list(called), []
    assert kernai.replay(agent(), recording=entries).result is not None
    assert called == []
    assert kernai.replay(agent(), recording=entries, skills="run").result is not None
    assert sorted(map(str, called)) == sorted(map(str, first))
    for what, other in (("text", "gone"), ("text", ValueError("gone")), ("fails", "it works"), ("fails", ValueError("yes"))):
        kept, gives[what] = gives[what], other
        with pytest.raises(ReplayDivergenceError, match="skill look returned something other than in the recording"):
            kernai.replay(agent(), recording=entries, skills="run")
        gives[what] = kept
    gives["text"] = "SEEN"
    loose = kernai.replay(agent(), recording=entries, skills="run", same=lambda was, now: str(was).lower() == str(now).lower())
    assert loose.result is not None


def test_a_replay_with_skills_goes_through_middleware_and_the_decision_of_a_person() -> None:
    paid: list[int] = []

    def pays(amount: int) -> str:
        paid.append(amount)
        return f"paid {amount}"

    def loud(effect: Any) -> Any:
        value = yield effect
        return value.upper() if isinstance(value, str) else value

    agent = Agent(
        instructions="x", skills=[Skill("pay", execute=pays, approval=True)], protocols=[], middleware=[loud],
        parallel_skills=True,
    )
    store, mock = MemoryStore(), MockProvider(command("pay", "1") + command("pay", "2"), "<final>1</final>")
    kernai.execute(agent, "Go.", provider=mock, store=store, run_id="r")
    kernai.resume(agent, "r", store=store, provider=mock, approvals={"0.0": {"params": {"amount": 7}}, "0.1": "too much"})
    assert paid == [7]
    assert kernai.replay(agent, "r", store=store, skills="run").result is not None
    assert paid == [7, 7], "edited by a person; the other one was refused"


def test_a_replay_with_skills_gives_them_the_decision_the_key_and_the_state_of_the_host_that_they_had() -> None:
    class Counting(kernai.Context):
        count = 0

        def save(self) -> int:
            return self.count

        def restore(self, data: int) -> None:
            self.count = data

    def ask(ctx: kernai.SkillContext[Any]) -> str:
        if ctx.approval is None and not ctx.woken:
            raise Pause("Which?", {"among": 2}, until=datetime(2026, 1, 1, tzinfo=UTC))
        return "woken" if ctx.woken else f"{ctx.approval.value} {ctx.approval.asked}"

    def number(ctx: kernai.SkillContext[Counting]) -> str:
        ctx.run_context.count += 1
        return f"call {ctx.run_context.count} {ctx.idempotency_key}"

    skills = [Skill("ask", execute=ask), Skill("number", execute=number), Skill("leave", execute=lambda: sys.exit("no such file"))]
    agent, store = Agent(instructions="x", skills=skills, protocols=[], parallel_skills=True), MemoryStore().tenant("acme")
    for approvals, said, key in (({"0.0": {"answer": "blue"}}, "{'among': 2}", "acme/r:1.0"), (None, "woken", "acme/r~1:1.0")):
        mock = MockProvider(command("ask"), command("number"), command("number") + command("leave"), "<final>1</final>")
        assert kernai.execute(agent, "Go.", provider=mock, store=store, run_id="r", context=Counting()).pending
        result = kernai.resume(agent, "r", provider=mock, store=store, approvals=approvals, context=Counting())
        assert said in result.messages[2].text
        assert f"call 1 {key}" in result.messages[4].text
        assert kernai.replay(agent, "r", store=store, skills="run", context=Counting()).result is not None
        store.delete("r")


def test_a_skill_that_asks_for_a_decision_is_compared_too() -> None:
    def asks() -> Literal["x"]:
        raise Pause("why")

    recorder = Recorder()
    agent = Agent(instructions="x", skills=[Skill("asks", execute=asks, inputs={})], protocols=[])
    with pytest.raises(kernai.StoreNeededError):
        kernai.execute(agent, "Go.", provider=MockProvider(command("asks")), recorder=recorder)
    assert kernai.replay(agent, recording=recorder.to_list(), skills="run") is not None


def test_a_replay_with_skills_accepts_a_call_that_a_middleware_stopped() -> None:
    def stop(effect: Any) -> Any:
        if hasattr(effect, "skill"):
            raise kernai.Stop("guardrail", "not that")
        return (yield effect)

    agent, store = Agent(instructions="x", skills=[Skill("look", execute=list, inputs={})], middleware=[stop]), MemoryStore()
    assert kernai.execute(agent, "Go.", provider=MockProvider(command("look")), store=store, run_id="r").stop_reason == "guardrail"
    result = kernai.replay(agent, "r", store=store, skills="run").result
    assert result is not None
    assert result.stop_reason == "guardrail"
