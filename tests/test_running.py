"""What a caller may pass to a run, and the errors for mistakes."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable
from typing import Any

import pytest

from kernai import (
    Agent,
    Context,
    Limits,
    Media,
    MemorySink,
    MemoryStore,
    Message,
    MockProvider,
    Model,
    Recorder,
    aexecute,
    aresume,
    arun,
    astream,
    configure,
    execute,
    resume,
    run,
    run_plan,
    stream,
)

PICTURE = Media.from_bytes(b"picture", mime_type="image/png")


def agent(*turns: str, **options: Any) -> Agent:
    return Agent(instructions="x", provider=MockProvider(*(turns or ("done",))), **options)


class Set:
    def is_set(self) -> bool:
        return True


MISTAKES: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "provider class": ({"provider": MockProvider}, TypeError, "provider must be an instance: write MockProvider"),
    "model text": ({"model": "gpt-4o"}, TypeError, r"write Model\('gpt-4o'\)"),
    "history text": ({"history": "hello"}, TypeError, "history must be a list of messages"),
    "history entry": ({"history": ["hello"]}, TypeError, r"history\[0\]: a message must be a dict, got str"),
    "history media": ({"history": [{"role": "user", "content": [{"id": "x"}]}]}, TypeError, r"history\[0\]: content may hold"),
    "history no role": ({"history": [{"role": ["user"], "content": "x"}]}, ValueError, r"history\[0\].*role"),
    "history system": ({"history": [Message("system", "x")]}, ValueError, r"history\[0\] is a system message"),
    "history content": ({"history": [{"role": "user", "content": 3}]}, TypeError, r"history\[0\]: content must be"),
    "recorder's sink": ({"recorder": MemorySink()}, TypeError, r"write recorder=Recorder\(\.\.\.\)"),
    "context's media": ({"context": Context(media_store={})}, TypeError, "context.media_store must be a MediaStore, got dict"),  # type: ignore[arg-type]
    "limits without a price": ({"limits": Limits(max_cost=1)}, ValueError, "needs the price of model 'text-only'"),
    "cancel": ({"cancel": True}, TypeError, "cancel must have is_set"),
    "on_event": ({"on_event": "print"}, TypeError, "on_event must be a function of the event, got"),
    "on_task_complete": ({"on_task_complete": 1}, TypeError, "on_task_complete must be a function of task_id="),
    "run_id": ({"run_id": ""}, ValueError, "run_id must be a non-empty text"),
    "metadata": ({"metadata": "x"}, TypeError, "metadata must be a Mapping"),
    "store": ({"store": "runs.db", "run_id": "r"}, TypeError, r"such as SqliteStore\('runs.db'\), got str"),
    "store class": ({"store": MemoryStore, "run_id": "r"}, TypeError, "got the class MemoryStore"),
    "unknown": ({"modle": 1}, TypeError, "unknown option 'modle'; did you mean 'model'?"),
    "an agent's": ({"temperature": 1}, TypeError, "did you mean the agent's 'generation'"),
    "of resume": ({"wait": 1}, TypeError, "unknown option 'wait'; it is for a run that is resumed"),
    "like nothing": ({"colour": 1}, TypeError, "unknown option 'colour'; known: provider, model,"),
    "of the agent": ({"max_steps": 3}, TypeError, r"'max_steps'; it is the agent's: agent.replace\(max_steps=...\)"),
    "a limit": ({"timeout": 3}, TypeError, r"'timeout'; it is a limit: limits=Limits\(timeout=...\)"),
}


@pytest.mark.parametrize("start", [run, execute, stream, arun, aexecute, astream], ids=lambda start: start.__name__)
@pytest.mark.parametrize("options, error, message", MISTAKES.values(), ids=MISTAKES)
def test_a_mistake_raises_at_the_call_and_names_the_argument(
    start: Callable[..., Any], options: dict[str, Any], error: type[Exception], message: str
) -> None:
    of, recorder = agent(), Recorder()
    with pytest.raises(error, match=message):
        made = start(of, "go", **{"recorder": recorder, **options})
        if inspect.iscoroutine(made):
            asyncio.run(made)
    assert isinstance(of.provider, MockProvider)
    assert (of.provider.call_count, recorder.entries) == (0, [])


@pytest.mark.parametrize("options, said", [
    ({"model": Model("free")}, "the price of model 'free'"), ({"calls": "native"}, "needs a provider with native calls"),
])
def test_an_agent_below_that_cannot_be_run_is_a_mistake_too(options: dict[str, Any], said: str) -> None:
    below = agent().replace(**options)
    for _ in range(2):
        below = agent().replace(skills=[below.as_skill("ask", "Ask.")], model=Model("m", cost=(1, 1)))
    with pytest.raises(ValueError, match=said):
        execute(below, "go", limits=Limits(max_cost=1) if "model" in options else None)


@pytest.mark.parametrize("it, content, said", [
    *((it, "go", "agent must be an Agent") for it in (None, "agent", Agent, {"instructions": "x"})),
    *((agent(), content, "input m") for content in (None, 3, b"go", ["a", 3], [None], {"go"}, {"text": "go"})),
])
def test_an_agent_or_an_input_of_another_type_is_a_type_error(it: Any, content: Any, said: str) -> None:
    with pytest.raises(TypeError, match=said):
        execute(it, content)


def test_a_context_that_is_an_empty_container_is_used() -> None:
    class Cart(Context):
        def __len__(self) -> int:
            return 0

    cart, provider = Cart(), MockProvider("done")
    run(Agent(instructions=lambda context: f"It is {context is cart}."), "go", context=cart, provider=provider)
    assert (provider.messages_at(0) or ())[0].text.startswith("It is True.")


def test_the_providers_order_is_the_argument_then_the_agents_then_the_configured_one() -> None:
    configure(default_provider=MockProvider("configured"))
    assert run(Agent(instructions="x"), "go") == "configured"
    assert run(agent("the agent's"), "go") == "the agent's"
    assert run(agent("the agent's"), "go", provider=MockProvider("given")) == "given"


def test_the_recording_says_what_was_started_and_by_whom() -> None:
    recorder = Recorder()
    named = agent(name="clerk", model=Model("m", ("text", "vision")))
    result = execute(named, ["see", PICTURE], recorder=recorder, run_id="r-1", metadata={"ticket": 7})
    start = recorder.entries[0]
    assert start.type == "run_start"
    assert start.data == {
        "run_id": "r-1", "input": ["see", PICTURE.to_dict()], "history": [], "model": "m", "agent": "clerk",
        "metadata": {"ticket": 7}, "format": 2, "rules": start.data["rules"],
        "definition": start.data["definition"],
    }
    assert result.run_id == "r-1"
    assert {event.run_id for event in recorder.entries} == {"r-1"}


@pytest.mark.parametrize("door", [run, stream, aexecute, run_plan, resume, aresume])
def test_help_on_a_function_that_runs_agents_explains_each_option(door: Callable[..., Any]) -> None:
    shown = inspect.signature(door).parameters.keys()
    assert shown >= {"provider", "limits", "on_event", "store"}
    assert ("history" in shown) == (door not in (resume, aresume))
    assert "options" not in shown
    own = (door.__kwdefaults__ or {}).keys() | {"agent", "input", "plan", "run_id"}
    assert [name for name in shown - own if f"`{name}`" not in str(door.__doc__)] == []


def test_an_option_with_a_typo_is_an_error_that_suggests_an_option_of_the_function() -> None:
    wrong: dict[str, Any] = {"unknown option 'aprovals'; did you mean 'approvals'": {"aprovals": {}}, "got the class MemoryStore": {"store": MemoryStore}}
    for said, options in wrong.items():
        with pytest.raises(TypeError, match=said):
            resume(agent(), "r", **options)
