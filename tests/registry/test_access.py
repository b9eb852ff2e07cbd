"""What an agent may call: the listing, the prompt and the check at the call agree."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from kernai import Agent, MockProvider, Model, Protocol, Skill, Trusted, parse
from kernai.testing import ByHand
from tests.loop.loop_cases import command

BLIND, SEEING = Model("blind"), Model("seeing", ("text", "vision"))


def made(name: str, requires: str | tuple[str, ...] = ()) -> Skill:
    return Skill(name, execute=lambda: name, requires=requires)


def registered(*names: str) -> None:
    for name in names:
        kernai.skills.register(made(name))
    kernai.skills.register(made("see", "vision"))


def listed(skills: Any, model: Model = BLIND) -> list[str]:
    prompt = Agent(instructions="", skills=skills, model=model, list_skills=True).system_prompt()
    return re.findall(r"^### (\w+)$", prompt, re.MULTILINE)


def answer(agent: Agent, *calls: str) -> list[str]:
    messages = ByHand(agent, provider=MockProvider("".join(calls), "<final>done</final>")).run("Go.").messages
    return [message.text for message in messages[2:-1]]


@pytest.mark.parametrize("scope,allowed,visible,to_the_seeing", [
    (None, None, [], []),
    (None, ["a"], [], []),
    ("all", None, ["a", "b"], ["a", "b", "see"]),
    ("all", ["see", "b", "nope"], ["b"], ["b", "see"]),
    ("all", [], [], []),
    ([], None, [], []),
    (["see", "b", "nope", "a"], None, ["b", "a"], ["see", "b", "a"]),
    (["a"], ["b"], [], []),
])  # fmt: skip
def test_the_listing_has_the_skills_that_scope_configuration_and_model_allow(
    scope: Any, allowed: Sequence[str] | None, visible: list[str], to_the_seeing: list[str]
) -> None:
    registered("a", "b")
    kernai.configure(allowed_skills=allowed)
    assert listed(scope) == visible
    assert listed(scope, SEEING) == to_the_seeing


def test_a_skill_passed_as_an_object_takes_precedence_over_the_registered_one() -> None:
    registered("a", "b")
    own = Skill("a", execute=lambda: "own")
    assert answer(Agent(instructions="", skills=[own, "b"]), command("a"), command("b")) == [
        '<block type="result" name="a">own</block>',
        '<block type="result" name="b">b</block>',
    ]
    assert answer(Agent(instructions="", skills=["a"]), command("a")) == ['<block type="result" name="a">a</block>']
    kernai.configure(allowed_skills=["b"])
    assert listed([own]) == []
    assert answer(Agent(instructions="", skills=[own]), command("a")) == [
        '<block type="error" name="a">Skill \'a\' is not allowed</block>',
    ]


def test_replacing_or_removing_a_skill_during_a_run_affects_the_next_call() -> None:
    def swap() -> None:
        kernai.skills.register(Skill("a", execute=lambda: "new"))

    def drop() -> None:
        kernai.skills.unregister("a")

    kernai.skills.register(made("a"))
    agent = Agent(instructions="", skills=["a", Skill("swap", execute=swap), Skill("drop", execute=drop)])
    answers = answer(agent, *map(command, ("a", "swap", "a", "drop", "a")))
    assert [parse(text).blocks[0].content for text in answers] == ["a", "", "new", "", "Skill 'a' not found"]


NAMES = ("a", "b", "c", "see", "nope")


@given(
    st.one_of(st.none(), st.just("all"), st.lists(st.sampled_from(NAMES), unique=True)),
    st.one_of(st.none(), st.lists(st.sampled_from(NAMES))),
    st.sampled_from([BLIND, SEEING]),
)
def test_exactly_the_listed_skills_can_be_called(scope: Any, allowed: list[str] | None, model: Model) -> None:
    with kernai.isolated():
        registered("a", "b", "c")
        kernai.configure(allowed_skills=allowed)
        agent = Agent(instructions="", skills=scope, model=model, list_skills=True)
        calls = "".join(map(command, NAMES * 2)) + command("/skills")
        messages = ByHand(agent, provider=MockProvider(calls, "<final>done</final>")).run("Go.").messages
        listing = messages[-2].text
        for name, message in zip(NAMES * 2, messages[2:], strict=False):
            shown = f"### {name}\n" in listing
            assert shown == (f"### {name}\n" in agent.system_prompt())
            assert (message.text == f'<block type="result" name="{name}">{name}</block>') == shown
            if name == "nope":
                assert "not found" in message.text
            elif not shown:
                assert f"Skill '{name}' is not allowed" in message.text


@pytest.mark.parametrize("scope,visible", [
    (None, ["p", "q"]), ([], []), (["q", "nope"], ["q"]), (["q", "p"], ["p", "q"]), ((Protocol("p", lambda *_: "mine"), "q"), ["p", "q"]),
])  # fmt: skip
def test_an_agent_has_all_registered_protocols_or_those_it_names_or_is_given(scope: Any, visible: list[str]) -> None:
    for name in ("p", "q"):
        kernai.protocols.register(name, lambda *_: "yes")
    agent = Agent(instructions="", protocols=scope)
    listed, *rest = answer(agent, command("/protocols"), *[f'<block type="{name}">x</block>' for name in ("p", "q")])
    assert [one["name"] for one in json.loads(parse(listed).blocks[0].content)] == visible
    for name, text in zip(("p", "q"), rest, strict=True):
        said = "mine" if isinstance(scope, tuple) and name == "p" else "yes"
        assert (text == f'<block type="result" name="{name}">{said}</block>') == (name in visible)
        assert ("is not allowed" in text) == (name not in visible)
    assert agent.system_prompt().count("p, q") == (visible == ["p", "q"])


def test_what_is_registered_during_a_run_may_be_called_and_is_in_the_next_system_message() -> None:
    def learn() -> str:
        kernai.skills.register(made("new"))
        kernai.protocols.register("oracle", lambda *_: "yes")
        return "learnt"

    kernai.skills.register(Skill("learn", execute=learn))
    agent = Agent(instructions="", skills="all", list_skills=True)
    provider = MockProvider(command("learn"), command("new"), "<final>done</final>")
    messages = ByHand(agent, provider=provider).run("Go.").messages
    assert messages[4].text == '<block type="result" name="new">new</block>'
    prompts = [call.messages[0].text for call in provider.calls]
    assert [("### new" in prompt, "/protocols" in prompt) for prompt in prompts] == [(False, False), (True, True), (True, True)]
    assert prompts[1] == agent.system_prompt()


def test_an_agent_registered_as_a_skill_between_two_runs_asks_for_its_approvals() -> None:
    asked: list[str] = []

    def approve(call: Any) -> bool:
        asked.append(call.skill)
        return False

    def run(*responses: str) -> None:
        kernai.execute(Agent(instructions="", skills="all"), "Go.", provider=MockProvider(*responses, "<final>done</final>"))

    registered("one")
    run(command("one", "{}"))
    clerk = Agent(instructions="", skills="all", approve=approve).as_skill("clerk", "Does it.")
    kernai.skills.register(clerk)
    run(command("clerk", "do"), command("one", "{}"), "<final>done</final>")
    assert asked == ["one"]
    kernai.skills.unregister("clerk")
    run(command("clerk", "do"))
    assert asked == ["one"]


@pytest.mark.parametrize("scope", ["all", ["contacts", "pay"]])
def test_a_registered_skill_takes_trusted_values_from_a_registered_directory(scope: Any) -> None:
    paid: list[str] = []

    def pay(recipient: Trusted[str]) -> None:
        paid.append(recipient)

    def run() -> None:
        calls = command("contacts"), command("pay", '{"recipient": "ann"}'), "<final>done</final>"
        kernai.execute(Agent(instructions="", skills=scope), "Pay her.", provider=MockProvider(*calls))

    run()
    kernai.skills.register(Skill("contacts", execute=lambda: ["ann"], directory=True))
    kernai.skills.register(Skill("pay", execute=pay))
    run()
    run()
    assert paid == ["ann", "ann"]


def test_the_work_of_a_run_does_not_depend_on_the_number_of_registered_skills() -> None:
    agent = Agent(instructions="", skills="all")
    counted: list[int] = []
    calls: list[str] = []
    for count in (10, 1000):
        for number in range(count):
            kernai.skills.register(made(f"skill_{number}"))
        for _ in range(2):  # the first run may process the new skills
            calls.clear()
            sys.setprofile(lambda _frame, kind, _argument: calls.append(kind))
            try:
                kernai.execute(agent, "Go.", provider=MockProvider(command("skill_1", "{}"), "<final>done</final>"))
            finally:
                sys.setprofile(None)
        counted.append(len(calls))
    assert counted[1] < counted[0] + 100
