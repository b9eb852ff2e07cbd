"""Agents: configuration that is checked when an agent is made, and that holds no state of a run."""

from __future__ import annotations

import copy
import pickle
import re
from collections.abc import Callable, Sequence
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import pytest

import kernai
from kernai import Agent, Context, Limits, Media, Message, MockProvider, Model, Models, Protocol, Recorder, Skill, skill
from kernai.agents.agent import OPTIONS
from tests.loop.loop_cases import add, command, echo, plan, task
from tests.ways import WAYS, Way
from tests.written import final

ORACLE = Protocol("oracle", lambda *_: "yes")


async def later() -> str:
    return "x"


# ------------------------------------------------------------------------------------------ a caller's mistake


@pytest.mark.parametrize("options,error,message", [
    *(({"instructions": wrong}, (TypeError, ValueError), "instructions")
      for wrong in (None, 3, [], ["x", 1], [kernai.outside("x"), Media.from_file("x.png")])),
    ({"instructions": lambda a, b: ""}, TypeError, "instructions.*one, the run's Context: missing a required argument: 'b'"),
    ({"provider": (MockProvider(), Models.LLAVA)}, TypeError, r"got tuple: write provider, model = kernai_providers\.resolve"),
    ({"provider": MockProvider}, TypeError, r"provider must be an instance: write MockProvider\(\.\.\.\)"),
    ({"model": "gpt-4o"}, TypeError, r"model.*Model\('gpt-4o'\)"),
    ({"model": "openai/gpt-4o"}, TypeError, r"write provider, model = kernai_providers\.resolve\('openai/gpt-4o'\), or"),
    ({"model": None}, TypeError, "model"),
    *(({"max_steps": wrong}, ValueError, "max_steps") for wrong in (0, -1)), ({"max_tasks": 1001}, ValueError, "max_tasks.* most 1,000"),
    *(({"max_steps": wrong}, TypeError, "max_steps") for wrong in ("10", 2.0, True, None)),
    ({"skills": "echo"}, TypeError, "skills must be None, 'all', or a list of names and Skills, got 'echo'$"),
    ({"skills": echo}, TypeError, "skills must be .* a list of names and Skills, got FunctionSkill$"),
    ({"skills": [later]}, TypeError, "skills.* not function: decorate it with @skill$"), ({"skills": [len]}, TypeError, "decorate it with @skill$"),
    ({"skills": [[echo]]}, TypeError, "not list$"),
    ({"skills": ["echo", echo]}, ValueError, "skills.*echo"),
    ({"skills": [Agent(instructions="")]}, TypeError, r"not Agent: call its as_skill\(name, description\)$"),
    ({"skills": [ORACLE]}, TypeError, "skills may hold names and Skills, not Protocol$"),
    ({"skills": [SimpleNamespace(protocol=ORACLE)]}, TypeError, r"or its tools, skills\(server\), in skills=$"),
    ({"protocols": [SimpleNamespace(protocol=ORACLE)]}, TypeError, "pass its protocol in protocols=, or its tools"),
    ({"protocols": [later]}, TypeError, "protocols may hold names and Protocols, not function$"),
    ({"skills": {"echo": echo}}, TypeError, "a list of names and Skills, got dict$"),
    ({"protocols": "all"}, TypeError, "protocols must be None, for every registered one, or a list .* got 'all'$"),
    ({"protocols": [ORACLE, "oracle"]}, ValueError, "protocols.*oracle"),
    ({"generation": 3}, TypeError, "generation"),
    ({"generation": {"temprature": 1}}, ValueError, "temprature.*temperature"),
    *(({"on_prose": wrong}, ValueError, "on_prose must be 'accept', 'correct' or 'correct_once'") for wrong in ("stall", None, ["accept"])),
    *(({"on_truncated": wrong}, ValueError, "on_truncated must be 'accept', 'continue' or 'fail'") for wrong in ("retry", None, True)),
    ({"quoted_calls": "ask"}, ValueError, "quoted_calls must be 'confirm', 'refuse' or 'run'"),
    ({"dialects": "yes"}, ValueError, "dialects must be 'correct' or 'run'"),
    ({"calls": "natively"}, ValueError, "calls must be"),
    *(({"output_retries": wrong}, (TypeError, ValueError), "output_retries") for wrong in (-1, True, "2")),
    *(({name: 1}, TypeError, name) for name in ("parallel_skills", "list_skills", "workflows", "name")),
    ({"middleware": len}, TypeError, "middleware must be a list or None"),
    ({"approve": 5}, TypeError, "approve must be a plain function"),
    ({"approve": lambda: True}, TypeError, r"approve must be a function of the call: too many positional arguments"),
    ({"output": object()}, TypeError, "output"),
    ({"tools": []}, TypeError, "tools"),
])  # fmt: skip
def test_an_error_names_the_wrong_argument(options: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Agent(**{"instructions": "", **options})
    agent = Agent(instructions="")
    before = dict(vars(agent))
    if "tools" not in options:
        with pytest.raises(error, match=message):
            agent.replace(**options)
        for name, value in options.items():
            with pytest.raises(error, match=message):
                setattr(agent, name, value)
    assert vars(agent) == before


def test_an_agent_is_written_with_keywords_and_copies_its_lists() -> None:
    with pytest.raises(TypeError):
        Agent("Be brief.")  # type: ignore[call-arg]  # the point
    with pytest.raises(TypeError, match="instructions"):
        Agent()  # type: ignore[call-arg]  # the point
    skills: list[Any] = ["a", echo]
    protocols: list[Any] = ["p", ORACLE]
    given, assigned = Agent(instructions="", skills=skills, protocols=protocols), Agent(instructions="")
    assigned.skills, assigned.protocols = skills, protocols  # type: ignore[assignment]
    skills.clear()
    protocols.clear()
    for agent in (given, assigned):
        assert (agent.skills, agent.protocols) == (("a", echo), ("p", ORACLE))
    assert Agent(instructions="", skills=(one for one in [echo])).skills == (echo,)


# --------------------------------------------------------------------------------------------------- changing it


def test_replace_gives_a_changed_copy() -> None:
    shown = repr(Agent(instructions="secret plan", name="clerk", model=Model("m")))
    assert shown == "Agent(name='clerk', model='m', max_steps=10)"
    agent = Agent(
        instructions="Be brief.", provider=MockProvider(), model=Models.LLAVA, max_steps=3, skills=[echo], protocols=[ORACLE],
        generation={"top_p": 0.1}, on_prose="correct", parallel_skills=True, list_skills=True, output=int, name="n",
    )  # fmt: skip
    same, changed = agent.replace(), agent.replace(max_steps=4, name=None, skills=None)
    assert same is not agent
    assert [getattr(same, one) for one in OPTIONS] == [getattr(agent, one) for one in OPTIONS]
    assert {one for one in OPTIONS if getattr(changed, one) != getattr(agent, one)} == {"max_steps", "skills", "name"}
    assert (changed.max_steps, changed.skills, changed.name) == (4, None, None)
    with pytest.raises(TypeError, match=r"max_step\b.*max_steps"):
        agent.replace(max_step=4)  # type: ignore[call-overload]  # the point


def test_instructions_change_at_the_next_step_of_a_run_that_continues() -> None:
    agent = Agent(instructions="old", skills=[Skill("change", execute=lambda: agent.update_instructions("new"))])
    provider = MockProvider(command("change"), plan(task("a")), "<final>A!</final>", "<final>done</final>")
    assert kernai.run(agent, "Go.", provider=provider) == "done"
    assert [call.messages[0].text.split("\n")[0] for call in provider.calls] == ["old", "new", "new", "new"]
    with pytest.raises(TypeError, match="instructions"):
        agent.update_instructions(None)  # type: ignore[arg-type]  # the point
    assert agent.instructions == "new"


# ------------------------------------------------------------------------------------------------- instructions


class Host(Context):
    name = "host"


class Method:
    def plain(self) -> str:
        return "plain"

    def instruct(self, context: Context) -> str:
        return type(context).__name__


def variadic(*given: Context) -> str:
    return f"{len(given)} given"


def optional(context: Context | None = None) -> str:
    return "with" if context else "without"


def unrelated(times: int = 2) -> str:
    return "x" * times


@pytest.mark.parametrize("instructions,text", [
    ("to the letter {x} ", "to the letter {x} "), ("", ""), (lambda: "called", "called"),
    (lambda ctx: ctx.name, "host"), (lambda anything: anything.name, "host"), (Method().plain, "plain"),
    (Method().instruct, "Host"), (variadic, "1 given"), (optional, "with"), (unrelated, "xx"),
    (partial(lambda prefix, ctx: prefix + ctx.name, "a "), "a host"),
])  # fmt: skip
def test_instructions_are_text_or_a_callable_of_none_or_the_context(
    instructions: str | Callable[..., str], text: str
) -> None:
    agent = Agent(instructions=instructions, protocols=[])
    assert agent.system_prompt(Host()) == text
    provider = MockProvider("done")
    kernai.run(agent, "Go.", provider=provider, context=Host())
    assert (provider.messages_at(0) or ())[0].text == text


def test_callable_instructions_are_called_once_a_step() -> None:
    calls: list[Context] = []

    def instructions(context: Context) -> str:
        calls.append(context)
        return f"Step {len(calls)}."

    context = Context()
    provider = MockProvider(command("echo", "x"), command("echo", "y"), "<final>done</final>")
    kernai.run(Agent(instructions=instructions, skills=[echo]), "Go.", provider=provider, context=context)
    assert calls == [context] * 3
    assert [call.messages[0].text[:7] for call in provider.calls] == ["Step 1.", "Step 2.", "Step 3."]


def test_instructions_that_give_no_text_are_a_type_error() -> None:
    with pytest.raises(TypeError, match=r"instructions must be a plain function of no argument or one, .* got the async function <function later"):
        Agent(instructions=later)  # type: ignore[arg-type]  # the point
    agent = Agent(instructions=lambda: None, provider=MockProvider("done"))  # type: ignore[arg-type]  # the point
    with pytest.raises(TypeError, match=r"instructions.*NoneType"):
        agent.system_prompt()
    with pytest.raises(TypeError, match=r"instructions.*NoneType"):
        kernai.execute(agent, "Go.")


def test_the_system_prompt_is_what_is_sent() -> None:
    kernai.skills.register(add)
    kernai.protocols.register(ORACLE)
    kernai.configure(allowed_skills=["echo", "add"])
    given: list[dict[str, Any]] = [
        {}, {"skills": "all"}, {"skills": [echo], "list_skills": True}, {"model": Models.GEMINI_2_5_PRO, "skills": []},
        {"protocols": []}, {"protocols": [], "skills": ["add"], "list_skills": True},
    ]  # fmt: skip
    for options in given:
        for context in (Context(), Context(depth=1)):
            agent = Agent(instructions=lambda ctx: f"Depth {ctx.depth}.", **options)
            provider = MockProvider("done")
            kernai.run(agent, "Go.", provider=provider, context=context)
            assert (provider.messages_at(0) or ())[0].text == agent.system_prompt(context)


def test_a_sub_agent_is_sent_the_prompt_of_a_sub_agent() -> None:
    agent = Agent(instructions="Work.", skills=[echo])
    provider = MockProvider(plan(task("a")), "<final>A!</final>", "<final>done</final>")
    context = Context()
    kernai.run(agent, "Go.", provider=provider, context=context)
    sent = [(provider.messages_at(at) or ())[0].text for at in range(3)]
    assert sent == [agent.system_prompt(one) for one in (context, context.child("a"), context)]
    with pytest.raises(TypeError, match="context"):
        agent.system_prompt("a")  # type: ignore[arg-type]  # the point


# --------------------------------------------------------------------------------- what is worked out once


@pytest.mark.parametrize("copied", [copy.copy, copy.deepcopy, lambda one: pickle.loads(pickle.dumps(one))])
def test_a_copy_of_an_agent_that_has_run_has_options_of_its_own(copied: Callable[[Agent[Any]], Agent[Any]]) -> None:
    kernai.skills.register(echo)
    kernai.skills.register(add)
    own: list[Any] = ["echo", Agent(instructions="").as_skill("helper", "Helps.")]
    agent: Agent[Any] = Agent(instructions="", skills=own, list_skills=True, output=str | kernai.Usage | Literal[1])
    kernai.execute(agent, "go", provider=MockProvider("<final>hi</final>"))
    other = copied(agent)
    other.skills = ("add",)
    recorder = Recorder()
    provider = MockProvider("Hm.", command("echo", '{"text": "a"}'), command("add", '{"a": 1, "b": 2}'), "<final>a</final>")
    kernai.execute(other, "go", provider=provider, recorder=recorder)
    assert [event.data["skill"] for event in recorder.for_event("skill_execute")] == ["add"]
    assert "### echo" in agent.system_prompt()
    assert "### echo" not in other.system_prompt()


def test_runs_at_once_never_see_each_others_instructions() -> None:
    """While one run compares its instructions with the latest ones, another makes its own."""

    class Meeting(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __ne__(self, other: object) -> bool:
            if is_same := str(self) == other:
                assert agent.system_prompt(Context()).startswith("theirs")
            return not is_same

    mine = Context()
    agent = Agent(instructions=lambda context: Meeting("mine") if context is mine else "theirs")
    assert [agent.system_prompt(mine)[:4] for _ in range(3)] == ["mine"] * 3


def test_what_is_assigned_holds_from_the_next_run_on() -> None:
    agent = Agent(instructions="x", provider=MockProvider("[1, 2]"))
    agent.output = list[int]
    agent.instructions = "Numbers only."
    agent.generation = {"temperature": 0}  # type: ignore[assignment]
    output: object = kernai.execute(agent, "go").output
    assert output == [1, 2]
    assert agent.system_prompt().startswith("Numbers only.")
    assert agent.generation.temperature == 0


HINTS = {
    **{word: f"Agent has no option '{word}'; did you mean '{meant}'" for word, meant in {
        "temperature": "generation", "parallel_tools": "parallel_skills", "tools": "skills", "max_turns": "max_steps",
        "max_step": "max_steps", "Output": "output", "hooks": "middleware", "max_tokens": "generation", "stop": "generation",
        "functions": "skills", "max_retries": "middleware", "aprove": "approve", "cache": "generation",
    }.items()},
    "colour": "Agent has no option 'colour'; it has instructions, provider",
    **{word: f"Agent has no option '{word}'; it is one of a run: execute(agent, ..., {option}=" for word, option in {
        "session_id": "run_id", "limits": "limits", "on_evnt": "on_event", "callback": "on_event", "stream": "on_event",
    }.items()},
    **{word: f"'{word}'; it is a limit of a run: execute(agent, ..., limits=Limits({word}=" for word in ("max_calls", "timeout", "max_cost")},
}


@pytest.mark.parametrize("word, says", HINTS.items())
def test_an_option_that_does_not_exist_is_an_error_with_a_hint(word: str, says: str) -> None:
    with pytest.raises(TypeError, match=re.escape(says)):
        Agent(instructions="x", **{word: 1})  # type: ignore[arg-type]
    agent = Agent(instructions="x")
    before = dict(vars(agent))
    with pytest.raises(AttributeError, match=re.escape(says)):
        setattr(agent, word, True)
    assert vars(agent) == before


def test_reading_an_attribute_that_does_not_exist_is_an_error_with_a_hint() -> None:
    agent = Agent(instructions="x", provider=MockProvider("y"))
    for name, meant in {"as_tool": "did you mean 'as_skill'", "run": "write kernai.run"}.items():
        with pytest.raises(AttributeError, match=f"'Agent' object has no attribute '{name}'; {meant}"):
            getattr(agent, name)
    assert not hasattr(agent, "colour")
    assert kernai.run(agent, "go") == "y"
    with pytest.raises(AttributeError, match=r"an __init__ of its own that does not call Agent\.__init__"):
        kernai.run(type("Clerk", (Agent,), {"__init__": lambda self: None})(), "go")


def test_a_subclass_declares_attributes_of_its_own() -> None:
    class Clerk(Agent[str]):
        desk: int
        floor = 2
        version = "1.0"

        def setup(self) -> str:
            return "mine"

    clerk = Clerk(instructions="x", skills=[echo])
    clerk.desk, clerk.floor, clerk._note, clerk.version = 5, 3, "n", "1.1"  # type: ignore[attr-defined]  # private ones need no declaration
    changed = clerk.replace(max_steps=2, skills=None)
    assert isinstance(changed, Clerk)
    assert (changed.desk, changed.floor, changed.max_steps, clerk.max_steps) == (5, 3, 2, 10)
    assert kernai.execute(changed, "go", provider=MockProvider("hi")).text == "hi"
    assert (changed.version, changed.setup()) == ("1.1", "mine")
    with pytest.raises(AttributeError, match="no option 'dsek'"):
        clerk.dsek = 4  # type: ignore[attr-defined]  # the subject


# ------------------------------------------------------------------------------------------------- an agent as a skill


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
    def instructions() -> str:
        raise OSError("no instructions today")

    lost = Agent(instructions="", provider=MockProvider().fail_on_step(0, kernai.ProviderError("connection lost")))
    endless = Agent(instructions="", provider=MockProvider(command("/skills")), max_steps=2)
    helpers = {"lost": lost, "endless": endless, "fails": Agent(instructions=instructions)}
    provider, recorder = MockProvider("".join(command(name, "x") for name in helpers), final("done")), Recorder()
    boss = Agent(instructions="", provider=provider, skills=[one.as_skill(name, "") for name, one in helpers.items()])
    result = way(boss, recorder=recorder)
    assert (result.text, result.usage.model_calls) == ("done", 4), "what a failed sub-run used is counted too"
    errors = {event.data["skill"]: event.data["error"] for event in recorder.for_event("skill_error")}
    assert errors == {
        "lost": "connection lost", "endless": "the agent used all its 2 steps without a final answer", "fails": "no instructions today",
    }
    ends = {event.scope: event.data["stop_reason"] for event in recorder.for_event("result")}
    assert ends == {"0.0": "error", "0.1": "max_steps", "0.2": "error", "": "final"}


@WAYS
def test_a_sub_run_shares_context_media_and_limits(way: Way) -> None:
    class Mine(Context):
        user = "nobody"

    picture = Media.from_bytes(b"pixels", mime_type="image/png")
    seen: list[tuple[str, int]] = []

    @skill(register=False)
    def draw(ctx: kernai.SkillContext[Mine]) -> Media:
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
    theirs, provider = MockProvider(final("done")), MockProvider(command("own", "x") + command("heir", "x"), final("done"))
    own = Agent(instructions="own", provider=theirs, model=Model("own-model"), generation={"max_tokens": 5})
    boss = Agent(
        instructions="boss", provider=provider, model=Model("boss-model"), generation={"temperature": 0.5, "max_tokens": 9},
        skills=[own.as_skill("own", "o"), Agent(instructions="heir").as_skill("heir", "h")],
    )
    assert way(boss).text == "done"
    called = [[(one.model.id, one.generation.temperature, one.generation.max_tokens) for one in each.calls] for each in (theirs, provider)]
    assert called == [[("own-model", 0.5, 5)], [("boss-model", 0.5, 9)] * 3]


def _friend(max_steps: int = 10, *, ends: bool = True) -> Agent:
    """One of two agents, each of which is a skill of the other. Its model calls the other first, or always."""

    def answer(who: str, messages: Sequence[Message]) -> str:
        if ends and len(messages) > 2:
            heard = messages[-1].text
            return final(f"{who} heard: {heard if len(heard) < 2_000 else 'much'}")
        return command("two" if who == "one" else "one", "over to you")

    one, two = (agent_of(name, answer, skills=["one", "two"], max_steps=max_steps) for name in ("one", "two"))
    for name, agent in (("one", one), ("two", two)):
        kernai.skills.register(agent.as_skill(name, "a friend"))
    return one


@pytest.mark.parametrize("steps", [1, 2, 10])
def test_two_agents_that_always_call_each_other_end_soon(steps: int) -> None:
    """Without a bound they would make as many calls as steps to the power of the depth."""
    recorder = Recorder()
    result = kernai.execute(_friend(steps, ends=False), "go", recorder=recorder)
    assert result.stop_reason == ("max_steps" if steps == 1 else "max_depth")
    assert max(event.depth for event in recorder.for_event("messages_sent")) == 8
    assert "max_depth" in {event.data["stop_reason"] for event in recorder.for_event("result")}
    assert result.usage.model_calls < 100


@WAYS
@pytest.mark.parametrize("depth, limits", [(8, None), (0, Limits(max_depth=0)), (3, Limits(max_depth=3))])
def test_two_agents_that_are_each_others_skills_end_at_the_depth_limit(way: Way, depth: int, limits: Limits | None) -> None:
    recorder = Recorder()
    result = way(_friend(), recorder=recorder, limits=limits)
    assert result.ok
    assert f"max_depth={depth}" in str(result.text)
    assert max(event.depth for event in recorder.entries) == depth + 1  # the refused run records its end too
    ends = {event.scope: event.data["stop_reason"] for event in recorder.for_event("result")}
    assert len(ends) == depth + 2
    assert (ends["/".join(["0.0"] * (depth + 1))], ends[""]) == ("max_depth", "final")
    assert result.usage.model_calls == (depth + 1) * 2


def test_outside_of_a_run_it_is_a_plain_skill() -> None:
    for name, error in (("", ValueError), ("/ask", ValueError), (3, TypeError)):
        with pytest.raises(error, match="name"):
            Agent(instructions="").as_skill(name, "Ask.")  # type: ignore[arg-type]  # the point
    helper = agent_of("helper", lambda _, messages: final(f"helped: {messages[-1].text}")).as_skill("helper", "helps")
    assert helper.call({"input": "me"}) == "helped: me"
    assert helper.call("me too") == "helped: me too"
    assert helper("directly") == "helped: directly"
    undescribed = Agent(instructions="").as_skill("x", None)  # type: ignore[arg-type]  # the point
    assert (list(helper.inputs), helper.description, undescribed.description) == (["input"], "helps", "")
    with pytest.raises(kernai.SkillInputError, match="input"):
        helper.call({})
    assert "helper" in repr(helper)
    with pytest.raises(kernai.ProviderError, match="no provider is set"):
        agent_of("helper").as_skill("helper", "helps").call("me")
