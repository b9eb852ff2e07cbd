"""`Provider`: what a subclass inherits, and how the kernel handles what it returns and raises."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from kernai import (
    Agent,
    Event,
    GenerationOptions,
    LlmResponse,
    Media,
    Message,
    Model,
    Models,
    Provider,
    ProviderError,
    Recorder,
    aexecute,
    execute,
)

IMAGE = Media.from_bytes(b"image", mime_type="image/png")
SOUND = Media.from_bytes(b"sound", mime_type="audio/wav")


class Scripted(Provider):
    """Streams the pieces, then returns, raises or calls `end`."""

    def __init__(self, *pieces: Any, end: Any = None) -> None:
        self.pieces = pieces
        self.end = end
        self.seen: list[tuple[Sequence[Message], Model, GenerationOptions]] = []
        self.threads: set[str] = set()

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        self.seen.append((messages, model, generation))
        self.threads.add(threading.current_thread().name)
        for piece in self.pieces:
            on_chunk(piece)
        if isinstance(self.end, Exception):
            raise self.end
        return self.end  # type: ignore[no-any-return]


class Typed(Scripted):
    """Wraps every part, as vendors do; sends images to vision models."""

    def encode_part(self, part: str | Media, model: Model) -> Any:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if part.kind == "image" and model.supports("vision"):
            return {"type": "image", "data": part.to_base64()}
        return None


def outcome_of(provider: Provider) -> tuple[Any, list[Event]]:
    events: list[Event] = []
    result = execute(Agent(instructions="", provider=provider), "x", on_event=events.append)
    return result, events


# ------------------------------------------------------------------------------------------------------ encoding


def test_by_default_text_is_sent_unchanged_and_media_become_placeholders() -> None:
    provider = Scripted()
    assert provider.encode(["a", IMAGE, SOUND, "b"], Models.GPT_4O) == [
        "a", "[image unavailable: image/png]", "[audio unavailable: audio/wav]", "b",
    ]


@pytest.mark.parametrize(
    "model, expected",
    [
        (Models.LLAVA, {"type": "image", "data": "aW1hZ2U="}),
        (Models.LLAMA_3_1, {"type": "text", "text": "[image unavailable: image/png]"}),
    ],
)
def test_a_placeholder_is_wrapped_in_the_vendors_format_too(model: Model, expected: dict[str, str]) -> None:
    encoded = Typed().encode(["see", IMAGE], model)
    assert encoded == [{"type": "text", "text": "see"}, expected]


def test_the_placeholder_can_be_chosen() -> None:
    class Terse(Typed):
        def fallback_for(self, part: Media) -> str:
            return f"({part.kind})"

    assert Terse().encode([SOUND], Models.TEXT_ONLY) == [{"type": "text", "text": "(audio)"}]


def test_an_encoder_that_accepts_no_part_still_results_in_text() -> None:
    class Mute(Scripted):
        def encode_part(self, part: str | Media, model: Model) -> Any:
            return None

    assert Mute().encode(["a", IMAGE], Models.LLAVA) == ["a", "[image unavailable: image/png]"]


# ---------------------------------------------------------------------------------------------------- the calls


def test_a_class_instead_of_a_provider_instance_is_an_error_with_the_fix() -> None:
    with pytest.raises(TypeError, match=r"provider must be an instance: write Scripted\(\.\.\.\)"):
        Agent(instructions="", provider=Scripted)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"provider must be a kernai\.Provider, got str"):
        execute(Agent(instructions=""), "x", provider="openai")  # type: ignore[arg-type]


def test_a_call_gets_the_system_message_the_conversation_the_model_and_options() -> None:
    provider = Scripted(end=LlmResponse("done"))
    agent = Agent(instructions="Be brief.", provider=provider, generation={"top_p": 0.5})
    execute(agent, ["see ", IMAGE], model=Models.LLAVA, history=[Message("user", "a"), Message("assistant", "b")])
    messages, model, generation = provider.seen[0]
    assert [(one.role, one.text) for one in messages] == [
        ("system", "Be brief."), ("user", "a"), ("assistant", "b"), ("user", f"see [image:{IMAGE.id}]"),
    ]
    assert model is Models.LLAVA
    assert generation == GenerationOptions(top_p=0.5)


@pytest.mark.parametrize(
    "pieces, content, restarted",
    [
        ((), "<final>done</final>", False),
        (("<final>do", "ne</final>"), "<final>done</final>", False),
        (("<final>something else</final>",), "<final>done</final>", True),
        (("", ""), "<final>done</final>", False),
    ],
    ids=["no pieces", "the same in pieces", "other pieces", "empty pieces"],
)
def test_the_final_content_counts_and_not_the_streamed_pieces(pieces: tuple[str, ...], content: str, *, restarted: bool) -> None:
    result, events = outcome_of(Scripted(*pieces, end=LlmResponse(content)))
    assert result.text == "done"
    assert [event.type for event in events if event.type == "model_restarted"] == ["model_restarted"] * restarted
    recorder = Recorder()  # nobody watches the stream
    execute(Agent(instructions="", provider=Scripted(*pieces, end=LlmResponse(content))), "x", recorder=recorder)
    assert len(recorder.for_event("model_restarted")) == restarted
    shown = "".join(event.data for event in events if event.type == "block_content")
    assert shown.endswith("done")


def test_the_cause_of_a_providers_error_is_kept() -> None:
    class Chaining(Scripted):
        def call(self, *args: Any) -> LlmResponse:
            try:
                raise ConnectionResetError("reset by peer")
            except OSError as error:
                raise ProviderError("the connection failed", retryable=True) from error

    result, _ = outcome_of(Chaining())
    assert isinstance(result.error, ProviderError)
    assert isinstance(result.error.__cause__, ConnectionResetError)


def test_the_error_about_a_missing_provider_says_how_to_set_one() -> None:
    result = execute(Agent(instructions=""), "x")
    assert result.stop_reason == "error"
    for way in ("run(..., provider=...)", "Agent(provider=...)", "configure(default_provider=...)"):
        assert way in str(result.error)


async def test_the_inherited_acall_runs_call_in_a_worker_thread() -> None:
    provider = Scripted("done", end=LlmResponse("done"))
    pieces: list[str] = []
    given = [Message("user", "x")], Models.TEXT_ONLY, GenerationOptions(temperature=0.5)
    response = await provider.acall(*given, pieces.append)
    assert (response.content, pieces, provider.seen) == ("done", ["done"], [given])
    assert threading.current_thread().name not in provider.threads


async def test_under_asyncio_a_native_acall_is_preferred_and_runs_on_the_loop() -> None:
    class Native(Scripted):
        async def acall(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
            self.threads.add(threading.current_thread().name)
            await asyncio.sleep(0)
            await on_chunk("na")
            on_chunk("tive")
            return LlmResponse("native")

    provider = Native(end=RuntimeError("call was used"))
    events: list[Event] = []
    result = await aexecute(Agent(instructions="", provider=provider), "x", on_event=events.append)
    assert result.text == "native"
    assert provider.threads == {threading.current_thread().name}
    assert "".join(event.data for event in events if event.type == "text_chunk") == "native"
