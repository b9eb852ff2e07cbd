"""`Provider`: what a subclass inherits, and how the kernel handles what it returns and raises."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from kernai import Agent, Event, LlmResponse, Media, Message, Model, Models, Provider, Recorder, execute

IMAGE = Media.from_bytes(b"image", mime_type="image/png")
SOUND = Media.from_bytes(b"sound", mime_type="audio/wav")


class Scripted(Provider):
    """Streams the pieces, then returns `end`."""

    def __init__(self, *pieces: str, end: LlmResponse | None = None) -> None:
        self.pieces, self.end = pieces, end or LlmResponse("")

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        for piece in self.pieces:
            on_chunk(piece)
        return self.end


class Typed(Scripted):
    """Wraps every part, as vendors do; sends images to vision models."""

    def encode_part(self, part: str | Media, model: Model) -> Any:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if part.kind == "image" and model.supports("vision"):
            return {"type": "image", "data": part.to_base64()}
        return None


# ------------------------------------------------------------------------------------------------------ encoding


def test_by_default_text_is_sent_unchanged_and_media_become_placeholders() -> None:
    provider = Scripted()
    assert provider.encode(["a", IMAGE, SOUND, "b"], Models.GPT_4O) == [
        "a", "[image unavailable: image/png]", "[audio unavailable: audio/wav]", "b",
    ]


@pytest.mark.parametrize("model, expected", [
    (Models.LLAVA, {"type": "image", "data": "aW1hZ2U="}),
    (Models.LLAMA_3_1, {"type": "text", "text": "[image unavailable: image/png]"}),
])
def test_a_placeholder_is_wrapped_in_the_vendors_format_too(model: Model, expected: dict[str, str]) -> None:
    encoded = Typed().encode(["see", IMAGE], model)
    assert encoded == [{"type": "text", "text": "see"}, expected]


def test_the_placeholder_can_be_chosen_and_stays_text_if_the_encoder_accepts_none() -> None:
    class Terse(Typed):
        def fallback_for(self, part: Media) -> str:
            return f"({part.kind})"

    class Mute(Scripted):
        def encode_part(self, part: str | Media, model: Model) -> Any:
            return None

    assert Terse().encode([SOUND], Models.TEXT_ONLY) == [{"type": "text", "text": "(audio)"}]
    assert Mute().encode(["a", IMAGE], Models.LLAVA) == ["a", "[image unavailable: image/png]"]


# ---------------------------------------------------------------------------------------------------- the calls


@pytest.mark.parametrize("pieces, content, restarted", [
    ((), "<final>done</final>", False),
    (("<final>do", "ne</final>"), "<final>done</final>", False),
    (("<final>something else</final>",), "<final>done</final>", True),
    (("", ""), "<final>done</final>", False),
], ids=["no pieces", "the same in pieces", "other pieces", "empty pieces"])
def test_the_final_content_counts_and_not_the_streamed_pieces(pieces: tuple[str, ...], content: str, *, restarted: bool) -> None:
    agent, events, recorder = Agent(instructions="", provider=Scripted(*pieces, end=LlmResponse(content))), list[Event](), Recorder()
    result = execute(agent, "x", on_event=events.append)
    assert result.text == "done"
    assert [event.type for event in events if event.type == "model_restarted"] == ["model_restarted"] * restarted
    execute(agent, "x", recorder=recorder)  # nobody watches the stream
    assert len(recorder.for_event("model_restarted")) == restarted
    shown = "".join(event.data for event in events if event.type == "block_content")
    assert shown.endswith("done")
