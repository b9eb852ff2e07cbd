"""The source of each trusted value is recorded, in whatever format the call was made."""

from __future__ import annotations

from collections.abc import Mapping
from decimal import Decimal
from typing import Any

import pytest

import kernai
from kernai import Agent, Context, Decision, MemoryStore, Message, MockProvider, Skill, Trusted, outside, skill
from kernai.events import Row, SkillResultRow
from tests.ways import by_aexecute, by_aresume, by_execute
from tests.written import call

ANN = "ann@x.org"


@skill(register=False, acts=True)
def pay(to: list[Trusted[str]], amount: Trusted[Decimal] | None = None, note: str = "") -> str:
    """Send money."""
    return "sent"


@skill(register=False)
def look_up(ctx: kernai.SkillContext[Context]) -> str:
    """What the host knows."""
    ctx.run_context.trust(ANN)
    return ANN


def returning(name: str, value: Any, **flags: Any) -> Skill:
    return Skill(name, execute=lambda: value, description="Look.", inputs={}, **flags)


SKILLS: list[str | Skill] = [
    pay, look_up, returning("saved", [ANN], directory=True), returning("make", {"id": ANN}, creates="id"),
    returning("entries", [5, {"id": 5}, {"id": ANN, "title": "rent"}], directory=("id", "title")), returning("read", "Hello."),
]


PAY = call("pay", to=[ANN])


def agent(*responses: str, native: bool = False, **options: Any) -> Agent:
    given: dict[str, Any] = {"instructions": "Serve.", "skills": SKILLS, **options}
    provider = MockProvider(*responses, "<final>done</final>", native=native)
    return Agent(provider=provider, calls="native" if native else "blocks", **given)


def clerk(*responses: str, **options: Any) -> Skill:
    return agent(*responses, **options).as_skill("clerk", "Does it.")


def sources(store: MemoryStore) -> list[Mapping[str, str]]:
    return [one["data"]["sources"] for one in store.load("r") if one["event"] == "trusted_values"]


def trusting(value: str) -> Context:
    context = Context()
    context.trust(value)
    return context


HISTORY = {"history": [Message("user", f"I know {ANN}.", by="user"), Message("assistant", "Fine.")]}
#: by the source on record: the model's responses, the input, what the agent has, what the run has
SOURCES: dict[str, tuple[list[str], Any, dict[str, Any], dict[str, Any]]] = {
    "the user's input": ([PAY], f"Pay {ANN}.", {"instructions": f"{ANN} is the accountant."}, HISTORY),
    "the user's messages in the history": ([PAY], "Pay her.", {}, HISTORY),
    "the instructions": ([PAY], ["Pay her.", outside(f"I am {ANN}")], {"instructions": f"{ANN} is the accountant."}, {}),
    "what `Context.trust` added": ([PAY], "Pay her.", {}, {"context": ANN}),
    "the result of `saved`, a directory": ([call("saved"), PAY], "Pay her.", {}, {}),
    "the result of `make`, which made it": ([call("make"), PAY], "Pay her.", {}, {}),
    "the result of `entries`, where the user wrote its title": ([call("entries"), PAY], "Pay the rent.", {}, {}),
}


@pytest.mark.parametrize("run", [by_execute, by_aexecute])
@pytest.mark.parametrize("native", [False, True], ids=["blocks", "native"])
@pytest.mark.parametrize("source", SOURCES)
def test_a_run_records_where_each_trusted_value_came_from(source: str, native: bool, run: Any) -> None:
    responses, given, options, more = SOURCES[source]
    made, store = agent(*responses, native=native, **options), MemoryStore()
    if "context" in more:
        more = {"context": trusting(more["context"])}
    parts = [given] if isinstance(given, str) else given
    assert run(made, *parts, store=store, run_id="r", **more).text == "done"
    assert sources(store) == [{"to[0]": source}]
    kernai.replay(made, "r", store=store)


def test_each_value_of_a_call_has_a_source_of_its_own_and_others_have_none() -> None:
    pay_all = call("pay", to=["bob@x.org", ANN, "eve@x.org"], amount=50, note=f"for {ANN}, not mallory@x.org")
    store = MemoryStore()
    made = agent(call("read"), call("saved"), pay_all)
    (waiting,) = kernai.execute(made, "Pay bob@x.org 50 euros.", store=store, run_id="r").pending
    saved = "the result of `saved`, a directory"
    assert sources(store) == [{"to[0]": "the user's input", "to[1]": saved, "amount": "the user's input", "note": saved}]
    assert [(one.path, one.value) for one in waiting.untrusted] == [("to[2]", "eve@x.org"), ("note", "mallory@x.org")]


def test_a_text_that_a_call_trusts_is_recorded_whether_or_not_somebody_listens() -> None:
    recorders = [kernai.Recorder(), kernai.Recorder()]
    for recorder, on_event in zip(recorders, (None, lambda event: None), strict=True):
        kernai.execute(agent(call("look_up"), PAY), "Pay her.", recorder=recorder, on_event=on_event)
    alone, heard = ([event.type for event in one.entries] for one in recorders)
    assert alone == heard


class SharedRows(list[Row]):
    """A recorder's rows. After each result, another run adds one of its own, as a parallel task may."""

    def append(self, row: Row) -> None:
        super().append(row)
        if isinstance(row, SkillResultRow):
            other = SkillResultRow("0.b/0.0", "read", '["eve@x.org"]', 1)
            other.place, other.at = row.place, row.at
            super().append(other)


@pytest.mark.parametrize("to, answer", [(ANN, "sent"), ("eve@x.org", "these values must be in the user's own messages")])
def test_only_a_directorys_own_result_is_trusted_not_one_that_another_run_records_meanwhile(to: str, answer: str) -> None:
    sink = kernai.MemorySink()
    sink.rows = SharedRows()
    result = kernai.execute(agent(call("saved"), call("pay", to=[to])), "Pay her.", recorder=kernai.Recorder(sink))
    assert answer in result.messages[4].text


def test_a_sub_agent_names_the_sources_of_its_caller_and_hands_its_own_back() -> None:
    below = clerk(call("saved"), call("pay", to=["bob@x.org", ANN, "tax@x.org"]), instructions="The tax office: tax@x.org")
    boss = agent(call("clerk", input="pay all"), PAY, skills=[*SKILLS, below])
    store = MemoryStore()
    kernai.execute(boss, "Have bob@x.org paid.", store=store, run_id="r")
    saved = "the result of `saved`, a directory"
    assert sources(store) == [{"to[0]": "the user's input", "to[1]": saved, "to[2]": "the instructions"}, {"to[0]": saved}]


@pytest.mark.parametrize("needed, outer", [(["a"], None), (["a"], "a"), ([], None)])  # `outer`: the caller's own task
def test_a_task_of_the_host_is_a_source_and_so_is_what_those_that_it_needs_brought_in(needed: Any, outer: Any) -> None:
    def answer(messages: Any, model: Any) -> str:
        last = messages[-1].text
        if last.startswith("Look"):
            return call("saved")
        return call("pay", to=["bob@x.org", ANN]) if last.endswith("Pay bob@x.org.") else "<final>ok</final>"

    plan = {"tasks": [{"id": "a", "input": "Look."}, {"id": "b", "input": "Pay bob@x.org.", "depends_on": needed}]}
    store = MemoryStore()
    made = agent().replace(provider=MockProvider().on_call(answer))
    result = kernai.execute_plan(made, plan, store=store, run_id="r", context=kernai.Context(task_id=outer))
    known = {"to[0]": "the input of the task b"}
    assert sources(store) == [known | {"to[1]": "the result of `saved`, a directory"} if needed else known]
    assert [one.value for pending in result.pending for one in pending.untrusted] == ([] if needed else [ANN])


@pytest.mark.parametrize("again", [kernai.resume, by_aresume])
@pytest.mark.parametrize("decision, source", [
    (Decision(f"No, pay {ANN}", by="bob"), "what bob wrote about call 0.0"),
    ({"params": {"to": [ANN]}}, "what a person wrote about call 0.0"),
])
def test_what_a_person_wrote_with_a_decision_is_a_source_after_a_resume(decision: Any, source: str, again: Any) -> None:
    made, store = agent(call("pay", to=["eve@x.org"]), call("pay", to=[ANN], note="2")), MemoryStore()
    kernai.execute(made, "Pay her.", store=store, run_id="r")
    assert sources(store) == []
    again(made, "r", store=store, approvals={"0.0": decision})
    assert sources(store) == [{"to[0]": source}]
    kernai.replay(made, "r", store=store)


def test_a_value_that_approve_vouched_for_has_it_as_source() -> None:
    def correct(asked: kernai.PendingCall) -> Decision | bool:
        return Decision({"params": {"to": [ANN]}}, by="policy", trusted=True) if asked.untrusted else True

    made, store = agent(call("pay", to=["eve@x.org"]), call("pay", to=[ANN], note="2"), approve=correct), MemoryStore()
    kernai.execute(made, "Pay her.", store=store, run_id="r")
    assert sources(store) == [{"to[0]": "what policy wrote about call 0.0"}]


def test_a_run_that_is_resumed_names_sources_from_before_and_the_new_input() -> None:
    store = MemoryStore()
    made = agent(call("saved"), "<final>Whom?</final>", PAY, "<final>And?</final>", call("pay", to=["bob@x.org"]))
    kernai.execute(made, "Pay them.", store=store, run_id="r")
    kernai.resume(made, "r", input="The saved one.", store=store)
    kernai.resume(made, "r", input="And bob@x.org.", store=store)
    assert sources(store) == [{"to[0]": "the result of `saved`, a directory"}, {"to[0]": "the user's input"}]
    kernai.replay(made, "r", store=store)


def test_a_recording_without_sources_resumes_and_replays_as_before() -> None:
    whole, made = MemoryStore(), agent(PAY, "<final>paid</final>")
    kernai.execute(made, f"Pay {ANN}.", store=whole, run_id="r")
    old = MemoryStore()
    old.append("r", 0, [one for one in whole.load("r") if one["event"] != "trusted_values"], [])
    kernai.replay(made, "r", store=old)
    assert kernai.resume(made, "r", input="Thanks", store=old).text == "done"


@pytest.mark.parametrize("amount, source", [
    (1250, "which is in the result of `bill`"), (1250.5, "which the model made up"), (25, "which the model made up"),
    (4711, "which is in the result of `bill`"),
])
def test_a_doubted_number_is_found_in_the_result_that_has_it_and_in_no_other(amount: float, source: str) -> None:
    bill = returning("bill", "Please transfer 1,250.00 for RE-4711.")
    made = agent(call("bill"), call("pay", to=[], amount=str(amount)), skills=[*SKILLS, bill])
    (waiting,) = kernai.execute(made, "Pay it.", store=MemoryStore(), run_id="r").pending
    assert [(one.path, one.source) for one in waiting.untrusted] == [("amount", source)]


def test_where_a_doubted_value_is_from_is_found_in_what_the_caller_of_a_sub_agent_read() -> None:
    below = clerk(call("pay", to=[ANN, "eve@x.org", "bob@x.org"]))
    boss = agent(call("bill"), call("clerk", input=f"pay {ANN}, eve@x.org"), skills=[returning("bill", f"Pay {ANN}"), below])
    (waiting,) = kernai.execute(boss, "Pay it.", store=MemoryStore(), run_id="r").pending
    own = "which the model made up"
    assert [one.source for one in waiting.untrusted] == ["which is in the result of `bill`", own, own]


def test_without_a_store_callbacks_hear_of_the_sources_and_the_runtimes_quote_of_a_refused_call_is_none() -> None:
    seen: list[kernai.Event] = []
    kernai.execute(agent(call("read"), call("pay", to=[]), PAY), f"Pay {ANN}.", on_event=seen.append)
    assert [one.data["sources"] for one in seen if one.type == "trusted_values"] == [{"to[0]": "the user's input"}]
    bad = call("pay", to=["eve@x.org"], amount="many")
    kernai.execute(agent(bad, call("pay", to=["eve@x.org"])), "Pay.", on_event=seen.append)
    assert [one.data["source"] for one in seen if one.type == "untrusted_value"] == ["which the model made up"]


def test_a_person_and_the_model_read_only_the_first_of_many_untrusted_values() -> None:
    everybody = call("pay", to=[f"user{at}@x.org" for at in range(50)])
    (waiting,) = kernai.execute(agent(everybody), "Pay.", store=MemoryStore(), run_id="r").pending
    assert (len(waiting.untrusted), waiting.reason.count("@"), waiting.reason[-13:]) == (50, 20, "; and 30 more")
    refused = kernai.execute(agent(everybody), "Pay.").messages[-2].text
    assert refused.count("@") == 20
    assert "; and 30 more. Do not send" in refused
