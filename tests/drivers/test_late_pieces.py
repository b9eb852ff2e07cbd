"""What a provider says after its call has returned."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from kernai import Agent, LlmResponse, Message, Provider, RunCancelledError, Skill
from tests.loop.loop_cases import command
from tests.ways import WAYS, Way


class Chatty(Provider):
    """Speaks through the channel of its first call while its second is made."""

    def __init__(self) -> None:
        self.channels: list[Any] = []
        self.refused: list[BaseException] = []

    def call(self, messages: Sequence[Message], model: Any, generation: Any, on_chunk: Any) -> LlmResponse:
        if self.channels:
            late = self.channels[0]
            for say in (partial(late, "LATE"), partial(late.block, 0, "command", "look", "LATE")):
                with pytest.raises(RunCancelledError, match="this model call has ended") as caught:
                    say()
                self.refused.append(caught.value)
        self.channels.append(on_chunk)
        text = command("look") if len(self.channels) == 1 else "<final>done</final>"
        on_chunk(text)
        return LlmResponse(text)


@WAYS
def test_text_after_the_call_has_returned_is_refused_and_shown_to_nobody(way: Way) -> None:
    model, shown = Chatty(), []
    it = Agent(instructions="", provider=model, skills=[Skill("look", execute=lambda: "seen")])
    result = way(it, on_event=lambda event: shown.append(event.data) if event.type == "text_chunk" else None)
    assert (result.text, len(model.refused), shown) == ("done", 2, [])
    assert model.channels[0].cancelled()
