"""Every request of a scope extends the one before exactly, for every adapter: so that vendors' caches hit."""

from __future__ import annotations

import itertools
import json
import threading
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

import kernai
from asking import ADAPTERS
from kernai import Agent, Media, Message, Model, Recorder, skill
from kernai_providers import MemoryReply, MemoryTransport, Request
from tests.properties import examples
from vendor_wires import WIRES, Turn

PICTURE = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
#: what a model may say on its way to the answer
STEPS = {
    "one call": '<block type="command" name="echo">{"text": "é"}</block>',
    "parallel calls": '<block type="command" name="echo">{"text": "a"}</block><block type="command" name="draw">{"n": 1}</block>',
    "media": '<block type="command" name="draw">{"n": 2}</block>',
    "a failing call": '<block type="command" name="echo">{"tex": 1}</block>',
    "an unknown skill": '<block type="command" name="nothing">x</block>',
    "an open block": '<block type="command" name="echo">{"text": "a"}',
    "a note": "<plan>thinking</plan>",
    "a listing": '<block type="command" name="/skills"></block>',
    "white space": " \n ",
    "a workflow": '<plan>{"goal": "g", "tasks": [{"id": "a", "input": "A?"}, {"id": "b", "input": "B?", "depends_on": ["a"]}]}</plan>',
}  # fmt: skip
#: where a request holds the conversation, and what comes before it
PLACES = {
    "openai": ("messages",), "openai-responses": ("input", "instructions"), "anthropic": ("messages", "system"),
    "gemini": ("contents", "systemInstruction"), "ollama": ("messages",),
}  # fmt: skip


@skill(register=False)
def echo(text: str) -> str:
    """Gives it back."""
    return text


@skill(register=False)
def draw(n: int) -> list[str | Media]:
    """Draws."""
    return [f"Picture {n}:", PICTURE]


def bodies_of(vendor: str, steps: list[str], history: list[Message], parallel: bool) -> dict[str, list[Any]]:
    """The bodies of all requests of a run, by scope."""
    wire, lock, root_turns, asked = WIRES[vendor], threading.Lock(), iter([*steps, "<final>done</final>"]), list[Any]()

    def answer(request: Request) -> MemoryReply:
        body = json.loads(request.body)
        in_task = "Go." not in request.body.decode()
        with lock:
            asked.append(body)
            text = "<final>of a task</final>" if in_task else next(root_turns)
        turn = Turn((text,), reasoning=("hm",))
        kind = "application/x-ndjson" if vendor == "ollama" else "text/event-stream"
        return MemoryReply(200, {"content-type": kind}, wire.whole(turn))

    provider = ADAPTERS[vendor]("k", transport=MemoryTransport(answer))
    recorder = Recorder()
    agent = Agent(
        instructions="Be brief.", provider=provider, model=Model("m", ("text", "vision")), skills=[echo, draw],
        parallel_skills=parallel, on_prose="correct", max_steps=20,
    )  # fmt: skip
    result = kernai.execute(agent, ["Go.", PICTURE], history=history, recorder=recorder)
    assert result.text == "done"
    scopes: dict[str, list[Any]] = {}
    for event, body in zip(recorder.for_event("messages_sent"), asked, strict=True):
        scopes.setdefault(event.scope, []).append(body)
    return scopes


@pytest.mark.slow
@pytest.mark.parametrize("vendor", PLACES)
@given(
    steps=st.lists(st.sampled_from(sorted(STEPS)), max_size=6),
    talked=st.booleans(),
    parallel=st.booleans(),
)
@examples(2)
def test_every_request_of_a_scope_extends_the_one_before_exactly(
    vendor: str, steps: list[str], talked: bool, parallel: bool
) -> None:
    history = [Message("user", "Before."), Message("assistant", "Yes?")] if talked else []
    where, *before = PLACES[vendor]
    scopes = bodies_of(vendor, [STEPS[step] for step in steps], history, parallel)
    assert len(scopes[""]) == len(steps) + 1
    for bodies in scopes.values():
        for first, second in itertools.pairwise(bodies):
            assert second[where][: len(first[where])] == first[where]
            assert len(second[where]) > len(first[where])
            rest = {name: value for name, value in first.items() if name not in (where, "include")}
            assert rest == {name: value for name, value in second.items() if name not in (where, "include")}
            assert json.dumps(second).startswith(json.dumps(first).split(f'"{where}"')[0])
            assert all(name in first for name in before)
