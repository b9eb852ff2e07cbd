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


class Terse(Typed):
    def fallback_for(self, part: Media) -> str:
        return f"({part.kind})"


class Mute(Scripted):
    def encode_part(self, part: str | Media, model: Model) -> Any:
        return None


# ------------------------------------------------------------------------------------------------------ encoding


@pytest.mark.parametrize("kind, part, model, expected", [
    (Scripted, "a", Models.GPT_4O, "a"), (Scripted, IMAGE, Models.GPT_4O, "[image unavailable: image/png]"),
    (Scripted, SOUND, Models.GPT_4O, "[audio unavailable: audio/wav]"),
    (Typed, "a", Models.LLAVA, {"type": "text", "text": "a"}), (Typed, IMAGE, Models.LLAVA, {"type": "image", "data": "aW1hZ2U="}),
    (Typed, IMAGE, Models.LLAMA_3_1, {"type": "text", "text": "[image unavailable: image/png]"}),
    (Terse, SOUND, Models.TEXT_ONLY, {"type": "text", "text": "(audio)"}),
    (Mute, "a", Models.LLAVA, "a"), (Mute, IMAGE, Models.LLAVA, "[image unavailable: image/png]"),
])
def test_text_is_encoded_as_the_provider_does_and_media_that_it_cannot_send_become_placeholders(
    kind: type[Scripted], part: str | Media, model: Model, expected: object
) -> None:
    assert kind().encode(["see", part, "b"], model)[1] == expected


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
