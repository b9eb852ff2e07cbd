"""OpenAI's Responses API: what only this wire format has."""

from __future__ import annotations

import json
from typing import Any

import pytest

import kernai
from asking import HELLO, asked, body_of
from kernai import Agent, LlmResponse, Media, MemoryStore, Message, Model, skill
from kernai_providers import MemoryReply, MemoryTransport, OpenAIProvider, Request, ResponsesProvider, resolve
from vendor_wires import Turn
from wire_responses import ENCRYPTED, ResponsesWire

WIRE = ResponsesWire()
EVENTS = {"content-type": "text/event-stream"}
PICTURE = Media.from_bytes(b"\x89PNG\r\n\x1a\n", mime_type="image/png")
PDF = Media.from_bytes(b"%PDF-1.7", mime_type="application/pdf")


def sent(messages: Any = HELLO, generation: Any = None, id: str = "gpt-5-pro", **model: Any) -> Any:
    return body_of(asked(ResponsesProvider("k"), Model(id, **model), messages, generation))


def test_nothing_is_stored_and_reasoning_is_asked_for_where_there_is_any() -> None:
    body = sent([Message("system", "Be brief."), *HELLO])
    assert body == {
        "model": "gpt-5-pro", "instructions": "Be brief.", "input": [{"role": "user", "content": "Hello"}],
        "stream": True, "store": False, "include": ["reasoning.encrypted_content"],
    }  # fmt: skip
    assert "include" not in sent(id="gpt-4o")


@skill(register=False)
def echo(text: str) -> str:
    """Gives it back."""
    return text


@pytest.mark.parametrize("durable", [False, True])
def test_encrypted_reasoning_goes_back_in_front_of_the_answer_it_led_to(durable: bool) -> None:
    answers = iter(['<block type="command" name="echo">a</block>', "<final>Done.</final>", "<final>Again.</final>"])

    def answer(request: Request) -> MemoryReply:
        return MemoryReply(200, EVENTS, WIRE.whole(Turn((next(answers),), reasoning=("hm",))))

    transport = MemoryTransport(answer)
    agent = Agent(
        instructions="", provider=ResponsesProvider("k", transport=transport), model=Model("gpt-5-pro"), skills=[echo])
    store = MemoryStore()
    if durable:
        first = kernai.execute(agent, "Go.", store=store, run_id="r")
        finished = kernai.resume(agent, "r", store=store)
        assert finished is not None
        assert finished.messages == first.messages
        assert kernai.replay(agent, "r", store=store).result is not None
        kernai.resume(agent, "r", store=store, input="More.")
    else:
        first = kernai.execute(agent, "Go.")
        saved = [Message.from_dict(json.loads(json.dumps(message.to_dict()))) for message in first.messages]
        kernai.execute(agent, "More.", history=saved)
    thought = WIRE.thought(Turn(reasoning=("hm",)))
    assert thought["encrypted_content"] == ENCRYPTED
    last = json.loads(transport.requests[-1].body)["input"]
    assert [item.get("type", item.get("role")) for item in last] == [
        "user", "reasoning", "assistant", "user", "reasoning", "assistant", "user"]
    assert [item for item in last if item.get("type") == "reasoning"] == [thought, thought]


def test_other_adapters_do_not_send_the_reasoning_of_another_vendor() -> None:
    said = LlmResponse("Hi.", metadata={"reasoning_items": [WIRE.thought(Turn(reasoning=("hm",)))]}).message()
    request = asked(OpenAIProvider("k"), messages=[*HELLO, said, *HELLO])
    assert ENCRYPTED not in request.body.decode()


@pytest.mark.parametrize(
    "name,adapter",
    [
        *((f"openai/{id}", ResponsesProvider) for id in (
            "o1-pro", "o3-pro-2025-06-10", "gpt-5-pro", "gpt-5.2-pro", "gpt-5.1-codex", "codex-mini-latest",
            "o4-mini-deep-research", "computer-use-preview")),
        *((f"openai-responses/{id}", ResponsesProvider) for id in ("gpt-4o", "gpt-5")),
        *((f"openai/{id}", OpenAIProvider) for id in ("gpt-5", "gpt-4o", "o3", "o4-mini", "gpt-5-chat-latest", "gpt-6.1-sol")),
    ],
)  # fmt: skip
def test_models_that_exist_only_there_take_it_by_themselves(name: str, adapter: type) -> None:
    provider, model = resolve(name, api_key="k")
    assert type(provider) is adapter
    assert model.id == name.partition("/")[2]
    assert provider.path(model) == ("/responses" if adapter is ResponsesProvider else "/chat/completions")
