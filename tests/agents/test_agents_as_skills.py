"""An agent that another one calls: a sub-run with a scope of its own, which shares what the whole run shares."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

import kernai
from kernai import (
    Agent,
    Context,
    Limits,
    LlmResponse,
    Media,
    Message,
    MockProvider,
    Model,
    Provider,
    ProviderError,
    Recorder,
    Skill,
    SkillContext,
    SkillInputError,
    skill,
)
from tests.ways import WAYS, Way
from tests.written import command, final

pytestmark = pytest.mark.usefixtures("no_thread_is_left")


Answer = Callable[[str, Sequence[Message]], str]


def agent_of(who: str, answer: Answer | None = None, **options: Any) -> Agent:
    """An agent whose system message begins with `who`; its model answers as the function says."""
    provider = None
    if answer is not None:
        provider = MockProvider(chunk_size=64).on_call(lambda messages, _: answer(speaker(messages), messages))
        provider.with_token_counter(lambda *_: {"prompt_tokens": 1, "completion_tokens": 1})
    return Agent(instructions=who, provider=provider, **options)


def speaker(messages: Sequence[Message]) -> str:
    return messages[0].text.split()[0]


@WAYS
def test_a_failure_of_the_agent_is_an_error_that_the_caller_reads(way: Way) -> None:
    def answer(who: str, messages: Sequence[Message]) -> str:
        if who == "lost":
            raise ProviderError("connection lost")
        if who == "endless":
            return command("/skills")
        if who == "fails":
            raise AssertionError("its instructions fail before")
        return final("done") if len(messages) > 2 else "".join(command(one, "x") for one in ("lost", "endless", "fails"))

    def instructions() -> str:
        raise OSError("no instructions today")

    helpers = [
        agent_of("lost").as_skill("lost", "l"),
        agent_of("endless", max_steps=2).as_skill("endless", "e"),
        agent_of("fails").replace(instructions=instructions).as_skill("fails", "f"),
    ]
    recorder = Recorder()
    result = way(agent_of("boss", answer, skills=helpers), recorder=recorder)
    assert result.text == "done"
    errors = {event.data["skill"]: event.data["error"] for event in recorder.for_event("skill_error")}
    assert "connection lost" in errors["lost"]
    assert "2 steps" in errors["endless"]
    assert errors["fails"] == "no instructions today"
    ends = {event.scope: event.data["stop_reason"] for event in recorder.for_event("result")}
    assert ends == {"0.0": "error", "0.1": "max_steps", "0.2": "error", "": "final"}
    assert result.usage.model_calls == 4  # what a failed sub-run used is counted too


@WAYS
def test_a_sub_run_shares_context_media_and_limits(way: Way) -> None:
    class Mine(Context):
        user = "nobody"

    picture = Media.from_bytes(b"pixels", mime_type="image/png")
    seen: list[tuple[str, int]] = []

    @skill(register=False)
    def draw(ctx: SkillContext[Mine]) -> Media:
        seen.append((ctx.run_context.user, ctx.run_context.depth))
        return picture

    def answer(who: str, messages: Sequence[Message]) -> str:
        if who == "painter":
            return final(picture.id) if len(messages) > 2 else command("draw")
        return final("done") if len(messages) > 2 else command("painter", "a cat")

    context = Mine()
    context.user = "Ada"
    painter = agent_of("painter", skills=[draw]).as_skill("painter", "paints")
    boss = agent_of("boss", answer, skills=[painter])
    result = way(boss, context=context)
    assert result.text == "done"
    assert seen == [("Ada", 1)]
    assert context.media_store.fetch(picture.id) == picture
    assert context.depth == 0
    assert way(boss, limits=Limits(max_calls=5)).stop_reason == "max_calls"
    assert way(boss, limits=Limits(max_calls=6)).text == "done"
    assert way(boss, limits=Limits(max_tokens=3)).stop_reason == "max_tokens"


@WAYS
def test_a_sub_run_takes_its_own_provider_and_model_and_else_the_callers(way: Way) -> None:
    seen: list[tuple[str, str, float | None, int | None]] = []

    class Named(Provider):
        def __init__(self, name: str) -> None:
            self.name = name

        def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            seen.append((self.name, model.id, generation.temperature, generation.max_tokens))
            if speaker(messages) == "boss" and len(messages) == 2:
                return LlmResponse(command("own", "x") + command("heir", "x"))
            return LlmResponse(final("done"))

    own = Agent(
        instructions="own", provider=Named("own's"), model=Model("own-model"), generation={"max_tokens": 5}
    ).as_skill("own", "o")
    heir = Agent(instructions="heir").as_skill("heir", "h")
    boss = Agent(
        instructions="boss", provider=Named("boss's"), model=Model("boss-model"), generation={"temperature": 0.5},
        skills=[own, heir],
    )
    assert way(boss).text == "done"
    assert seen == [
        ("boss's", "boss-model", 0.5, None),
        ("own's", "own-model", 0.5, 5),
        ("boss's", "text-only", 0.5, None),
        ("boss's", "boss-model", 0.5, None),
    ]


def _friends(one_steps: int = 10) -> tuple[Agent, list[Skill]]:
    """Two agents, each of which is a skill of the other, and whose model always calls the other first."""
    skills: list[Skill] = []

    def answer(who: str, messages: Sequence[Message]) -> str:
        if len(messages) > 2:
            heard = messages[-1].text
            return final(f"{who} heard: {heard if len(heard) < 2_000 else 'much'}")
        return command("two" if who == "one" else "one", "over to you")

    names = ("one", "two")
    # an agent's skills are fixed when it is made, so the two find each other through the registry
    agents = [agent_of(name, answer, skills=["one", "two"], max_steps=one_steps) for name in names]
    for name, agent in zip(names, agents, strict=True):
        skills.append(agent.as_skill(name, "a friend"))
        kernai.skills.register(skills[-1])
    return agents[0], skills


@WAYS
@pytest.mark.parametrize("depth, limits", [(8, None), (0, Limits(max_depth=0)), (3, Limits(max_depth=3))])
def test_two_agents_that_are_each_others_skills_end_at_the_depth_limit(way: Way, depth: int, limits: Limits | None) -> None:
    one, _ = _friends()
    recorder = Recorder()
    result = way(one, recorder=recorder, limits=limits)
    assert result.ok
    assert f"max_depth={depth}" in str(result.text)
    assert max(event.depth for event in recorder.entries) == depth + 1  # the refused one records its end, too
    ends = {event.scope: event.data["stop_reason"] for event in recorder.for_event("result")}
    assert len(ends) == depth + 2
    assert (ends["/".join(["0.0"] * (depth + 1))], ends[""]) == ("max_depth", "final")
    assert result.usage.model_calls == (depth + 1) * 2


@pytest.mark.slow
@WAYS
def test_a_depth_that_python_itself_does_not_reach_ends_with_a_clear_error(way: Way) -> None:
    one, _ = _friends(3)
    recorder = Recorder()
    result = way(one, recorder=recorder, limits=Limits(max_depth=100_000, max_calls=100_000))
    assert recorder.entries[-1].type == "result"
    assert recorder.entries[-1].scope == ""
    assert result.stop_reason in ("final", "error", "max_steps")
    assert len(recorder.for_event("run_start")) == len(recorder.for_event("result"))


def test_outside_of_a_run_it_is_a_plain_skill() -> None:
    helper = agent_of("helper", lambda _, messages: final(f"helped: {messages[-1].text}")).as_skill("helper", "helps")
    assert helper.call({"input": "me"}) == "helped: me"
    assert helper.call("me too") == "helped: me too"
    assert helper("directly") == "helped: directly"
    assert list(helper.inputs) == ["input"]
    assert helper.description == "helps"
    with pytest.raises(SkillInputError, match="input"):
        helper.call({})
    assert "helper" in repr(helper)
    with pytest.raises(ProviderError, match="no provider is set"):
        agent_of("helper").as_skill("helper", "helps").call("me")


@WAYS
def test_a_wrong_input_is_reported_before_anything_runs(way: Way) -> None:
    recorder = Recorder()

    def answer(who: str, messages: Sequence[Message]) -> str:
        assert who == "boss"
        return final("done") if len(messages) > 2 else command("helper", '{"input": 5, "other": 1}')

    helper = agent_of("helper").as_skill("helper", "helps")
    assert way(agent_of("boss", answer, skills=[helper]), recorder=recorder).text == "done"
    assert "input" in recorder.for_event("skill_error")[0].data["error"]
    assert {event.scope for event in recorder.entries} == {""}
